"""Python programs in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from configparser import ConfigParser
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def python(
    *arguments: str | Path, folder: Path | None = None, path: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs ``python ARGUMENTS`` with this clone's packages, and those below ``path`` before them."""
    places = os.pathsep.join(map(str, filter(None, (path, ROOT))))
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": places, **variables},
        capture_output=True,
        text=True,
    )


def said(*arguments: str | Path, **given: Any) -> str:
    """What it writes to standard output; a program that fails fails the test."""
    done = python(*arguments, **given)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def install(folder: Path, name: str, code: str, points: Mapping[str, Mapping[str, str]]) -> None:
    """Puts a package as pip leaves it into a folder: its module, and its entry points by group."""
    module = name.replace("-", "_")
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    parser = ConfigParser(interpolation=None)
    parser.read_dict(points)
    with open(info / "entry_points.txt", "w") as file:
        parser.write(file)
