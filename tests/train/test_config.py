"""Settings: what is unknown is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from paw_train.settings import Settings, load_settings, recipe_names


def _recipe(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


def test_overrides_beat_the_recipe_which_beats_the_defaults(tmp_path: Path) -> None:
    path = _recipe(tmp_path, "updates: 7\noptimizer: {lr: 1e-4, minibatches: 3}\n")
    settings = load_settings(path, ["optimizer.lr=2e-5", "world_model.alpha=0.5"])
    assert settings.name == "mine"
    assert settings.updates == 7
    assert settings.optimizer.lr == 2e-5
    assert settings.optimizer.minibatches == 3
    assert settings.world_model.alpha == 0.5
    assert settings.optimizer.weight_decay == Settings().optimizer.weight_decay


def test_world_model_can_be_switched_off(tmp_path: Path) -> None:
    path = _recipe(tmp_path, "world_model: {enabled: off}\n")
    assert load_settings(path).world_model.enabled is False
    assert load_settings(path, ["world_model.enabled=true"]).world_model.enabled is True


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_loads(name: str) -> None:
    assert load_settings(name).name == name
