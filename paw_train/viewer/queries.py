"""Lists of a run's groups, episodes and turns: filtered, sorted, and a page at a time."""

from __future__ import annotations

import sqlite3
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from paw_train.viewer.index import RunIndex, generation_of

OUTCOMES = ("solved", "failed", "unfinished", "error")
SORTS = {
    "order": "",
    "newest": "",
    "entropy": "entropy IS NULL, entropy DESC",
    "surprise": "surprise IS NULL, surprise DESC",
    "return": "ret",
    "-return": "ret DESC",
    "advantage": "advantage IS NULL, advantage",
    "-advantage": "advantage IS NULL, advantage DESC",
    "steps": "steps",
    "-steps": "steps DESC",
}
"""ways to order a list; ``order`` is that of the run, ``newest`` has its last update first"""
PAGE = 500
"""most rows of one page"""


@dataclass(frozen=True)
class Filter:
    """The conditions on the rows of a list.

    Of turns, ``invalid``, ``selected``, ``entropy`` and ``words`` are their own; an episode has them if
    one of its turns does.
    """

    view: str = "episodes"
    words: str = ""
    phase: str | None = None
    outcomes: tuple[str, ...] = ()
    task_type: str | None = None
    env_id: str | None = None
    invalid: bool = False
    selected: bool = False
    entropy: float | None = None
    """least entropy"""
    first: int | None = None
    last: int | None = None
    """updates, both included; episodes of no update are then left out"""
    sort: str = "order"


class Lists:
    """Answers for one run; the rows that a filter leaves are remembered until the run changes."""

    def __init__(self, index: RunIndex, remembered: int = 24) -> None:
        self._index, self._most = index, remembered
        self._found: OrderedDict[tuple[Filter, int], array[int]] = OrderedDict()
        self._lock = Lock()

    def page(
        self, chosen: Filter, offset: int, limit: int, around: str | None = None
    ) -> dict[str, Any]:
        """Rows ``offset`` to ``offset + limit`` of a list, and how many it has.

        Args:
            around: the key of a row: the page is then the one that it is on, if the list has it.
        """
        with self._index.connect() as database:
            ids = self._ids(database, chosen)
            at = None
            if around is not None:
                at = _position(database, chosen.view, ids, around)
                if at is not None:
                    offset = at - at % limit
            part = ids[offset : offset + limit]
            rows = _rows(database, chosen.view, part)
        return {"total": len(ids), "offset": offset, "at": at, "rows": rows}

    def _ids(self, database: sqlite3.Connection, chosen: Filter) -> array[int]:
        key = (chosen, generation_of(database))
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
                return self._found[key]
        ids = _select(database, chosen)
        with self._lock:
            self._found[key] = ids
            while len(self._found) > self._most:
                self._found.popitem(last=False)
        return ids


def _select(database: sqlite3.Connection, f: Filter) -> array[int]:
    if f.view == "turns":
        return _select_turns(database, f)
    where, values = _episode_conditions(f)
    if f.invalid:
        where.append("e.invalid > 0")
    if f.selected:
        where.append("e.selected > 0")
    if f.entropy is not None:
        where.append("e.entropy >= ?")
        values.append(f.entropy)
    if f.words:
        where.append(
            "(instr(e.words, ?) OR e.id IN (SELECT t.episode FROM turns t JOIN texts x "
            "ON x.id = t.id WHERE instr(x.words, ?)))"
        )
        values += [f.words.lower()] * 2
    if f.view == "groups":
        return _select_groups(database, f, where, values)
    order = ", ".join(part for part in (_sorted(f, "e"), _order(f)) if part)
    query = f"SELECT e.id FROM episodes e {_where(where)} ORDER BY {order}"
    return array("q", (row[0] for row in database.execute(query, values)))


