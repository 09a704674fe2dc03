"""Names that other packages add to: by decorator, and by entry points that load when asked for."""

from __future__ import annotations

import sys
from pathlib import Path, PurePosixPath

import pytest

from paw_gym.registry import Registry


@pytest.fixture
def registry() -> Registry[object]:
    return Registry("shape", "paw_tests.shapes", {"path": "pathlib:PurePosixPath"})


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package that announces a shape, and one that cannot be imported."""
    (tmp_path / "round_things.py").write_text("circle = 'a circle'\n")
    info = tmp_path / "round_things-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: round-things\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[paw_tests.shapes]\ncircle = round_things:circle\nbroken = round_things:nothing\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_own_names_are_imported_when_asked_for(registry: Registry[object]) -> None:
    assert registry.names() == ["path"]
    assert registry["path"] is PurePosixPath


def test_a_decorator_adds_and_gives_back(registry: Registry[object]) -> None:
    @registry.register("square")
    def square() -> int:
        return 4

    assert registry["square"] is square and square() == 4
    assert "square" in registry and registry.names() == ["path", "square"]


def test_another_package_is_loaded_by_name_only(registry: Registry[object], package: Path) -> None:
    assert registry.names() == ["broken", "circle", "path"]
    assert "round_things" not in sys.modules
    assert registry["circle"] == "a circle"


def test_a_broken_package_is_named(registry: Registry[object], package: Path) -> None:
    with pytest.raises(
        ImportError, match=r"shape 'broken' of round-things .*'round_things:nothing'"
    ):
        registry["broken"]


def test_an_unknown_name_offers_the_nearest(registry: Registry[object]) -> None:
    with pytest.raises(ValueError, match="no shape 'pat'. Did you mean 'path'"):
        registry["pat"]


@pytest.mark.parametrize("name", ["path", "square"])
def test_a_taken_name_is_refused(registry: Registry[object], name: str) -> None:
    if name == "square":
        registry.add("square", object())
    with pytest.raises(ValueError, match=f"There is a shape '{name}' already"):
        registry.add(name, object())


def test_a_reloaded_module_may_add_its_own_again(registry: Registry[object]) -> None:
    def made() -> object:
        def square() -> int:
            return 4

        return square

    first, again = made(), made()
    registry.add("square", first)
    assert registry.add("square", again) is again
    assert registry["square"] is again
