"""Extracting archives into a staging folder, hashing on the way; nothing gets out of that folder."""

from __future__ import annotations

import hashlib
import stat
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from paw_gym.data.fetch import CHUNK, DownloadError, Progress

FileRecord = tuple[int, str]
"""(bytes, sha256)"""


def unpack_zip(
    archive: Path,
    staging: Path,
    progress: Progress,
    reserve: Callable[[int], None] = lambda size: None,
) -> dict[str, FileRecord]:
    """Extracts a zip archive and returns size and sha256 of each file by its path in the archive.

    Raises:
        DownloadError: it is damaged, or holds a path that leads out of the folder.
    """
    try:
        with zipfile.ZipFile(archive) as source:
            members = [member for member in source.infolist() if not member.is_dir()]
            for member in members:
                _require_inside(member, archive)
            total = sum(member.file_size for member in members)
            reserve(total)
            return _extract(source, members, staging, total, progress)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DownloadError(f"{archive.name} is damaged: {error}.") from error


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