def _select_groups(
    database: sqlite3.Connection, f: Filter, where: list[str], values: list[Any]
) -> array[int]:
    """A group is named by its first episode in the run's order; one that passes is enough."""
    inside = ""
    if where:
        inside = f"WHERE e.grp IN (SELECT e.grp FROM episodes e {_where(where)})"
    totals = {
        "order": "",
        "entropy": "max(e.entropy) IS NULL, max(e.entropy) DESC,",
        "surprise": "avg(e.surprise) IS NULL, avg(e.surprise) DESC,",
        "return": "avg(e.ret),",
        "-return": "avg(e.ret) DESC,",
        "steps": "avg(e.steps),",
        "-steps": "avg(e.steps) DESC,",
    }
    turned = " DESC" if f.sort == "newest" else ""
    query = (
        f"SELECT min(e.id) FROM episodes e {inside} GROUP BY e.grp "
        f"ORDER BY {totals.get(f.sort, '')} min(e.place){turned}, min(e.file), min(e.ordinal)"
    )
    return array("q", (row[0] for row in database.execute(query, values)))


def _select_turns(database: sqlite3.Connection, f: Filter) -> array[int]:
    where, values = _episode_conditions(f)
    of_turns: list[str] = []
    more: list[Any] = []
    if f.invalid:
        of_turns.append("t.valid = 0")
    if f.selected:
        of_turns.append("t.selected = 1")
    if f.entropy is not None:
        of_turns.append("t.entropy >= ?")
        more.append(f.entropy)
    if f.words:
        of_turns.append("t.id IN (SELECT id FROM texts WHERE instr(words, ?))")
        more.append(f.words.lower())
    if not of_turns and f.sort in ("order", "newest"):
        # turns of an episode have consecutive numbers: no join, no sort of all of them
        query = f"SELECT e.first_turn, e.steps FROM episodes e {_where(where)} ORDER BY {_order(f)}"
        ids = array("q")
        for first, steps in database.execute(query, values):
            ids.extend(range(first, first + steps))
        return ids
    of_episode = f.sort in ("return", "-return", "steps", "-steps")
    in_order = f.sort in ("order", "newest")
    by_value = f"{_sorted(f, 'e' if of_episode else 't')}, t.id"
    order = f"{_order(f)}, t.step" if in_order else by_value
    joined = "JOIN episodes e ON e.id = t.episode" if where or of_episode or in_order else ""
    query = f"SELECT t.id FROM turns t {joined} {_where(where + of_turns)} ORDER BY {order}"
    return array("q", (row[0] for row in database.execute(query, [*values, *more])))


def _episode_conditions(f: Filter) -> tuple[list[str], list[Any]]:
    where: list[str] = []
    values: list[Any] = []
    wanted = {"e.phase": f.phase, "e.task_type": f.task_type, "e.env_id": f.env_id}
    for column, value in wanted.items():
        if value is not None:
            where.append(f"{column} = ?")
            values.append(value)
    if f.outcomes:
        where.append(f"e.outcome IN ({', '.join('?' * len(f.outcomes))})")
        values += f.outcomes
    for bound, sign in ((f.first, ">="), (f.last, "<=")):
        if bound is not None:
            where.append(f"e.upd {sign} ?")
            values.append(bound)
    return where, values


def _where(conditions: Sequence[str]) -> str:
    return f"WHERE {' AND '.join(conditions)}" if conditions else ""


def _order(f: Filter) -> str:
    return f"e.place{' DESC' if f.sort == 'newest' else ''}, e.file, e.ordinal"


def _sorted(f: Filter, alias: str) -> str:
    parts = SORTS[f.sort].split(", ") if SORTS[f.sort] else []
    return ", ".join(f"{alias}.{part}" for part in parts)


_KEY = "f.key || '.' || e.ordinal"
_ROWS = {
    "groups": f"""
        SELECT m.id, {_KEY} AS key, e.grp, e.phase, e.upd AS "update", e.task_id, e.task_type,
            e.instruction, max(e.lam) AS lam, count(*) AS n, avg(m.ret) AS mean_return,
            group_concat(m.outcome, ',') AS outcomes, avg(m.steps) AS steps
        FROM episodes e JOIN files f ON f.id = e.file JOIN episodes m ON m.grp = e.grp
        WHERE e.id IN ({{ids}}) GROUP BY e.grp""",
    "episodes": f"""
        SELECT e.id, {_KEY} AS key, e.grp, e.phase, e.upd AS "update", e.task_id, e.task_type,
            e.instruction, e.outcome, e.ret, e.steps, e.invalid, e.entropy, e.advantage,
            e.surprise, e.selected, e.lam
        FROM episodes e JOIN files f ON f.id = e.file WHERE e.id IN ({{ids}})""",
    "turns": f"""
        SELECT t.id, {_KEY} AS key, e.phase, e.upd AS "update", e.task_type, e.outcome, t.step,
            t.action, t.observation, t.reward, t.valid, t.entropy, t.advantage, t.surprise,
            t.selected
        FROM turns t JOIN episodes e ON e.id = t.episode JOIN files f ON f.id = e.file
        WHERE t.id IN ({{ids}})""",
}


