"""What the scripts that write a file from something else have in common: write it, or compare."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def write_or_check(about: str | None, files: Mapping[Path, str]) -> int:
    """Writes the files that differ; with ``--check`` only names them.

    Args:
        about: the script's docstring, for ``--help``.
        files: the text of each file.

    Returns:
        The exit status: 1 if ``--check`` found a file that is not current.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing, name what differs")
    check = parser.parse_args().check
    stale = [path for path, text in files.items() if not _holds(path, text)]
    for path in stale:
        print(f"{'not current' if check else 'written'}: {path.relative_to(ROOT)}")
        if not check:
            path.write_text(files[path], encoding="utf-8")
    return 1 if check and stale else 0


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text
