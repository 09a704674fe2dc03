"""A data set on disk: fetched, extracted all or nothing, with a receipt to verify it by."""

from __future__ import annotations

import json
import shutil
import stat
import time
import tomllib
import zipfile
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from paw_gym.data.fetch import DataFile, DownloadError, Progress, fetch, require_space
from paw_gym.internals.files import cache_dir, new_folder, sha256_of, user_path, write_json
from paw_gym.internals.locks import only_process
from paw_gym.internals.naming import require_choice

RECEIPT = "paw_receipt.json"
"""in the data folder: what it was made of, and the checksum of every file"""
_WORKING = "Another process is downloading into {folder}: wait for it, then run this again."


@dataclass(frozen=True, slots=True)
class Manifest:
    """A data set: its files, and the addresses that serve them."""

    name: str
    title: str
    files: tuple[DataFile, ...]
    """those named ``.zip`` are extracted into the data folder"""
    homepage: str = ""
    licence: str = ""
    expect: tuple[str, ...] = ()
    """paths below the data folder that must exist afterwards"""
    use: str = ""
    """a line of code that uses the data; ``{folder}`` is the data folder"""

    def with_mirror(self, mirror: str) -> Manifest:
        """The same files, served side by side below another address; only that address is asked."""
        base = mirror.rstrip("/")
        files = tuple(replace(f, urls=(f"{base}/{f.name}",)) for f in self.files)
        return replace(self, files=files)


class _Source(NamedTuple):
    """A file that is here, its place, the address or path that it came from, and its checksum."""

    file: DataFile
    path: Path
    origin: str
    digest: str


_MANIFESTS = resources.files("paw_gym.data") / "manifests"


def dataset_names() -> list[str]:
    return sorted(Path(p.name).stem for p in _MANIFESTS.iterdir())


def load_manifest(name: str) -> Manifest:
    require_choice("data set", name, dataset_names())
    data = tomllib.loads((_MANIFESTS / f"{name}.toml").read_text(encoding="utf-8"))
    data["files"] = tuple(DataFile(**f | {"urls": tuple(f["urls"])}) for f in data["files"])
    return Manifest(name, **data)


def default_folder(name: str) -> Path:
    """The default folder of a data set: ``<cache_dir()>/data/<name>``."""
    return cache_dir() / "data" / name


def _no_progress(name: str, done: int, total: int | None) -> None:
    pass


def download_dataset(
    manifest: Manifest,
    dest: Path | None = None,
    *,
    mirror: str | None = None,
    from_folder: Path | None = None,
    force: bool = False,
    progress: Progress = _no_progress,
) -> Path:
    """Fetches and extracts a data set; returns its folder.

    The folder appears when everything in it is there and checked, not before. A download that was
    interrupted is resumed. A folder that already holds the data set is left as it is.

    Args:
        dest: the folder to make; ``None``: ``default_folder``.
        mirror: fetch from below this address instead.
        from_folder: take the files from this folder instead.
    """
    dest = user_path(dest or default_folder(manifest.name)).absolute()
    if not force and _settled(dest, manifest):
        return dest
    if mirror is not None:
        manifest = manifest.with_mirror(mirror)
    store = dest.parent / f".{dest.name}.download"
    with only_process(store, _WORKING):
        if from_folder is None:
            sources = [_remote(file, store, progress, manifest.homepage) for file in manifest.files]
        else:
            sources = [_local(file, user_path(from_folder)) for file in manifest.files]
        for left in dest.parent.glob(f".{dest.name}.staging-*"):  # of downloads that were killed
            shutil.rmtree(left, ignore_errors=True)
        with new_folder(dest) as staging:
            _fill(staging, manifest, sources, progress)
        if from_folder is None:
            shutil.rmtree(store, ignore_errors=True)
    return dest


def _settled(dest: Path, manifest: Manifest) -> bool:
    """Says if ``dest`` already holds the data set; raises if it holds something else."""
    if not dest.exists() or (dest.is_dir() and not any(dest.iterdir())):
        return False
    receipt = read_receipt(dest)
    other = "Choose another folder with --dest, or replace it with --force."
    if receipt is None or receipt["dataset"] != manifest.name:
        what = "something else" if receipt is None else f"the data set {receipt['dataset']!r}"
        raise FileExistsError(f"{dest} exists and holds {what} than {manifest.name!r}. {other}")
    if problems := verify_dataset(dest, quick=True):
        raise FileExistsError(
            f"{dest} holds a damaged copy of {manifest.name!r} ({problems[0]}). {other}"
        )
    return True


def _local(file: DataFile, folder: Path) -> _Source:
    path = folder / file.name
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no {file.name}, which this data set is made of.")
    digest = sha256_of(path)
    if file.sha256 and digest != file.sha256:
        raise DownloadError(f"{path} has the wrong checksum; expected sha256 {file.sha256}.")
    return _Source(file, path, str(path), digest)