def _rows(database: sqlite3.Connection, view: str, ids: Sequence[int]) -> list[dict[str, Any]]:
    listed = ", ".join(str(int(i)) for i in ids)
    query = _ROWS[view].format(ids=listed)
    if view == "groups":  # by the group's own first episode
        query = query.replace("SELECT m.id", "SELECT e.id")
    rows = {row["id"]: dict(row) for row in database.execute(query)}
    found = [rows[i] for i in ids if i in rows]
    for row in found:
        del row["id"]
    return found


def _position(database: sqlite3.Connection, view: str, ids: array[int], key: str) -> int | None:
    """The position in a list of an episode, a turn (``key:step``) or an episode's group."""
    episode, _, step = key.partition(":")
    row = find_episode(database, episode)
    if row is None:
        return None
    wanted: int | None = row["id"]
    if view == "turns":
        wanted = row["first_turn"] + (int(step) if step.isdecimal() else 0)
    elif view == "groups":
        query = "SELECT min(id) FROM episodes WHERE grp = ?"
        wanted = database.execute(query, (row["grp"],)).fetchone()[0]
    try:
        return ids.index(wanted)  # type: ignore[arg-type]
    except ValueError:
        return None


def find_episode(database: sqlite3.Connection, key: str) -> sqlite3.Row | None:
    """The row of an episode's key, ``file.number``, with its file's key as ``file_key``."""
    file, _, ordinal = key.rpartition(".")
    if not ordinal.isdecimal() or len(ordinal) > 12:
        return None
    found: sqlite3.Row | None = database.execute(
        "SELECT e.*, f.key AS file_key FROM episodes e JOIN files f ON f.id = e.file "
        "WHERE f.key = ? AND e.ordinal = ?",
        (file, int(ordinal)),
    ).fetchone()
    return found


def group_of(database: sqlite3.Connection, key: str, most: int = 64) -> list[str]:
    """Keys of the episodes of one's group, itself included, in the order of the run."""
    row = find_episode(database, key)
    if row is None:
        return []
    query = (
        f"SELECT {_KEY} FROM episodes e JOIN files f ON f.id = e.file WHERE e.grp = ? "
        "ORDER BY e.place, e.file, e.ordinal LIMIT ?"
    )
    return [found[0] for found in database.execute(query, (row["grp"], most))]


def overview(index: RunIndex) -> dict[str, Any]:
    """The choices of a run's filters, with the number of episodes of each."""
    with index.connect() as database:

        def counts(column: str) -> dict[str, int]:
            query = f"SELECT {column}, count(*) FROM episodes GROUP BY {column} ORDER BY {column}"
            return {str(row[0]): row[1] for row in database.execute(query) if row[0] is not None}

        total = database.execute(
            "SELECT count(*), coalesce(sum(steps), 0) FROM episodes"
        ).fetchone()
        notes = database.execute("SELECT key, note FROM files WHERE note IS NOT NULL ORDER BY key")
        tokens = database.execute("SELECT count(*) FROM episodes WHERE entropy IS NOT NULL")
        return {
            "episodes": total[0],
            "turns": total[1],
            "with_tokens": tokens.fetchone()[0],
            "phases": counts("phase"),
            "outcomes": counts("outcome"),
            "environments": counts("env_id"),
            "types": counts("task_type"),
            "kept": {int(key): n for key, n in counts("upd").items()},
            "notes": [f"{row['key']}: {row['note']}" for row in notes],
        }
