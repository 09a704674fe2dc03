"""Writes the list of modules in ``docs/code.md`` from the first line of each module's docstring.

    python scripts/code_map.py            # writes the page
    python scripts/code_map.py --check    # writes nothing; exit status 1 if the page is not current

Everything above the marker is written by hand.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "code.md"
MARKER = "<!-- Below: written by scripts/code_map.py from the docstrings of the modules. -->\n"
PACKAGES = ("paw_gym", "paw_train", "env_servers")


def summary(module: Path) -> str:
    """The first sentence of a module's docstring, for a cell of a table."""
    text = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].rstrip(".").replace("|", "\\|")


def folders(package: Path) -> Iterator[Path]:
    """The package and the folders below it that hold modules, each before those inside it."""
    yield package
    for inner in sorted(package.iterdir()):
        if inner.is_dir() and any(inner.glob("**/*.py")):
            yield from folders(inner)


def modules() -> str:
    """The generated part of the page."""
    parts = []
    for package in PACKAGES:
        parts.append(f"\n## Every module of `{package}`\n")
        for folder in folders(ROOT / package):
            rows = [f"| `{m.name}` | {summary(m)} |" for m in sorted(folder.glob("*.py"))
                    if m.name not in ("__init__.py", "__main__.py")]  # fmt: skip
            opening = folder / "__init__.py"
            about = summary(opening) if opening.exists() else ""
            if rows or about:
                place = folder.relative_to(ROOT).as_posix()
                parts.append(f"\n### `{place}/`\n\n{about}\n")
            if rows:
                parts.append("\n| module | holds |\n| --- | --- |\n" + "\n".join(rows) + "\n")
    return "".join(parts)


def page() -> str:
    """The whole page as it should be."""
    by_hand = PAGE.read_text(encoding="utf-8").partition(MARKER)[0]
    return by_hand + MARKER + modules()


def files() -> dict[Path, str]:
    """The page, and its text."""
    return {PAGE: page()}


if __name__ == "__main__":
    from generated import write_or_check

    sys.exit(write_or_check(__doc__, files()))
