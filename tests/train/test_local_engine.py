"""The loop as a user runs it: from nothing, from a Hugging Face folder, on files of the official form."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from files import measured

from paw_gym.wrappers import AgentInterface
from paw_train.algorithms import update
from paw_train.evaluation import evaluate_from_args
from paw_train.metrics import METRICS, NOT_MEASURED
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
def test_world_model_off_is_plain_grpo(smoke: Path, tmp_path: Path) -> None:
    plain = train_from_recipe(
        "smoke", [f"out={tmp_path}", "world_model.enabled=false", "updates=1"], quiet=True
    )
    (first,) = _lines(plain / "metrics.jsonl")
    with_wm = _lines(smoke / "metrics.jsonl")[0]
    assert "wm_loss" not in first
    assert first["obs_nll"] > 0
    assert first["reward_mean"] == with_wm["reward_mean"]  # the same rollout, whatever is learned


@pytest.mark.slow
def test_a_finished_run_is_left_alone_and_other_settings_are_refused(smoke: Path) -> None:
    before = (smoke / "metrics.jsonl").stat().st_mtime_ns
    without_effect = ["record.every=3", "optimizer.measure_gradients=false"]
    for changes in ([], without_effect):
        train_from_recipe("smoke", [f"out={smoke.parent}", *changes], quiet=True)
        assert (smoke / "metrics.jsonl").stat().st_mtime_ns == before
    with pytest.raises(ValueError, match=r"optimizer\.lr.*--fresh"):
        train_from_recipe("smoke", [f"out={smoke.parent}", "optimizer.lr=1"], quiet=True)


@pytest.mark.slow
def test_eval_of_a_run_and_of_the_ends_of_the_scale(smoke: Path, tmp_path: Path) -> None:
    few = ["evaluation.tasks=6", "env.kwargs={}"]
    trained = json.loads(evaluate_from_args(str(smoke), few, str(tmp_path / "a")).read_text())
    expert = json.loads(evaluate_from_args("expert", few, str(tmp_path / "b")).read_text())
    random = json.loads(evaluate_from_args("random", few, str(tmp_path / "c")).read_text())
    assert trained["panel_hash"] == expert["panel_hash"] == random["panel_hash"]
    assert expert["success_rate"] > 0.8
    assert random["success_rate"] <= expert["success_rate"]
    for key in ("panel", "env_id", "agent", "model", "n", "success_rate", "ci95", "by_type",
                "fingerprint", "settings"):  # fmt: skip
        assert key in expert


@pytest.mark.slow
def test_equal_settings_share_a_warm_start_and_others_do_not(smoke: Path, tmp_path: Path) -> None:
    shared = [f"out={tmp_path}", f"warm_starts={tmp_path / 'warm'}", "updates=1"]
    first = train_from_recipe("smoke", [*shared, "name=first"], quiet=True)
    made = sorted((tmp_path / "warm").iterdir())
    (first / "warmstart.jsonl").unlink()
    second = train_from_recipe(
        "smoke", [*shared, "name=second", "world_model.enabled=false"], quiet=True
    )
    assert not (second / "warmstart.jsonl").exists()  # nothing was cloned
    assert sorted((tmp_path / "warm").iterdir()) == made
    for name in ("metrics.jsonl", "eval_before.json"):
        assert (second / name).exists()
    # what is shared is what each would have made itself
    own = _lines(smoke / "metrics.jsonl")[0]
    for run in (first, second):
        assert _lines(run / "metrics.jsonl")[0]["reward_mean"] == own["reward_mean"]
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
    watch(environments, "branching_rollout")
    watch(environments.TrainingEnvironments, "sample")
    for name in ("leave_out", "collect", "prepare"):
        watch(local, name)
    for name in ("minibatches", "collated"):
        watch(update, name)
    changes = [f"out={tmp_path}", "updates=2", "evaluation.tasks=0", "algorithm.dynamic_sampling=2"]
    train_from_recipe("smoke", changes, quiet=True)
    assert len({name for name, _, _ in handed}) == 8
    assert [name for name, made, before in handed if pickle.dumps(made) != before] == []
