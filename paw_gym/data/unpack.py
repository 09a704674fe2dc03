"""Extracting archives into a staging folder, hashing on the way; nothing gets out of that folder."""

from __future__ import annotations

import hashlib
import lzma
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from paw_gym.data.fetch import CHUNK, DownloadError, Progress

FileRecord = tuple[int, str]
"""(bytes, sha256)"""
MAX_FILES = 2_000_000
"""files of one archive; the largest that is known has some 30,000"""
MAX_RATIO = 200
"""bytes out for a byte in; JSON shrinks to a tenth, a bomb to a thousandth"""
ALWAYS_ALLOWED = 1 << 28
"""bytes that may come out whatever the ratio"""


def unpack_zip(
    archive: Path,
    staging: Path,
    progress: Progress,
    reserve: Callable[[int], None] = lambda size: None,
) -> dict[str, FileRecord]:
    """Extracts a zip archive and returns size and sha256 of each file by its path in the archive.

    Raises:
        DownloadError: it is damaged, encrypted or far larger than it looks, or holds a path that leads
            out of the folder, or the same path twice; nothing was extracted unless it is damaged.
    """
    try:
        with zipfile.ZipFile(archive) as source:
            members = [member for member in source.infolist() if not member.is_dir()]
            for member in members:
                _require_inside(member, archive)
            _require_once(members, archive)
            total = sum(member.file_size for member in members)
            _require_bounds(archive, len(members), total)
            reserve(total)
            return _extract(source, members, staging, total, progress)
    except DownloadError:
        raise
    except _DAMAGE as error:
        raise DownloadError(f"{archive.name} is damaged: {error}.") from error


# errors of Python's zipfile, also those that an archive's own fields can cause
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    RuntimeError,  # encrypted; NotImplementedError (a compression it does not know) is one too
    IndexError,  # an empty name
    OverflowError,
    ValueError,
    struct.error,
)


def _require_bounds(archive: Path, files: int, total: int) -> None:
    """Raises ``DownloadError`` for an archive that would fill the disk."""
    allowed = max(ALWAYS_ALLOWED, MAX_RATIO * archive.stat().st_size)
    if files > MAX_FILES or total > allowed:
        raise DownloadError(
            f"{archive.name} would become {files:,} files of {total:,} bytes, more than the "
            f"{MAX_FILES:,} files or {allowed:,} bytes that an archive of its size may hold. Nothing "
            "was extracted."
        )


def _require_once(members: list[zipfile.ZipInfo], archive: Path) -> None:
    seen: set[PurePosixPath] = set()
    for member in members:
        path = PurePosixPath(member.filename)
        if path in seen:
            raise DownloadError(f"{archive.name} holds {str(path)!r} twice. Nothing was extracted.")
        seen.add(path)


def _require_inside(member: zipfile.ZipInfo, archive: Path) -> None:
    path = PurePosixPath(member.filename)
    odd = "\\" in member.filename or ":" in path.parts[0] if path.parts else True
    link = stat.S_ISLNK(member.external_attr >> 16)
    if odd or link or path.is_absolute() or ".." in path.parts:
        raise DownloadError(
            f"{archive.name} holds {member.filename!r}, which leads out of the data folder "
            "(or is a link). Nothing was extracted."
        )


def _extract(
    source: zipfile.ZipFile,
    members: list[zipfile.ZipInfo],
    staging: Path,
    total: int,
    progress: Progress,
) -> dict[str, FileRecord]:
    records: dict[str, FileRecord] = {}
    done = 0
    for member in members:
        target = staging / member.filename
        target.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with source.open(member) as packed, open(target, "wb") as file:
            while chunk := packed.read(CHUNK):
                file.write(chunk)
                digest.update(chunk)
        records[PurePosixPath(member.filename).as_posix()] = (
            member.file_size,
            digest.hexdigest(),
        )
        done += member.file_size
        progress(f"extracting {Path(source.filename or '').name}", done, total)
    return records
