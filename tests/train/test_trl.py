"""PaW inside TRL's ``GRPOTrainer``: our engine's loss, in rollouts as text."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra `train`")
pytest.importorskip("trl", reason="the extra `sft`")

import datasets
import torch
import trl
from torch import Tensor

from paw_gym import Outcome, Task, register_text_env
from paw_gym.adapters.trl import task_rows
from paw_train.algorithms.experience import prepare
from paw_train.algorithms.pool import collect
from paw_train.integrations import trl as ours
from paw_train.integrations.trl import PaWTrainer, TextRollouts, episode_reward
from paw_train.losses.batch import MiniBatchTotals
from paw_train.losses.objective import combined_loss
from paw_train.policies.local.policy import LocalPolicy
from paw_train.policies.local.scratch import scratch_model, word_tokenizer
from paw_train.rollouts.rollout import rollout
from paw_train.rollouts.scoring import collate
from paw_train.settings import AlgorithmSettings, ObjectiveSettings, RolloutSettings
from paw_train.settings.model import ScratchModelSettings
from paw_train.settings.world_model import WorldModelSettings

ENV = "tests/Echo-v0"
TASKS = [Task(name, "Say something.") for name in ("one", "two")]
SIZE = ScratchModelSettings(hidden=32, layers=1, heads=2, kv_heads=1, intermediate=64)
WM = WorldModelSettings(alpha=0.6, rho=1.0)
TEXT = "Nothing happens .\nYou hear hello . red green blue < > / action think"


def three_turns(task: Task, rng: Any) -> Any:
    for turn in range(3):
        yield Outcome(f"You hear hello {turn} .", admissible_actions=["red", "green"])
    yield Outcome("Nothing happens .", reward=1.0, terminated=True, success=True)


@pytest.fixture(autouse=True)
def environment(own_environments: None) -> None:
    register_text_env(ENV, three_turns, tasks=TASKS, solve=lambda task, rng: ["red"] * 3)


def config(folder: Path, **changes: Any) -> Any:
    common: dict[str, Any] = {
        "output_dir": str(folder), "use_cpu": True, "bf16": False,
        "gradient_checkpointing": False, "per_device_train_batch_size": 4, "num_generations": 2,
        "max_completion_length": 400, "scale_rewards": "none", "loss_type": "dapo", "beta": 0.0,
        "learning_rate": 0.01, "report_to": [], "save_strategy": "no", "disable_tqdm": True,
        "logging_steps": 1, "seed": 0,
    }  # fmt: skip
    return trl.GRPOConfig(**{**common, **changes})


def by_place(completions: Any, **columns: Any) -> list[float]:
    """Rewards that differ within a group, whatever an untrained model does."""
    return [float(place % 3) for place in range(len(completions))]


def text_trainer(
    folder: Path, reward: Any = by_place, env_id: str = ENV, wm: Any = WM, **settings: Any
) -> Any:
    tokenizer = word_tokenizer([TEXT])
    return PaWTrainer(
        scratch_model(SIZE, len(tokenizer), seed=0),
        reward_funcs=reward,
        rollout_func=TextRollouts(env_id, RolloutSettings(max_response_tokens=3)),
        train_dataset=datasets.Dataset.from_list(task_rows(ENV, "text")),
        processing_class=tokenizer,
        world_model=wm,
        world_model_coeff=settings.pop("coefficient", None),
        args=config(folder, **settings),
        max_return=2.0,
    )


def batch_of(trainer: Any, style: str = "text") -> dict[str, Any]:
    """TRL's batch of one generation: two groups of two."""
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    rows = [row for row in task_rows(ENV, style) for _ in range(2)]
    batch: dict[str, Any] = trainer._generate_and_score_completions(rows)
    return batch


def generation(trainer: Any) -> tuple[list[Any], dict[str, Any]]:
    """Our trajectories of a generation, and TRL's batch made from them."""
    kept: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ours, "rollout", lambda *args: kept.extend(rollout(*args)) or kept)
        return kept, batch_of(trainer)


def gradients(model: Any) -> Tensor:
    found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    return found


