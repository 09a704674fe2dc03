"""Files that appear whole or not at all, data files that are not what they seem, and the user's cache."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import lzma
import math
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit


def sha256_of(path: Path) -> str:
    """Hex digest of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_version(path: Path) -> str:
    """A text that differs when a file does: its path, size and time."""
    stat = path.stat()
    return f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}"


def user_path(path: str | os.PathLike[str]) -> Path:
    """The path with ``~`` expanded; that of an unknown user stays as it is, and leads to nothing."""
    return Path(os.path.expanduser(path))


def file_at(text: str | os.PathLike[str]) -> Path | None:
    """The file that a text names, or ``None``: text that is too long for a path names no file either."""
    path = user_path(text)
    return path if os.path.isfile(path) else None


_POINTER = b"version https://git-lfs.github.com/"
_ARCHIVES = {b"PK\x03\x04": "a zip archive", b"BZh": "packed by bzip2"}
_PACKED = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


def imposture(head: bytes) -> str | None:
    """Says what a file holds in place of its data, by its first bytes, and what to do; ``None``: nothing."""
    if head.startswith(_POINTER):
        return "is a Git LFS pointer, not the data: run `git lfs pull` where it was cloned"
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith((b"<!doctype html", b"<html")):
        return "is a web page, not the data: its link leads to a page; download the file itself"
    return None


def require_data(path: Path) -> bytes:
    """The first bytes of a data file."""
    with path.open("rb") as file:
        head = file.read(512)
    if instead := imposture(head):
        raise ValueError(f"{path} {instead}.")
    return head


DAMAGED = (EOFError, OSError, ValueError, lzma.LZMAError, zlib.error)
"""raised while a text file is read that is cut off, or not text"""


def packed_by(head: bytes) -> str | None:
    """The compression of a file by its first bytes: ``gzip``, ``xz``, ``zstd``; ``None``: none of them."""
    return next((name for magic, name in _PACKED.items() if head.startswith(magic)), None)


def open_text(path: Path) -> IO[str]:
    """Opens a text file in UTF-8, compressed or not, without its byte order mark; newlines as they are."""
    head = require_data(path)
    for magic, kind in _ARCHIVES.items():
        if head.startswith(magic):
            raise ValueError(f"{path} is {kind}: unpack it, and give the file that it holds.")
    packing = packed_by(head)
    if packing == "zstd":
        import pyarrow as pa

        raw: Any = pa.input_stream(str(path), compression="zstd")
    else:
        raw = {None: open, "gzip": gzip.open, "xz": lzma.open}[packing](path, "rb")  # type: ignore[operator]
    return io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")


@contextmanager
def new_file(path: Path, shared: bool = False) -> Iterator[Path]:
    """A path beside ``path`` to write to; the file takes its place unless something is raised.

    Args:
        shared: whether other processes may be writing the same file. Otherwise what a killed process
            left is overwritten by the next one.
    """
    scratch = path.with_name(f"{path.name}{f'.{os.getpid()}' if shared else ''}.part")
    try:
        yield scratch
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


@contextmanager
def new_folder(
    folder: Path, is_done: Callable[[Path], bool] = lambda folder: False
) -> Iterator[Path]:
    """A folder beside ``folder`` to fill; it takes its place unless something is raised.

    After a failure nothing is left behind, not even parent folders that were not there before.

    Args:
        folder: what was there is removed only when the new one is in place.
        is_done: whether another process has made the same folder meanwhile: then that one stays.
    """
    absent = [parent for parent in folder.absolute().parents if not parent.exists()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.staging-", dir=folder.parent))
    try:
        staging.chmod(0o755)  # mkdtemp's 0700 would stay with the data
        yield staging
        if not is_done(folder):
            try:
                _swap(staging, folder)
            except OSError:
                if not is_done(folder):
                    raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        for parent in absent:
            with suppress(OSError):  # if a folder holds something, such as the finished one
                parent.rmdir()


def require_free(folder: Path, mark: str, force: bool) -> None:
    """Raises ``FileExistsError`` unless nothing is there, or by ``force`` a folder with the file ``mark``."""
    ours = (folder / mark).is_file()
    if folder.exists() and not (force and ours):
        way = "or --force" if ours else f"for --force replaces one with a {mark} only"
        raise FileExistsError(f"{folder} exists already: give another folder, {way}.")


def _swap(staging: Path, folder: Path) -> None:
    if not folder.exists():
        os.rename(staging, folder)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old-", dir=folder.parent))
    os.rename(folder, old / folder.name)
    try:
        os.rename(staging, folder)
    except OSError:
        os.rename(old / folder.name, folder)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def write_text(path: Path, text: str, shared: bool = False) -> None:
    """Writes a text file, whole or not at all; ``shared`` as for ``new_file``."""
    with new_file(path, shared) as scratch:
        scratch.write_text(text, encoding="utf-8")


def json_text(value: Any, **options: Any) -> str:
    """A value as JSON, with null for the numbers that JSON cannot hold (NaN, infinities)."""
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_finite(value), **options)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def write_json(path: Path, value: Any, shared: bool = False) -> None:
    """Writes a JSON file, whole or not at all; ``shared`` as for ``new_file``."""
    write_text(path, json_text(value, indent=2) + "\n", shared)


