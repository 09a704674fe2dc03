"""Recipes: inheritance, and every row of the published tables with the published settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from paw_train.config import Settings, load_settings, recipe_names


def _write(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return path


def test_a_recipe_lies_on_its_base_group_by_group(tmp_path: Path) -> None:
    _write(tmp_path, "root", "name: root\nupdates: 7\noptimizer: {lr: 0.5, minibatches: 3}\n")
    _write(tmp_path, "middle", "base: root.yaml\nenv: {kwargs: {a: 1, b: 2}}\n")
    top = _write(
        tmp_path, "top", "base: middle.yaml\noptimizer: {lr: 0.25}\nenv: {kwargs: {b: 3}}\n"
    )
    settings = load_settings(top, ["optimizer.minibatches=4"])
    assert settings.name == "top"  # each recipe's own run, not its base's
    assert settings.updates == 7
    assert (settings.optimizer.lr, settings.optimizer.minibatches) == (0.25, 4)
    assert settings.env.kwargs == {"a": 1, "b": 3}


def test_a_base_may_be_a_recipe_of_the_project(tmp_path: Path) -> None:
    settings = load_settings(_write(tmp_path, "mine", "base: smoke\nupdates: 1\n"))
    assert settings.updates == 1
    assert settings.cloning == load_settings("smoke").cloning


def test_bases_that_lead_in_a_circle_or_nowhere_are_named(tmp_path: Path) -> None:
    first = _write(tmp_path, "first", "base: second.yaml\n")
    _write(tmp_path, "second", "base: first.yaml\n")
    with pytest.raises(ValueError, match="first -> second -> first"):
        load_settings(first)
    with pytest.raises(ValueError, match="smoke"):
        load_settings(_write(tmp_path, "third", "base: smok\n"))


def test_minibatches_follow_from_their_size_where_it_is_given() -> None:
    from paw_train.config import OptimizerSettings
    from paw_train.update import _steps

    sized = OptimizerSettings(minibatches=9, minibatch_size=64)
    assert [_steps(sized, n) for n in (1, 64, 65, 640)] == [1, 1, 2, 10]
    assert _steps(OptimizerSettings(minibatches=9), 640) == 9
    with pytest.raises(ValueError, match="minibatch_size"):
        OptimizerSettings(minibatch_size=0)
