"""The evidence on co-training: the page's table follows from the committed comparisons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files import load
from scipy import stats

from paw_train.reporting.compare.analysis import compare
from paw_train.reporting.compare.grid import load_grid
from paw_train.reporting.compare.results import read_results
from paw_train.reporting.compare.tables import p_text

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
co_training: Any = load("benchmarks/co_training.py")


def test_the_results_page_holds_the_table_and_the_correlations() -> None:
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    found = co_training.studies()
    assert co_training.table(found) in page
    measured = [study for study in found if study.measures_observations]
    assert co_training.dose_response(measured) in page


def test_the_results_page_holds_the_methods_side_by_side() -> None:
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    part = page.partition("### The methods side by side")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| `")]
    grid = load_grid("methods")
    runs = read_results(co_training.COMPARISONS / "methods.json")
    comparison = compare(grid.baselines(), grid.baseline, runs)
    assert [row[0].strip("`") for row in rows] == [arm.arm for arm in comparison.arms]
    for row, arm in zip(rows, comparison.arms, strict=True):
        assert arm.seeds == (0, 1, 2, 3, 4)
        own = [run.metrics["obs_nll"][-4:] for run in runs if run.arm == arm.arm]
        assert row[2:4] == [f"{100 * arm.before:.1f}", f"{100 * arm.mean:.1f}"]
        assert float(row[-1]) == pytest.approx(np.mean(own), abs=0.005)
        difference = comparison.difference(arm.arm)
        if difference is not None:
            low, high = difference.ci95
            shown = (difference.mean, low, high)
            assert row[4] == "{:+.1f} ({:+.1f} to {:+.1f})".format(*(100 * x for x in shown))
            assert row[5] == p_text(difference)


def test_a_detectable_difference_is_found_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    for count in (3, 5, 10):
        seen = rng.normal(0, 6.0, count)
        shift = co_training.detectable(list(seen))
        trials = rng.normal(shift, seen.std(ddof=1), (40_000, count))
        p = stats.ttest_1samp(trials, 0, axis=1).pvalue
        assert np.mean((p < 0.05) & (trials.mean(1) > 0)) == pytest.approx(
            co_training.POWER, abs=0.01
        )


def test_only_seeds_with_all_three_arms_count(tmp_path: Path) -> None:
    data = json.loads((co_training.COMPARISONS / "smollm2.json").read_text(encoding="utf-8"))
    data["cells"] = [c for c in data["cells"] if (c["arm"], c["seed"]) != ("grpo+echo", 1)]
    (tmp_path / "smollm2.json").write_text(json.dumps(data), encoding="utf-8")
    (study,) = co_training.studies(tmp_path)
    assert study.seeds == [0, 2]
    assert len(study.gain("grpo+paw")) == 2


def test_pictures_are_drawn(tmp_path: Path) -> None:
    co_training.main(["--pictures", str(tmp_path)])
    names = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert set(names) == {f"co-training-{name}.svg" for name in ("differences", "curves", "dose")}
    assert all("<svg" in text for text in names.values())
    for study in co_training.studies():
        assert f"{study.policy}, {len(study.seeds)} seeds" in names["co-training-differences.svg"]