def append_jsonl(path: Path, record: Mapping[str, Any]) -> None:
    """Adds one line to a JSONL file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json_text(record) + "\n")


def truncate_jsonl(path: Path, key: str, below: int) -> list[int]:
    """Drops the lines of ``path`` whose ``key`` is ``below`` or more: a resumed run writes them again."""
    if not path.exists():
        return []
    kept, damaged = [], []
    text = path.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            if line and json.loads(line)[key] < below:
                kept.append(line + "\n")
        except (json.JSONDecodeError, KeyError, TypeError, RecursionError):
            damaged.append(number)
    write_text(path, "".join(kept))
    return damaged


_FULL = "No space left at {}: free some"
_LIMITS = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: "`ulimit -f` forbids a file of this size at {}: raise it",
}


@contextmanager
def naming_full_disk(folder: Path) -> Iterator[None]:
    """Turns the error of any library that may write no more into one that names the folder."""
    try:
        yield
    except Exception as error:  # safetensors and torch have exceptions of their own for it
        advice = _advice_on(error)
        if advice is None:
            raise
        raise OSError(
            f"{advice.format(folder)}, and run the same command; it goes on from what is saved."
        ) from error


def _advice_on(error: BaseException | None) -> str | None:
    """The limit that this error, or one behind it, reports; ``None`` if it is another error."""
    while error is not None:
        for code, advice in _LIMITS.items():
            if getattr(error, "errno", None) == code or f"(os error {code})" in str(error):
                return advice  # Rust writes the code into its text
        if "disk is full" in str(error):  # SQLite
            return _FULL
        error = error.__cause__ or error.__context__
    return None


# --- this user's cache ---------------------------------------------------------------------------------


def cache_dir() -> Path:
    """``$PAW_CACHE_DIR``, or ``paw-gym`` in the user's cache folder. It need not exist yet."""
    chosen = os.environ.get("PAW_CACHE_DIR")
    if chosen:
        return user_path(chosen)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", "~/AppData/Local")
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return user_path(base) / "paw-gym"


def private_folder(name: str) -> Path:
    """A folder in ``cache_dir()`` that this user alone can enter, made if that is possible."""
    folder = cache_dir() / name
    with suppress(OSError):  # a later write to it reports this; what is there can be read
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o700)
    return folder


def private_file(path: Path) -> Path:
    """Makes a file that this user alone can read, or restricts an existing file in this way."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        path.chmod(0o600)
    finally:
        os.close(descriptor)
    return path


def kept_path(url: str) -> Path:
    """The file that keeps the token of the server at an address, for as long as it runs."""
    parts = urlsplit(url)
    return private_folder("servers") / f"{parts.hostname}-{parts.port}.token".replace(":", "_")


def own_token(url: str) -> str | None:
    """The token of this user's server at exactly this address; ``None``: there is none. ``localhost`` is not
    ``127.0.0.1``: somebody else may listen at another of its addresses."""
    try:
        return kept_path(url).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


@contextmanager
def kept(path: Path, text: str) -> Iterator[None]:
    """Keeps a text where this user alone can read it, until the block ends."""
    private_file(path).write_text(text, encoding="utf-8")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
