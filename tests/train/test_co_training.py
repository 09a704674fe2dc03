"""The evidence on co-training: the page's table follows from the committed comparisons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files import load
from scipy import stats

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
co_training: Any = load("benchmarks/co_training.py")


def test_the_results_page_holds_the_table_and_the_correlations() -> None:
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    found = co_training.studies()
    assert co_training.table(found) in page
    measured = [study for study in found if study.measures_observations]
    assert co_training.dose_response(measured) in page


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
