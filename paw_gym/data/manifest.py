"""Manifests: the files of a data set, and the addresses that serve them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from paw_gym.internals.naming import did_you_mean


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file to fetch."""

    name: str
    urls: tuple[str, ...]
    """tried in order"""
    sha256: str = ""
    """hex digest; empty if none is known, and then the first download's holds"""
    unpack: str = "zip"
    """``zip``: extracted into the data folder; ``none``: kept as it is"""
    about: str = ""

    def __post_init__(self) -> None:
        if self.unpack not in ("zip", "none"):
            raise ValueError(f"{self.name}: unpack is 'zip' or 'none', got {self.unpack!r}.")
        if Path(self.name).name != self.name or self.name in ("", ".", ".."):
            raise ValueError(f"{self.name!r} is not a plain file name.")


@dataclass(frozen=True, slots=True)
class Manifest:
    """A data set."""

    name: str
    title: str
    files: tuple[DataFile, ...]
    homepage: str = ""
    licence: str = ""
    expect: tuple[str, ...] = ()
    """paths below the data folder that must exist afterwards"""
    use: str = ""
    """a line of code that uses the data; ``{folder}`` is the data folder"""

    @classmethod
    def parse(cls, text: str, name: str) -> Manifest:
        """A manifest from the text of a TOML file."""
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"Manifest {name!r} is not valid TOML: {error}") from error
        _check(data, cls, {"title", "files"}, f"Manifest {name!r}")
        files = []
        entries = data.pop("files")
        if not isinstance(entries, list):
            raise ValueError(f"Manifest {name!r}: files is a list of tables, got {entries!r}.")
        for number, entry in enumerate(entries):
            where = f"Manifest {name!r}, file {number}"
            _check(entry, DataFile, {"name", "urls"}, where)
            files.append(DataFile(**{**entry, "urls": tuple(entry["urls"])}))
        data["expect"] = tuple(data.get("expect", ()))
        return cls(name=name, files=tuple(files), **data)

    def with_mirror(self, mirror: str) -> Manifest:
        """The same files, served side by side below another address; only that address is asked."""
        base = mirror.rstrip("/")
        return replace(
            self, files=tuple(replace(f, urls=(f"{base}/{f.name}",)) for f in self.files)
        )


def _check(data: dict[str, Any], cls: type, required: set[str], where: str) -> None:
    if not isinstance(data, dict):
        raise ValueError(f"{where} is a table of keys and values, got {data!r}.")
    known = {f.name for f in fields(cls)} - ({"name"} if cls is Manifest else set())
    for key, value in data.items():
        if key not in known:
            raise ValueError(f"{where}: unknown key {key!r}. {did_you_mean(key, known)}")
        listed = key in ("urls", "expect")
        texts = value if listed and isinstance(value, list) else [None if listed else value]
        if key != "files" and not all(isinstance(text, str) for text in texts):
            form = "a list of texts" if listed else "a text"
            raise ValueError(f"{where}: {key} is {form}, got {value!r}.")
    for key in sorted(required - set(data)):
        raise ValueError(f"{where} lacks {key!r}.")


def dataset_names() -> list[str]:
    folder = resources.files("paw_gym.data") / "manifests"
    return sorted(
        p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml")
    )


def load_manifest(name: str) -> Manifest:
    names = dataset_names()
    if name not in names:
        raise ValueError(f"There is no data set {name!r}. {did_you_mean(name, names)}")
    source = resources.files("paw_gym.data") / "manifests" / f"{name}.toml"
    return Manifest.parse(source.read_text(encoding="utf-8"), name)
