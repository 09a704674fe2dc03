"""Fetching one file over HTTP: resumable, checked, from the first address that works."""

from __future__ import annotations

import http.client
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paw_gym.data.manifest import DataFile
from paw_gym.internals.files import imposture, sha256_of

CHUNK = 1 << 18
"""bytes read at a time"""
ATTEMPTS = 3
"""connections in a row that bring nothing, after which an address counts as failed"""
TIMEOUT = 30.0
"""seconds without a byte"""

Progress = Callable[[str, int, int | None], None]
"""called with (file name, bytes so far, bytes in all or ``None``)"""
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class DownloadError(ValueError):
    """A file could not be fetched whole; the message says from where, why, and what to do."""


class _Interrupted(Exception):
    """The connection ended early; what has arrived is kept."""


def fetch(
    file: DataFile,
    folder: Path,
    progress: Progress,
    reserve: Callable[[int], None],
) -> str:
    """Downloads ``file`` to ``folder / file.name`` and returns the address it came from.

    What has arrived lies in ``<name>.part`` until it is whole and its checksum fits, so a second
    call goes on where the first stopped, if the server still has the same file (``If-Range``).

    Args:
        reserve: called with the bytes that are still to come; raises if the disk is too small.

    Raises:
        DownloadError: no address gave the whole file.
    """
    reasons = []
    for url in file.urls:
        try:
            _from_address(url, file, folder, progress, reserve)
            return url
        except DownloadError as error:
            reasons.append(f"{url}: {error}")
    raise DownloadError("\n".join([f"Cannot download {file.name}.", *reasons]))


def _from_address(
    url: str,
    file: DataFile,
    folder: Path,
    progress: Progress,
    reserve: Callable[[int], None],
) -> None:
    part = _Part(folder / f"{file.name}.part")
    fruitless = 0
    while True:
        before = part.size
        try:
            _receive(url, file, part, progress, reserve)
            break
        except _Interrupted as error:
            fruitless = 0 if part.size > before else fruitless + 1
            if fruitless >= ATTEMPTS:
                kept = f" {part.size:,} bytes are kept: run it again to go on." if part.size else ""
                raise DownloadError(f"no connection ({error}).{kept}") from error
            time.sleep(2.0**fruitless)
    digest = sha256_of(part.path)
    if file.sha256 and digest != file.sha256.lower():
        part.discard()
        raise DownloadError(
            f"the checksum is wrong: expected sha256 {file.sha256}, got {digest}. "
            "The file was thrown away."
        )
    with part.path.open("rb") as begun:
        is_page = "web page" in (imposture(begun.read(512)) or "")
    if is_page and not file.name.endswith((".html", ".htm")):
        part.discard()
        raise DownloadError(
            "it answers with a web page instead of the file (a login, a quota that is used up, or a "
            "page that says the file is gone)."
        )
    os.replace(part.path, folder / file.name)
    part.discard()


def _receive(
    url: str,
    file: DataFile,
    part: _Part,
    progress: Progress,
    reserve: Callable[[int], None],
) -> None:
    """One connection: goes on with the part if the server agrees, else begins anew."""
    headers = part.resume_headers(url, trusted=bool(file.sha256))
    try:
        response = _open(url, headers)
    except urllib.error.HTTPError as error:
        if error.code == 416 and "Range" in headers and _complete(error, part.size):
            return
        if error.code == 416 and "Range" in headers:
            part.discard()
            raise _Interrupted("what was there does not fit the server's file") from error
        if error.code >= 500 or error.code == 429:
            raise _Interrupted(f"it answered {error.code} {error.reason}") from error
        raise DownloadError(_refused(error)) from error
    except (OSError, http.client.HTTPException) as error:
        raise _Interrupted(_reason(error)) from error
    with response:
        start, total = _extent(response, part.size)
        if start == 0:
            part.begin(url, response.headers)
        if total is not None:
            reserve(total - start)
        _copy(response, file.name, part, start, total, progress)


