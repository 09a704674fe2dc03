"""Several environments in one run, and that one is a list of length one."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hostile
import numpy as np
import pytest
import torch
from files import measured
from hypothesis import given
from hypothesis import strategies as st
from trajectories import made_up

from paw_gym.internals.files import write_json
from paw_gym.pool import EnvPool
from paw_gym.transition import read_jsonl
from paw_train.algorithms import grpo
from paw_train.algorithms.experience import prepare
from paw_train.algorithms.paw import adaptive_weight
from paw_train.algorithms.pool import collect
from paw_train.evaluation.comparison import as_markdown
from paw_train.evaluation.comparison import collect as collect_results
from paw_train.evaluation.program import settings_of
from paw_train.evaluation.result_folder import evaluate_to_folder
from paw_train.evaluation.statistics import wilson_interval
from paw_train.evaluation.summary import joined
from paw_train.reporting.run.data import load_run
from paw_train.reporting.run.page import result_rows, write_report
from paw_train.settings import (
    AlgorithmSettings,
    ObjectiveSettings,
    Settings,
    WorldModelSettings,
    load_settings,
    read_recipe,
)
from paw_train.settings.run import shared_evaluation
from paw_train.training.environments import TrainingEnvironments, divided
from paw_train.training.local import Run, train_from_recipe

LAKE: dict[str, Any] = {
    "id": "paw_gym/ToyText-v0",
    "name": "lake",
    "template": "compact",
    "kwargs": {"max_steps": 6, "num_tasks": 20},
}
SOKOBAN: dict[str, Any] = {
    "id": "paw_gym/Sokoban-v0",
    "template": "compact",
    "mode": "conversation",
    "kwargs": {"size": 5, "boxes": 1, "max_steps": 3, "num_tasks": 20},
    "max_return": 4.0,
}


FEW = ["tracking=[]", "evaluation.tasks=3", "evaluation.selection_tasks=2"]


def _settings(*more: str) -> list[str]:
    return [f"env={json.dumps([LAKE, SOKOBAN])}", *FEW, *more]


def test_a_list_of_environments_is_recorded_and_read_again() -> None:
    settings = load_settings("smoke", _settings("env.lake.weight=2"))
    assert Settings.read(json.loads(json.dumps(settings.to_dict()))) == settings
    lake, sokoban = settings.members
    assert (lake.name, lake.weight) == ("lake", 2.0)
    assert (sokoban.name, sokoban.weight, sokoban.env.mode) == ("sokoban", 1.0, "conversation")
    assert (sokoban.selection_split, sokoban.split) == ("valid", "test"), "those of the environment"


def test_one_environment_of_a_list_is_chosen_by_name() -> None:
    chosen = load_settings("many_worlds", ["env=frozen_lake", "env.kwargs.size=5"])
    assert not chosen.mixed
    assert chosen.only_env.id == "paw_gym/ToyText-v0"
    assert chosen.only_env.kwargs == {"game": "frozen_lake", "max_steps": 30, "size": 5}
    assert (chosen.evaluation.selection_split, chosen.evaluation.split) == ("valid", "test")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["env.leke.weight=2"], "Did you mean 'lake'"),
        (
            ["env.lake.weigth=2"],
            "Unknown setting 'env.lake.weigth'. Did you mean 'env.lake.weight'",
        ),
        (["env.lake.weight=0"], "env.lake.weight is above 0"),
        (["env.lake=1"], "env.lake is one of several environments"),
        (["env.lake.name=Lake/1"], "lower-case letters"),
        (["env.lake.name=sokoban"], "two environments are called 'sokoban'"),
        (["env=[]"], "the list of environments is empty"),
        (["engine=openrlhf"], "engine=openrlhf trains one environment"),
        (["world_model_learning.method=sft"], "world_model_learning learns"),
    ],
)
def test_what_does_not_fit_a_list_is_refused(changes: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("[", "\\[")):
        load_settings("smoke", _settings(*changes))


def test_what_takes_one_environment_says_how_to_choose_it(tmp_path: Path) -> None:
    settings = load_settings("smoke", _settings())
    with pytest.raises(ValueError, match=r"several \(lake, sokoban\): choose one with env=NAME"):
        _ = settings.only_env
    recorded = settings.to_dict()
    (tmp_path / "config.json").write_text(json.dumps(recorded), encoding="utf-8")
    chosen = settings_of(tmp_path, None, ["env=sokoban"])
    assert (chosen.only_env.id, chosen.evaluation.split) == (SOKOBAN["id"], "test")
    panel = "sokoban/test"
    assert settings_of(tmp_path, panel, ["env=sokoban"]).only_env.id == SOKOBAN["id"]
    with pytest.raises(ValueError, match=r"several environments \(lake, sokoban\)"):
        settings_of(tmp_path, panel, [])


@given(
    st.integers(0, 60),
    st.lists(st.floats(0.01, 100), min_size=1, max_size=6),
    st.one_of(st.none(), st.integers(0, 2**32)),
)
def test_shares_add_up_and_are_rounded_weights(
    count: int, weights: list[float], seed: int | None
) -> None:
    shares = divided(count, weights, None if seed is None else np.random.default_rng(seed))
    assert sum(shares) == count
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share - count * weight / sum(weights)) < 1 + 1e-6


def test_each_environment_has_its_own_largest_return() -> None:
    trajectories = made_up(False)  # two groups of two episodes
    for trajectory in trajectories:
        trajectory.environment = "ab"[trajectory.episode.group]
    pool = collect(trajectories)
    terms = {"a": 10.0, "b": 40.0}
    algorithm = AlgorithmSettings(normalize=False)
    rest = (algorithm, ObjectiveSettings(kl_coef=0.0), WorldModelSettings())
    found = prepare(pool, *rest, terms)
    means = torch.stack([pool.returns[pool.group == g].mean() for g in (0, 1)])
    assert torch.allclose(found.plan.lambdas, 1 - means / torch.tensor([10.0, 40.0]))
    assert found.metrics["lambda_mean/b"] == pytest.approx(adaptive_weight(means[1:], 40.0).item())
    raw = grpo(pool.returns, pool.group, False)[pool.episode]
    assert torch.allclose(found.advantages, raw.float())
    batch = prepare(pool, AlgorithmSettings(), *rest[1:], terms)
    own = torch.stack([pool.returns[pool.group == g].std() for g in (0, 1)])  # one group each
    assert torch.allclose(batch.advantages, (raw / own[pool.group[pool.episode]]).float())


def _result(name: str, wins: list[bool]) -> dict[str, Any]:
    rate, interval = sum(wins) / len(wins), list(wilson_interval(sum(wins), len(wins)))
    counts = ("errors", "unplayed", "seconds", "model_calls")
    means = ("mean_steps", "invalid_rate", "truncated_rate", "refused_rate", "mean_reward")
    return dict.fromkeys((*counts, *means), 0) | {
        "panel": f"{name}/test/{len(wins)}", "panel_hash": name * 8, "env_id": name,
        "agent": "policy", "model": "m", "n": len(wins), "tasks": len(wins), "complete": True,
        "success_rate": rate, "ci95": interval, "score": {"mean": rate, "ci95": interval},
        "successes": wins,
    }  # fmt: skip


def test_every_environment_counts_the_same_in_a_joined_result() -> None:
    small, large = _result("a", [True] * 4), _result("b", [False] * 30 + [True] * 10)
    found = joined({"a": small, "b": large})
    assert found["success_rate"] == pytest.approx((1.0 + 0.25) / 2)
    low, high = found["ci95"]
    assert low < found["success_rate"] < high
    assert found["by_type"]["b"]["n"] == 40 and found["n"] == 44
    assert "successes" not in found, "pairs of tasks would weigh the larger panel more"
    assert found["panel_hash"] != joined({"b": large, "a": small})["panel_hash"]


def test_a_joined_result_of_a_run_is_a_row_of_the_table(tmp_path: Path) -> None:
    run = tmp_path / "mine"
    run.mkdir()
    parts = {"a": _result("a", [True] * 4), "b": _result("b", [False] * 4)}
    write_json(run / "eval_after.json", joined(parts))
    (row,) = collect_results([run / "eval_after.json"])
    assert [row] == collect_results([run])
    line = "| mine | after training | a/test/4 + b/test/4 | 8 | 50.0 % |"
    assert line in as_markdown([row])


def _train(out: Path, env: Any, *more: str) -> Path:
    out.mkdir(exist_ok=True)
    recipe = out / "worlds.yaml"
    settings = read_recipe("smoke") | {"env": env}  # a base would add to a group
    recipe.write_text(json.dumps(settings), encoding="utf-8")
    return train_from_recipe(str(recipe), [*FEW, f"out={out}", *more], quiet=True)


def test_one_environment_is_a_list_of_length_one(tmp_path: Path) -> None:
    short = ["updates=1", "evaluation.every=1"]
    listed = _train(tmp_path / "list", [LAKE], *short)
    group = {key: value for key, value in LAKE.items() if key != "name"}
    splits = ["evaluation.split=test", "evaluation.selection_split=valid"]
    single = _train(tmp_path / "group", group, *short, *splits)
    weights = "checkpoints/latest/model/model.safetensors"
    assert (listed / weights).read_bytes() == (single / weights).read_bytes()
    (of_list,), (of_group,) = measured(listed), measured(single)
    assert {k: v for k, v in of_list.items() if "/" not in k} == of_group
    assert of_list["success_rate/lake"] == of_group["success_rate"]


def test_a_run_of_two_environments_shows_each(tmp_path: Path) -> None:
    more = ["updates=2", "rollout.groups=3", "env.lake.weight=2", "record.every=1"]
    run = _train(tmp_path, [LAKE, SOKOBAN], *more)
    first = measured(run)[0]
    assert {"reward_mean/lake", "reward_mean/sokoban", "lambda_mean/lake"} <= set(first)
    played = list(read_jsonl(run / "rollouts" / "000001.jsonl"))
    sizes = Counter((e.env_id, e.group) for e in played)
    assert {(name, n) for (name, _), n in sizes.items()} == {(LAKE["id"], 2), (SOKOBAN["id"], 2)}
    assert {e.context_mode for e in played if e.env_id == SOKOBAN["id"]} == {"conversation"}
    rows = [row.label for row in result_rows(load_run(run))]
    assert rows == ["all", "lake", "sokoban"]
    page = write_report(run).read_text(encoding="utf-8")
    assert "Before and after, by environment" in page and "By environment" in page
    (check, *_) = (run / "validation.jsonl").read_text().splitlines()
    assert {"success_rate/lake", "success_rate/sokoban"} <= set(json.loads(check))
    result = json.loads((run / "eval_after.json").read_text())
    assert result["by_environment"]["sokoban"]["panel"] == "paw_gym/Sokoban-v0/test/3"


def test_a_shared_evaluation_names_the_run_that_takes_it(tmp_path: Path) -> None:
    settings = load_settings("smoke", _settings(f"warm_starts={tmp_path / 'warm'}", "name=second"))
    shared = shared_evaluation(settings)
    assert shared is not None
    parts = {"lake": {"model": "first"}, "Sokoban-v0": {"model": "first"}}
    evaluate_to_folder(shared, {"model": "first", "by_environment": parts}, [])
    taker: Any = SimpleNamespace(settings=settings, folder=tmp_path)
    Run._evaluate(taker, "before")
    found = json.loads((tmp_path / "eval_before.json").read_text())
    assert [found["model"], *(p["model"] for p in found["by_environment"].values())] == [
        "second"
    ] * 3


def test_an_environment_without_a_group_to_learn_from_weighs_no_more_for_it() -> None:
    """Dynamic sampling that finds nothing to replace a group with adds nothing either."""
    first_move = {"kwargs": {"max_steps": 1, "num_tasks": 8}, "invalid_penalty": 0.0}
    # nobody is across the lake by one step
    worlds = [LAKE | first_move, {"name": "boxes", "id": SOKOBAN["id"], **first_move}]
    rollout = {"groups": 4, "group_size": 2, "max_response_tokens": 2}
    settings = Settings.read(
        {"env": worlds, "algorithm": {"dynamic_sampling": 2}, "rollout": rollout}
    )
    sampled, kept = TrainingEnvironments(settings).sample(
        hostile.tiny_policy(), 0, torch.Generator().manual_seed(0), lambda running, all_: None
    )
    assert len(sampled) == 3 * 8
    assert Counter(t.environment for t in kept) == {"lake": 4, "boxes": 4}


def test_the_tasks_of_an_environment_do_not_depend_on_the_others() -> None:
    def drawn(pool: EnvPool) -> list[str]:
        return [slot.episode.episode_id for slot in pool.reset()]

    settings = load_settings("smoke", _settings("rollout.groups=4"))
    heavier = load_settings("smoke", _settings("rollout.groups=4", "env.sokoban.weight=1.0001"))
    first, second = TrainingEnvironments(settings), TrainingEnvironments(heavier)
    for environments in (first, second):
        for pool in environments.pools:
            pool.groups = 2
    own = [drawn(pool) for pool in first.pools]
    assert own == [drawn(pool) for pool in second.pools]
    assert own[0] != own[1]
    saved = first.state_dict()
    following = [drawn(pool) for pool in first.pools]
    first.load_state_dict(saved)
    assert [drawn(pool) for pool in first.pools] == following
