"""The arithmetic of the credit benchmark, on steps whose true advantage is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files import load

pytest.importorskip("torch")

credit: Any = load("benchmarks/credit_estimates.py")


def steps(*rewards: float, state: str = "s", value: float = 0.0) -> Any:
    return credit.Steps(
        list(rewards), [f"{state}{i}" for i in range(len(rewards))], [value] * len(rewards), 10
    )


def coin(rng: np.random.Generator, p: float, count: int) -> list[float]:
    return [float(x) for x in rng.random(count) < p]


def measured(seed: int, good: bool) -> Any:
    """A step of which half of the actions succeed always and half never: V = 1/2, A = +-1/2.

    The success comes one step later; the critic knows the value of every state.
    """
    rng = np.random.default_rng(seed)
    q = 1.0 if good else 0.0
    episodes = [credit.Steps([0.0, r], ["s0", f"s{r}"], [0.5, r], 10) for r in coin(rng, 0.5, 40)]
    episodes[0] = credit.Steps([0.0, q], ["s0", f"s{q}"], [0.5, q], 10)
    future = credit.Steps([q], [f"s{q}"], [q], 5)
    target = credit.Target(0, 0, coin(rng, 0.5, 400), [q] * 400, [future] * 32, 10.0)
    return credit.Measured(episodes, [target])


@pytest.fixture(scope="module")
def tasks() -> list[Any]:
    return [measured(seed, seed % 2 == 0) for seed in range(30)]


@pytest.mark.parametrize("method", credit.methods([8], [4]), ids=lambda m: m.title)
def test_estimators_find_the_advantage_of_the_only_choice_there_is(tasks: Any, method: Any) -> None:
    found = credit.summary(tasks, method, 32, seed=0, resamples=50)
    assert found["steps"] == 30
    # three siblings alone as a baseline leave sqrt(3 / 4)
    assert found["correlation"][0] > 0.8
    # a group's mean, its own episode included, takes 1/8 off; GiGPO and tree_grpo average with it
    assert found["bias"][0] < 0.1
    # and are all like the step's own outcome once in eight times
    assert found["sign_errors"][0] <= (0.15 if method.name == "vineppo" else 0.02)
    low, high = found["correlation"][1:]
    assert low <= found["correlation"][0] <= high
    if "GAE" in method.name:
        assert found["variance"][0] == 0


def test_what_comes_before_a_step_blurs_episode_level_estimates_only() -> None:
    """The first step succeeds by chance; the second, the target, decides nothing."""
    rng = np.random.default_rng(0)
    tasks = []
    for _ in range(30):
        first = coin(rng, 0.5, 40)
        episodes = [credit.Steps([r, 0.0], ["a", f"b{r}"], [0.5, 0.0], 10) for r in first]
        target = credit.Target(0, 1, [0.0] * 50, [0.0] * 50, [steps()] * 16, 10.0)
        tasks.append(credit.Measured(episodes, [target]))
    by_name = {m.name: credit.summary(tasks, m, 16, 0, 20) for m in credit.methods([8], [4])}
    assert by_name["vineppo"]["bias"][0] == 0
    assert by_name["vineppo"]["variance"][0] == 0
    assert by_name["GRPO"]["bias"][0] > 0.3
    assert by_name["GRPO"]["sign_errors"][0] is None, "no step has an advantage to get wrong"


def test_branches_cost_tokens_for_the_steps_they_add() -> None:
    task = measured(0, True)
    plain, branched = credit.methods([8], [4])[0], credit.methods([8], [4])[-1]
    assert credit.tokens_a_step(task, task.targets[0], plain) == 5.0
    # a continuation of the first state is as long as an episode: as many tokens a step
    assert credit.tokens_a_step(task, task.targets[0], branched) == 5.0
    assert credit.tokens_a_group(task, task.targets[0], plain) == 8 * 10.0
    assert credit.tokens_a_group(task, task.targets[0], branched) == 8 * (10.0 + 3 * 10.0)


def test_the_picture_shows_every_method(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    methods = credit.methods([4, 8], [2, 4])
    tasks = [measured(seed, good) for seed in range(4) for good in (True, False)]
    rows = [credit.summary(tasks, method, 16, 0, 20) for method in methods]
    (tmp_path / "result.json").write_text(json.dumps({"methods": rows}))
    figure = load("benchmarks/credit_figure.py")
    texts = []
    for name in ("first.svg", "second.svg"):
        figure.main([str(tmp_path / "result.json"), str(tmp_path / name)])
        texts.append((tmp_path / name).read_text())
    assert all(f">{method.name}</text>" in texts[0] for method in methods)
    assert texts[0] == texts[1], "the same numbers, the same file"


def test_too_few_replicates_are_an_error() -> None:
    task = measured(0, True)
    with pytest.raises(ValueError, match="No step has two replicates"):
        credit.summary([task], credit.methods([8], [4])[0], 1, 0)