def _open(url: str, headers: Mapping[str, str]) -> Any:
    request = urllib.request.Request(
        url, headers={"User-Agent": "paw-gym", "Accept-Encoding": "identity", **headers}
    )
    return urllib.request.urlopen(request, timeout=TIMEOUT)


def _complete(error: urllib.error.HTTPError, size: int) -> bool:
    """Says if a 416 means that the whole file is here already (``Content-Range: bytes */size``)."""
    total = (error.headers.get("Content-Range") or "").rpartition("/")[2]
    return size > 0 and total == str(size)


def _refused(error: urllib.error.HTTPError) -> str:
    moved = " The link is dead." if error.code in (404, 410) else ""
    return f"the server answered {error.code} {error.reason}.{moved}"


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error) or type(error).__name__


def _extent(response: Any, have: int) -> tuple[int, int | None]:
    """(first byte that comes, bytes of the whole file)."""
    length = response.headers.get("Content-Length")
    if response.status != 206:
        return 0, int(length) if length else None
    match = _RANGE.match(response.headers.get("Content-Range") or "")
    if match is None or int(match.group(1)) != have:
        raise DownloadError("the server answered a range that was not asked for.")
    return have, None if match.group(2) == "*" else int(match.group(2))


def _copy(
    response: Any, name: str, part: _Part, start: int, total: int | None, progress: Progress
) -> None:
    done = start
    progress(name, done, total)
    with open(part.path, "ab" if start else "wb") as target:
        while True:
            try:
                chunk = response.read1(CHUNK)
            except (OSError, http.client.HTTPException) as error:
                raise _Interrupted(_reason(error)) from error
            if not chunk:
                break
            target.write(chunk)
            done += len(chunk)
            progress(name, done, total)
    if total is not None and done < total:
        raise _Interrupted(f"it ended after {done:,} of {total:,} bytes")


class _Part:
    """A file on its way: its bytes so far, and what identifies the server's version of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._notes = Path(f"{path}.json")

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def begin(self, url: str, headers: Mapping[str, str]) -> None:
        """Notes what identifies the version that is about to come."""
        etag = headers.get("ETag") or ""
        strong = etag if etag and not etag.startswith("W/") else ""
        validator = strong or headers.get("Last-Modified") or ""
        self._notes.write_text(json.dumps({"url": url, "validator": validator}))

    def resume_headers(self, url: str, trusted: bool) -> dict[str, str]:
        """Headers that ask for the remaining bytes; none if they could be those of another file."""
        if self.size == 0:
            return {}
        try:
            notes = json.loads(self._notes.read_text())
        except (OSError, ValueError):
            notes = {}
        validator = notes.get("validator", "") if notes.get("url") == url else ""
        if validator:
            return {"Range": f"bytes={self.size}-", "If-Range": validator}
        return {"Range": f"bytes={self.size}-"} if trusted else {}

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self._notes.unlink(missing_ok=True)


def fetch_checksums(mirror: str) -> dict[str, str]:
    """The SHA256SUMS of a mirror by file name; empty if it serves none."""
    url = f"{mirror.rstrip('/')}/SHA256SUMS"
    try:
        with _open(url, {}) as response:
            lines = response.read(1 << 20).decode("utf-8", "replace").splitlines()
    except urllib.error.HTTPError as error:
        if error.code in (403, 404, 410):
            return {}
        raise DownloadError(f"{url}: {_refused(error)}") from error
    except (OSError, http.client.HTTPException) as error:
        raise DownloadError(f"{url}: {_reason(error)}.") from error
    sums = {}
    for line in filter(str.strip, lines):
        digest, _, name = line.partition(" ")
        if not re.fullmatch(r"[0-9a-fA-F]{64}", digest):
            raise DownloadError(f"{url} is not a list of 'sha256  file name': {line!r:.80}")
        sums[name.strip().lstrip("*").rpartition("/")[2]] = digest.lower()
    return sums
