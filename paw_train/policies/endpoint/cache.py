"""Answers of endpoints on disk: a request that was answered once is never paid for again."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paw_gym.cache import private_file

_FORMAT = 3
"""of a recorded answer; requests with answers in another format are sent again"""


def _opened(path: Path) -> sqlite3.Connection:
    # the endpoint's thread uses it, one call at a time
    found = sqlite3.connect(
        private_file(path), timeout=60.0, check_same_thread=False, isolation_level=None
    )
    try:
        found.execute("PRAGMA journal_mode=WAL")
        found.execute("PRAGMA synchronous=NORMAL")
        found.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT)")
    except sqlite3.DatabaseError:
        found.close()
        raise
    return found


class AnswerCache:
    """Answers by request in one SQLite file; several processes may share it.

    An answer is on disk as soon as ``put`` returns, so a killed run loses nothing that was paid for.

    Args:
        path: the file; made, with its folder, when it is not there.

    Raises:
        ValueError: the file is something else, or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._db = _opened(path)
        except (sqlite3.DatabaseError, OSError) as error:
            raise ValueError(
                f"{path} is no cache of answers, or damaged ({error}). Delete it, or name another "
                "file (endpoint.cache=FILE) or none (endpoint.cache=null)."
            ) from error

    def get(self, key: str) -> dict[str, Any] | None:
        """The answer to a request; ``None``: there is none, or a damaged one, which is asked for again."""
        query = (
            "SELECT CAST(answer AS BLOB) FROM answers WHERE key = ?"  # bytes: text may be damaged
        )
        row = self._db.execute(query, (key,)).fetchone()
        try:
            answer = json.loads(row[0]) if row else None
        except (ValueError, TypeError):
            answer = None
        return answer if isinstance(answer, dict) else None

    def put(self, key: str, answer: Mapping[str, Any]) -> None:
        """Keeps an answer."""
        text = json.dumps(answer)  # ASCII: SQLite refuses lone surrogates, models print them
        self._db.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", (key, text))

    def close(self) -> None:
        """Closes the file."""
        self._db.close()


def request_key(url: str, kind: str, body: Mapping[str, Any], seed: int | None) -> str:
    """Names a request: all that decides its answer, wherever the run is."""
    whole = json.dumps([_FORMAT, url, kind, body, seed], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()
