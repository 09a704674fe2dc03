"""Settings that had another name: old records keep their meaning, and an old name in use is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from paw_train.evaluation.program import settings_of  # noqa: E402
from paw_train.reporting.compare.grid import load_grid  # noqa: E402
from paw_train.reporting.compare.results import (  # noqa: E402
    known_results,
    read_grid,
    read_results,
)
from paw_train.reporting.run.run_data import load_run  # noqa: E402
from paw_train.settings import Settings, load_settings  # noqa: E402
from paw_train.settings.renamed import read_recorded  # noqa: E402
from paw_train.training.local import claim_folder  # noqa: E402
from paw_train.viewer.measurements import Measurements  # noqa: E402

COMPARISONS = Path(__file__).parents[2] / "benchmarks" / "comparisons"


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    """A run's folder with the settings that an older version recorded for the recipe ``embedded``."""
    folder = tmp_path / "embedded"
    folder.mkdir()
    shutil.copy(Path(__file__).parent / "recorded" / "config.json", folder)
    return folder


def test_an_old_run_is_read_under_todays_names(old_run: Path) -> None:
    world_model = Settings.read(read_recorded(old_run / "config.json")).world_model
    assert (world_model.enabled, world_model.loss, world_model.coef) == (True, "cmae", 0.3)
    assert settings_of(old_run, None, []).world_model == world_model
    assert load_run(old_run).setting("world_model.coef") == 0.3
    assert Measurements(old_run).state()["world_model"]["enabled"] is True


def test_an_old_run_is_continued_and_recorded_anew(old_run: Path) -> None:
    settings = Settings.read(read_recorded(old_run / "config.json"))
    claim_folder(old_run, settings)
    recorded = json.loads((old_run / "config.json").read_text())
    assert "wm" not in recorded["objective"] and recorded["world_model"]["coef"] == 0.3


def test_an_old_run_with_another_coefficient_is_another_run(old_run: Path) -> None:
    settings = Settings.read(read_recorded(old_run / "config.json"))
    other = settings.replace(world_model=settings.world_model.replace(coef=0.4))
    with pytest.raises(ValueError, match=r"first difference: world_model\.coef"):
        claim_folder(old_run, other)


@pytest.mark.parametrize("name", sorted(path.stem for path in COMPARISONS.glob("*.json")))
def test_published_comparisons_belong_to_todays_grids(name: str) -> None:
    path = COMPARISONS / f"{name}.json"
    results, recorded = read_results(path), read_grid(path)
    runs = load_grid(name).with_seeds(recorded.seeds).runs("runs")
    assert len(known_results(runs, results)) == len(results) > 0
    if name.startswith("embedded_wm"):
        assert recorded.arms[0].settings == {"world_model.enabled": False}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("objective.wm.wm=off", r"objective\.wm\.wm is now called world_model\.enabled \(true or"),
        ("objective.wm.coef=1", r"objective\.wm\.coef is now called world_model\.coef\."),
        ("objective.wm.preset=echo", r"objective\.wm\.preset is now called world_model\.preset\."),
        ("objective.wm=off", r"objective\.wm is now called world_model\."),
    ],
)
def test_an_old_name_in_use_is_refused_with_todays(tmp_path: Path, old: str, new: str) -> None:
    with pytest.raises(ValueError, match=new):
        load_settings("smoke", [old])
    grid = tmp_path / "grid.yaml"
    grid.write_text(f"recipe: smoke\narms:\n  a: {{{old.replace('=', ': ')}}}\n")
    with pytest.raises(ValueError, match=f"Arm 'a': .*{new}"):
        load_grid(grid).runs("runs")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("base: smoke\nobjective:\n  wm: {loss: ce}\n")
    with pytest.raises(ValueError, match=r"objective\.wm\.loss is now called world_model\.loss"):
        load_settings(recipe)
