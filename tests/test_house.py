"""The size of the house, by room: who exceeds a budget removes something, or raises it here."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LINES = {
    "paw_gym": 19_940,
    "paw_train": 30_240,
    "env_servers": 2_800,
    "benchmarks": 3_920,
    "scripts": 900,
    "tests": 32_700,
}
"""most lines of Python"""
PAGES, WORDS, README = 24, 43_200, 110
"""most pages and words in docs/, and lines of the README"""
SETTINGS = 163
"""most rows of docs/settings.md"""
RECIPES, GRIDS = 15, 8
"""most files in recipes/ (the table of published rows among them) and in recipes/compare/"""
MODULES = 16
"""most modules of its own that a folder has"""
SMALL, FEW_LINES = 16, 40
"""most modules of less than so many lines"""
OPENINGS = {"What", "Which", "Whether", "Where", "When"}
"""words that open no docstring: it says what a thing is or does"""


def tracked(*where: str) -> list[Path]:
    """Files that git knows, or the working tree's where there is no git."""
    listed = subprocess.run(
        ["git", "ls-files", *where], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.splitlines() if (path := ROOT / name).is_file()]


def modules(*rooms: str) -> list[Path]:
    return [path for path in tracked(*rooms) if path.suffix == ".py"]


def length(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("room", LINES)
def test_a_room_keeps_its_budget(room: str) -> None:
    assert sum(map(length, modules(room))) <= LINES[room]


def test_docs_and_readme_can_be_read() -> None:
    pages = [path for path in tracked("docs") if path.suffix == ".md"]
    assert len(pages) <= PAGES
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= WORDS
    assert length(ROOT / "README.md") <= README


def test_settings_are_few() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert page.count("\n| `") <= SETTINGS


def test_recipes_are_few() -> None:
    files = [path.parent.name for path in tracked("recipes") if path.suffix == ".yaml"]
    assert files.count("recipes") <= RECIPES
    assert files.count("compare") <= GRIDS
    assert not [path for path in tracked("recipes") if path.stem.endswith("_again")]


def test_folders_are_of_a_size_to_look_through() -> None:
    folders: dict[str, int] = {}
    for path in modules("paw_gym", "paw_train", "env_servers"):
        name = path.parent.relative_to(ROOT).as_posix()
        folders[name] = folders.get(name, 0) + (path.name != "__init__.py")
    assert {k: n for k, n in folders.items() if n > MODULES} == {}


def test_small_modules_are_few() -> None:
    own = modules("paw_gym", "paw_train", "env_servers")
    small = [path for path in own if path.name != "__init__.py" and length(path) < FEW_LINES]
    assert len(small) <= SMALL


def test_docstrings_say_what_a_thing_is_or_does() -> None:
    found = []
    for path in modules("paw_gym", "paw_train", "env_servers", "benchmarks", "scripts"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                words = (ast.get_docstring(node) or "").split(maxsplit=1)
                if words and words[0] in OPENINGS:
                    line = getattr(node, "lineno", 1)
                    found.append(f"{path.relative_to(ROOT)}:{line}: {words[0]}")
    assert found == []