def _remote(file: DataFile, store: Path, progress: Progress, homepage: str) -> _Source:
    path, origin = store / file.name, store / f"{file.name}.from"
    if path.is_file():  # whole: fetch() gives the name only then
        known, digest = origin.read_text() if origin.is_file() else "", sha256_of(path)
        if known in file.urls and file.sha256 in ("", digest):
            return _Source(file, path, known, digest)
        path.unlink()
    try:
        url = fetch(file, store, progress)
    except DownloadError as error:
        raise DownloadError(
            f"{error}\nOther ways: --mirror URL of a server that holds {file.name}; or get it from "
            f"{homepage or 'elsewhere'} yourself and use --from-folder DIR."
        ) from error
    origin.write_text(url)
    return _Source(file, path, url, sha256_of(path))


def _fill(staging: Path, manifest: Manifest, sources: list[_Source], progress: Progress) -> None:
    for file, path, origin, _ in sources:
        if path.suffix != ".zip":
            require_space(staging, path.stat().st_size)
            shutil.copyfile(path, staging / file.name)
            continue
        try:
            unpack(path, staging, progress)
        except DownloadError:
            if origin != str(path) and not file.sha256:
                path.unlink()  # nothing vouches for it: the next run fetches it anew
            raise
    missing = [path for path in manifest.expect if not (staging / path).exists()]
    if missing:
        raise DownloadError(f"The files of {manifest.name!r} came, but hold no {missing[0]}.")
    known = {staging / source.file.name: source.digest for source in sources}
    receipt = {
        "dataset": manifest.name,
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "archives": [
            {
                "name": file.name,
                "origin": origin,
                "bytes": path.stat().st_size,
                "sha256": digest,
                "sha256_was_known": bool(file.sha256),
            }
            for file, path, origin, digest in sources
        ],
        "files": {
            path.relative_to(staging).as_posix(): [
                path.stat().st_size,
                known.get(path) or sha256_of(path),
            ]
            for path in sorted(staging.rglob("*"))
            if path.is_file()
        },
    }
    write_json(staging / RECEIPT, receipt)


def unpack(archive: Path, staging: Path, progress: Progress) -> None:
    """Extracts a zip archive, unless it is damaged or encrypted, or a path in it leads out of the folder."""
    try:
        with zipfile.ZipFile(archive) as source:
            members = [member for member in source.infolist() if not member.is_dir()]
            for member in members:
                path = PurePosixPath(member.filename)
                odd = "\\" in member.filename or ":" in path.parts[0] if path.parts else True
                link = stat.S_ISLNK(member.external_attr >> 16)
                if odd or link or path.is_absolute() or ".." in path.parts:
                    raise DownloadError(
                        f"{archive.name} holds {member.filename!r}, which leads out of the data folder "
                        "(or is a link). Nothing was extracted."
                    )
            done, total = 0, sum(member.file_size for member in members)
            require_space(staging, total)
            for member in members:
                source.extract(member, staging)
                done += member.file_size
                progress(f"extracting {archive.name}", done, total)
    except (DownloadError, OSError):
        raise
    except Exception as error:  # the fields of an archive make zipfile raise anything
        raise DownloadError(f"{archive.name} is damaged: {error}.") from error


def read_receipt(folder: Path) -> dict[str, Any] | None:
    """The receipt of a data folder, or ``None`` if there is none."""
    path = folder / RECEIPT
    if not path.is_file():
        return None
    try:
        receipt = dict(json.loads(path.read_text(encoding="utf-8")))
        if not {"dataset", "archives", "files"} <= receipt.keys():
            raise ValueError("keys are missing")
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}. Download with --force.") from error
    return receipt


def verify_dataset(
    folder: Path, *, quick: bool = False, progress: Progress = _no_progress
) -> list[str]:
    """Compares a data folder with its receipt; returns what is wrong, one line each."""
    receipt = read_receipt(folder)
    if receipt is None:
        raise FileNotFoundError(
            f"{folder} has no {RECEIPT}: it was not made by `paw data download`, "
            "so there is nothing to compare it with."
        )
    problems = []
    files = receipt["files"]
    for number, (name, (size, digest)) in enumerate(files.items(), start=1):
        path = folder / name
        if not path.is_file():
            problems.append(f"{name}: missing")
        elif path.stat().st_size != size:
            problems.append(f"{name}: {path.stat().st_size:,} bytes, expected {size:,}")
        elif not quick and sha256_of(path) != digest:
            problems.append(f"{name}: changed (sha256 differs)")
        if number % 100 == 0 or number == len(files):
            progress("verifying", number, len(files))
    return problems
