"""The loop as a user runs it, and that it learns."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from files import measured
from small_policies import SMALL, word_policy

from paw_gym import Outcome, Task
from paw_gym.functional import GeneratorEnv
from paw_gym.pool import EnvPool
from paw_gym.wrappers import AgentInterface
from paw_train.algorithms import update
from paw_train.algorithms.experience import prepare
from paw_train.algorithms.pool import collect
from paw_train.evaluation import evaluate_from_args, terminal
from paw_train.evaluation.terminal import Display
from paw_train.metrics import METRICS, NOT_MEASURED
from paw_train.reporting.terminal import RunDisplay
from paw_train.rollouts.rollout import rollout
from paw_train.settings import AlgorithmSettings, ObjectiveSettings, OptimizerSettings
from paw_train.settings.rollout import RolloutSettings
from paw_train.settings.world_model import WorldModelSettings
from paw_train.training import environments, local
from paw_train.training.local import train_from_recipe


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    return train_from_recipe("smoke", [f"out={out}"], quiet=True)


def _lines(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_a_run_leaves_all_its_files(smoke: Path) -> None:
    metrics = _lines(smoke / "metrics.jsonl")
    assert [m["update"] for m in metrics] == [1, 2, 3, 4]
    wanted = {"reward_mean", "success_rate", "policy_loss", "kl", "clip_fraction", "wm_loss",
              "lambda_mean", "clipped_share", "selected_share", "entropy_threshold", "obs_nll",
              "grad_norm", "grad_norm_policy", "grad_norm_wm", "lr"}  # fmt: skip
    assert all(wanted <= set(m) <= NOT_MEASURED | set(METRICS) for m in metrics)
    assert metrics[0]["kl"] < 1e-3  # the reference is where it starts; two steps move little
    assert all(0.74 < m["selected_share"] <= 0.80 for m in metrics)
    assert [v["update"] for v in _lines(smoke / "validation.jsonl")] == [0, 2, 4]
    for name in ("eval_before.json", "eval_after.json"):
        result = json.loads((smoke / name).read_text())
        assert result["n"] == 6
        assert sum(part["n"] for part in result["by_type"].values()) == 6
    assert "report.html" in {p.name for p in smoke.iterdir()}
    assert list((smoke / "tensorboard").iterdir())


@pytest.mark.slow
def test_same_seed_same_run_and_measuring_does_not_disturb_it(smoke: Path, tmp_path: Path) -> None:
    again = train_from_recipe(
        "smoke", [f"out={tmp_path}", "optimizer.measure_gradients=false"], quiet=True
    )
    gradients = {"grad_norm_policy", "grad_norm_wm"}
    plain = [{k: v for k, v in line.items() if k not in gradients} for line in measured(smoke)]
    assert plain == measured(again)


@pytest.mark.slow
def test_eval_of_a_run_and_of_the_ends_of_the_scale(smoke: Path, tmp_path: Path) -> None:
    few = ["evaluation.tasks=6", "env.kwargs={}"]
    trained = json.loads(evaluate_from_args(str(smoke), few, str(tmp_path / "a")).read_text())
    expert = json.loads(evaluate_from_args("expert", few, str(tmp_path / "b")).read_text())
    random = json.loads(evaluate_from_args("random", few, str(tmp_path / "c")).read_text())
    assert trained["panel_hash"] == expert["panel_hash"] == random["panel_hash"]
    assert expert["success_rate"] > 0.8
    assert random["success_rate"] <= expert["success_rate"]


@pytest.mark.slow
def test_equal_settings_share_a_warm_start_and_others_do_not(smoke: Path, tmp_path: Path) -> None:
    shared = [f"out={tmp_path}", f"warm_starts={tmp_path / 'warm'}", "updates=1"]
    first = train_from_recipe("smoke", [*shared, "name=first"], quiet=True)
    made = sorted((tmp_path / "warm").iterdir())
    (first / "warmstart.jsonl").unlink()
    plain = train_from_recipe(
        "smoke", [*shared, "name=plain", "world_model.enabled=false"], quiet=True
    )
    assert not (plain / "warmstart.jsonl").exists()  # nothing was cloned
    assert sorted((tmp_path / "warm").iterdir()) == made
    assert (plain / "eval_before.json").exists()
    # what is shared is what each would have made itself, whatever it learns from the same rollout
    own, one, other = (_lines(run / "metrics.jsonl")[0] for run in (smoke, first, plain))
    assert own["reward_mean"] == one["reward_mean"] == other["reward_mean"]
    assert "wm_loss" not in other
    assert other["obs_nll"] > 0
    train_from_recipe("smoke", [*shared, "name=third", "seed=1"], quiet=True)
    assert len(list((tmp_path / "warm").iterdir())) == 2 * len(made)


@pytest.mark.slow
def test_the_best_score_chooses_the_checkpoint_where_partial_success_pays(tmp_path: Path) -> None:
    run = train_from_recipe(
        "smoke",
        [f"out={tmp_path}", "updates=2", "env.id=paw_gym/WebShop-v0", "env.reward=environment",
         "env.kwargs={max_steps: 6, num_products: 64}", "env.invalid_penalty=0", "cloning.steps=60",
         "rollout.max_response_tokens=24", "rollout.max_context_tokens=3000", "evaluation.every=1",
         "evaluation.split=test", "evaluation.selection_split=valid"],
        quiet=True,
    )  # fmt: skip
    start, *checks = _lines(run / "validation.jsonl")
    assert start["update"] == 0
    scores = [v["score"] for v in checks]
    best = torch.load(run / "checkpoints" / "best" / "state.pt", weights_only=True)
    assert scores[best["update"] - 1] == max(scores)
    # the environment's own reward, not ten for a full success
    result = json.loads((run / "eval_after.json").read_text())
    assert result["mean_reward"] == pytest.approx(result["score"]["mean"])


@pytest.mark.slow
def test_no_stage_changes_what_another_has_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: list[tuple[str, Any, bytes]] = []

    def watch(owner: Any, name: str, pick: Callable[[Any], Any] = lambda found: found) -> None:
        make = getattr(owner, name)

        def made(*args: Any, **kwargs: Any) -> Any:
            found = make(*args, **kwargs)
            handed.append((name, pick(found), pickle.dumps(pick(found))))
            return found

        monkeypatch.setattr(owner, name, made)

    watch(AgentInterface, "step", lambda found: found[-1]["transition"])
    watch(environments, "rollout")
    watch(environments.TrainingEnvironments, "sample")
    for name in ("leave_out", "collect", "prepare"):
        watch(local, name)
    for name in ("minibatches", "collated"):
        watch(update, name)
    changes = [f"out={tmp_path}", "updates=2", "evaluation.tasks=0", "algorithm.dynamic_sampling=2"]
    train_from_recipe("smoke", changes, quiet=True)
    assert len({name for name, _, _ in handed}) == 8
    assert [name for name, made, before in handed if pickle.dumps(made) != before] == []


def test_a_stage_says_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "LINE_EVERY", 0.0)
    with Display().task("expert episodes", 2) as advance:
        advance(1, "10 steps")
        advance(2, "20 steps")
    assert capsys.readouterr().out.splitlines() == [
        "expert episodes: 1 of 2, 10 steps", "expert episodes: 2 of 2, 20 steps",
        "expert episodes: done",
    ]  # fmt: skip


def test_an_updates_own_line_stands_for_its_progress(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    rates = ("success_rate", "reward_mean", "steps_mean", "invalid_rate", "refused_rate")
    metrics = dict.fromkeys((*rates, "seconds_rollout", "seconds_train"), 1.0)
    with RunDisplay().updates(2) as show:
        for number in (1, 2):
            now[0] += 31.0
            show({**metrics, "update": number})
            now[0] += 1.0
            show.learning(number)
        now[0] += 30.0
        show.learning(2)
    starts = [" ".join(line.split()[:2]) for line in capsys.readouterr().out.splitlines()]
    assert starts == ["update 1", "update 2", "training: 2"]


COLOURS = ("red", "green", "blue")


def _play(task, rng):  # type: ignore[no-untyped-def]
    """Two turns; the second answer pays when it is green. What is seen differs by chance."""
    yield Outcome("look.")
    answer = yield Outcome(f"see {COLOURS[int(rng.integers(3))]}.")
    won = answer == "green"
    yield Outcome("good." if won else "bad.", terminated=True, success=won)


class _FreeForm(AgentInterface):
    """Takes the response itself as the action: tags are beside the point here."""

    def step(self, action: str):  # type: ignore[no-untyped-def]
        return super().step(f"<action>{action.split()[0] if action.split() else ''}</action>")


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "minibatches"), [("conversation", 1), ("window", 2)])
def test_reward_rises_and_the_world_becomes_predictable(mode: str, minibatches: int) -> None:
    words = [f"look. see good. bad. {' '.join(COLOURS)}\ntask: name it.", *COLOURS, "see"]
    policy = word_policy(words, **SMALL)
    pool = EnvPool(
        lambda: _FreeForm(
            GeneratorEnv(_play, [Task("0", "name it.")], 3),
            mode=mode, template="compact", success_reward=1.0, invalid_penalty=0.0,
        ),
        groups=4, group_size=16, seed=0,
    )  # fmt: skip
    objective = ObjectiveSettings(kl_coef=0.0, log_observations=True)
    world_model = WorldModelSettings(loss="ce", alpha=1.0)
    optimizer = OptimizerSettings(lr=3e-3, minibatches=minibatches)
    updater = update.Updater(policy, None, optimizer, objective, world_model, 1.0, 60)
    settings = RolloutSettings(max_response_tokens=1)
    rewards, nlls = [], []
    for number in range(60):
        played = rollout(policy, pool, settings, torch.Generator().manual_seed(number))
        rewards.append(np.mean([t.episode.total_reward for t in played]))
        experience = prepare(collect(played), AlgorithmSettings(), objective, world_model, 1.0)
        nlls.append(updater.step(experience.rows, number, number)["obs_nll"])
    assert np.mean(rewards[:5]) < 0.3
    assert np.mean(rewards[-5:]) > 0.8
    assert np.mean(nlls[-5:]) < 0.5 * np.mean(nlls[:5])