def our_loss(trainer: Any, trajectories: list[Any]) -> Tensor:
    """The local engine's loss of the same episodes, with the same rewards."""
    for place, trajectory in enumerate(trajectories):
        episode = trajectory.episode
        episode.group = place // 2
        steps = [dataclasses.replace(t, reward=0.0) for t in episode.transitions]
        steps[-1] = dataclasses.replace(steps[-1], reward=float(place % 3))
        episode.transitions[:] = steps
    objective = ObjectiveSettings(aggregation="token-mean", kl_coef=0.0)
    algorithm = AlgorithmSettings(name="grpo", normalize=False)
    experience = prepare(
        collect(trajectories), algorithm, objective, trainer.world_model, trainer.max_return
    )
    policy = LocalPolicy(trainer.model, trainer.processing_class)
    batch = collate(experience.rows, policy.pad_id)
    totals = MiniBatchTotals.count(1, [batch])
    logprobs = policy.logprobs(batch)
    return combined_loss(logprobs, batch, totals, objective, trainer.world_model).loss


@pytest.mark.parametrize("loss", ["cmae", "ce"])
def test_one_batch_has_the_loss_and_gradient_of_our_engine(tmp_path: Path, loss: str) -> None:
    trainer = text_trainer(tmp_path, wm=WorldModelSettings(loss=loss, alpha=0.6, rho=0.9))
    trajectories, batch = generation(trainer)
    theirs = trainer._compute_loss(trainer.model, batch)
    theirs.backward()
    gradient = gradients(trainer.model)
    expected = our_loss(trainer, trajectories)
    expected.backward()
    assert abs(float(theirs) - float(expected)) < 1e-5
    assert (gradient - gradients(trainer.model)).abs().max() < 1e-5
    assert float(batch["advantages"].abs().sum()) > 0 and gradient.abs().max() > 1e-3


@pytest.mark.parametrize("coefficient", [0.0, 0.3])
def test_the_coefficient_of_the_roles_protocol(tmp_path: Path, coefficient: float) -> None:
    found = text_trainer(tmp_path, coefficient=coefficient).world_model
    assert found == WM.replace(coef=coefficient, enabled=coefficient > 0)


def test_it_trains(tmp_path: Path) -> None:
    trainer = text_trainer(tmp_path, episode_reward, max_steps=2)
    trainer.train()
    logged = [line for line in trainer.state.log_history if "wm/term" in line]
    assert len(logged) == 2
    assert {"wm/lambda_mean", "wm/selected_share", "reward"} <= logged[0].keys()
    assert logged[0]["wm/term"] > 0


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"wm": WorldModelSettings(entropy="full")}, "entropy=full"),
        ({"wm": WorldModelSettings(horizon=2)}, "horizon=2"),
        ({"wm": WorldModelSettings(dedup="once")}, "dedup=once"),
        ({"wm": WorldModelSettings(filter="warnings")}, "filter=warnings"),
        ({"temperature": 0.7}, "temperature is 0.7"),
    ],
)
def test_what_is_not_available_is_named(tmp_path: Path, changes: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        text_trainer(tmp_path, **changes)


def test_an_environment_is_needed(tmp_path: Path) -> None:
    trainer = text_trainer(tmp_path, max_completion_length=4)
    trainer.rollout_func = None
    with pytest.raises(ValueError, match="rollout_func"):
        batch_of(trainer)


def test_a_failed_environment_ends_the_run(tmp_path: Path) -> None:
    def broken(task: Task, rng: Any) -> Any:
        yield Outcome("Fine so far .")
        raise ZeroDivisionError("in the world")

    register_text_env("tests/Broken-v0", broken, tasks=TASKS, solve=lambda task, rng: ["go"])
    with pytest.raises(RuntimeError, match="in the world"):
        batch_of(text_trainer(tmp_path, env_id="tests/Broken-v0"))


@pytest.mark.parametrize(
    ("names", "message"),
    [("one one two one", "2 times in a row"), ("one one one one", "two groups of one generation")],
)
def test_groups_of_no_single_task_are_refused(tmp_path: Path, names: str, message: str) -> None:
    trainer = text_trainer(tmp_path)
    prompts = [[{"role": "user", "content": name}] for name in names.split()]
    with pytest.raises(ValueError, match=message):
        trainer.rollout_func(prompts, trainer)


def test_a_dialogue_is_the_only_form() -> None:
    with pytest.raises(ValueError, match="conversation"):
        TextRollouts(ENV, mode="window")


def test_another_temperature_of_sampling_is_refused(tmp_path: Path) -> None:
    trainer = text_trainer(tmp_path)
    rollouts = TextRollouts(ENV, RolloutSettings(max_response_tokens=2, temperature=0.5))
    prompts = [[{"role": "user", "content": "one"}]] * 2
    trainer.model.train()
    with pytest.raises(ValueError, match=r"samples at temperature 0\.5, .* scores at 1\.0"):
        rollouts(prompts, trainer)
    trainer.model.eval()
    assert len(rollouts(prompts, trainer)["reward"]) == 2
