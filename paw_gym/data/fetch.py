"""Fetching one file over HTTP: resumable, checked, from the first address that works."""

from __future__ import annotations

import http.client
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paw_gym.internals.files import imposture, sha256_of

CHUNK = 1 << 18
"""bytes read at a time"""
ATTEMPTS = 3
"""connections in a row that bring nothing, after which an address counts as failed"""
TIMEOUT = 30.0
"""seconds without a byte"""
_MARGIN = 64 * 2**20
"""bytes that stay free on the disk"""

Progress = Callable[[str, int, int | None], None]
"""called with (file name, bytes so far, bytes in all or ``None``)"""


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file to fetch."""

    name: str
    urls: tuple[str, ...]
    """tried in order"""
    sha256: str = ""
    """hex digest; empty if none is known"""
    about: str = ""


class DownloadError(ValueError):
    """A file could not be fetched whole; the message says from where, why, and what to do."""


class _Interrupted(Exception):
    """The connection ended early; what has arrived is kept."""


def require_space(folder: Path, size: int) -> None:
    """Raises ``DownloadError`` unless a file of so many bytes fits on the disk of a folder."""
    free = shutil.disk_usage(folder).free
    if size + _MARGIN > free:
        raise DownloadError(
            f"The disk of {folder.parent} has {free / 1e6:,.0f} MB free, and "
            f"{(size + _MARGIN) / 1e6:,.0f} MB are needed for the next step. Free some, or choose another "
            "folder with --dest."
        )


def fetch(file: DataFile, folder: Path, progress: Progress) -> str:
    """Downloads ``file`` to ``folder / file.name`` and returns the address it came from. ``<name>.part``
    holds what has arrived; if the checksum is known, a second call goes on from there."""
    reasons = []
    for url in file.urls:
        try:
            _from_address(url, file, folder, progress)
            return url
        except DownloadError as error:
            reasons.append(f"{url}: {error}")
    raise DownloadError("\n".join([f"Cannot download {file.name}.", *reasons]))


def _from_address(url: str, file: DataFile, folder: Path, progress: Progress) -> None:
    part = folder / f"{file.name}.part"
    fruitless = 0
    while True:
        before = _size(part)
        try:
            _receive(url, file, part, progress)
            break
        except _Interrupted as error:
            goes_on = bool(file.sha256) and _size(part) > before  # else each attempt begins anew
            fruitless = 0 if goes_on else fruitless + 1
            if fruitless >= ATTEMPTS:
                raise DownloadError(f"no connection ({error}).") from error
            time.sleep(2.0**fruitless)
    with part.open("rb") as begun:
        is_page = "web page" in (imposture(begun.read(512)) or "")
    if is_page:
        part.unlink()
        raise DownloadError(
            "it answers with a web page instead of the file (a login, a quota that is used up, or a "
            "page that says the file is gone)."
        )
    if file.sha256 and (digest := sha256_of(part)) != file.sha256:
        part.unlink()
        raise DownloadError(
            f"the checksum is wrong: expected sha256 {file.sha256}, got {digest}. "
            "The file was thrown away."
        )
    os.replace(part, folder / file.name)


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _receive(url: str, file: DataFile, part: Path, progress: Progress) -> None:
    """One connection: goes on with the part if its end can be checked, else begins anew."""
    have = _size(part) if file.sha256 else 0
    headers = {"User-Agent": "paw-gym", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        request = urllib.request.Request(url, headers=headers)
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # the part is whole, or longer than the server's file
            if sha256_of(part) == file.sha256:
                return
            part.unlink()
            raise _Interrupted("what was there does not fit the server's file") from error
        answer = f"answered {error.code} {error.reason}"
        if error.code >= 500 or error.code == 429:
            raise _Interrupted(f"it {answer}") from error
        moved = " The link is dead." if error.code in (404, 410) else ""
        raise DownloadError(f"the server {answer}.{moved}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _Interrupted(_reason(error)) from error
    with response:
        done = have if response.status == 206 else 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else None
        if total is not None:
            require_space(part.parent, total - done)
        progress(file.name, done, total)
        with open(part, "ab" if done else "wb") as target:
            while chunk := _next_chunk(response):
                target.write(chunk)
                done += len(chunk)
                progress(file.name, done, total)
    if total is not None and done < total:
        raise _Interrupted(f"it ended after {done:,} of {total:,} bytes")


def _next_chunk(response: Any) -> bytes:
    try:
        return bytes(response.read1(CHUNK))
    except (OSError, http.client.HTTPException) as error:
        raise _Interrupted(_reason(error)) from error


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error) or type(error).__name__
