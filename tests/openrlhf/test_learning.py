"""The cluster's learning step computes what the local engine computes, however the rows are spread."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from files import load
from servers import free_port
from trajectories import made_up

from paw_train.algorithms.critic import Critic
from paw_train.algorithms.experience import Prepared, Signals, prepare
from paw_train.algorithms.pool import collect
from paw_train.algorithms.update import (
    Updater,
    minibatches,
    optimizer_steps,
)
from paw_train.losses.objective import ObjectiveSettings
from paw_train.policies.local.guarded_step import TrainingDivergedError
from paw_train.policies.local.policy import LocalPolicy
from paw_train.policies.local.scratch import scratch_model, word_tokenizer
from paw_train.rollouts.tokens import TokenRow
from paw_train.settings import (
    AlgorithmSettings,
    CriticSettings,
    OptimizerSettings,
    Settings,
)
from paw_train.settings.rollout import RolloutSettings
from paw_train.settings.world_model import WorldModelSettings
from paw_train.training.openrlhf.sharding import shard_update
from paw_train.training.phases import BUCKET

one_rank = load("tests/openrlhf/one_rank.py")

TEMPERATURE, SEED = 0.8, 3
OBJECTIVE = ObjectiveSettings(kl_coef=0.05, entropy_coef=0.02)
PAW = WorldModelSettings()
CASES = {
    "grpo, one pass": ("grpo", False, OptimizerSettings(), OBJECTIVE, PAW),
    "gigpo, a pass for each row": (
        "gigpo",
        False,
        OptimizerSettings(micro_batch_tokens=1),
        OBJECTIVE,
        PAW,
    ),
    "dialogues": ("gigpo", True, OptimizerSettings(micro_batch_tokens=1), OBJECTIVE, PAW),
    "mini-batches": (
        "rloo",
        False,
        OptimizerSettings(minibatch_size=3, micro_batch_tokens=30),
        OBJECTIVE,
        PAW,
    ),
    "sequence mean, no world model, no KL": (
        "grpo",
        False,
        OptimizerSettings(micro_batch_tokens=1),
        ObjectiveSettings(kl_coef=0.0, aggregation="sequence-mean"),
        WorldModelSettings.preset("off"),
    ),
    "dialogues of unequal length in mini-batches, a mean over tokens": (
        "gigpo",
        True,
        OptimizerSettings(minibatch_size=3, micro_batch_tokens=30),
        ObjectiveSettings(kl_coef=0.05),
        WorldModelSettings(loss="mae"),
    ),
    "no policy term": (
        "grpo",
        False,
        OptimizerSettings(micro_batch_tokens=40),
        ObjectiveSettings(policy_coef=0.0, kl_coef=0.0),
        WorldModelSettings.preset("echo", filter="warnings"),
    ),
    "two steps ahead": (
        "reinforce_pp",
        False,
        OptimizerSettings(micro_batch_tokens=40),
        ObjectiveSettings(kl_coef=0.05),
        WorldModelSettings(horizon=2, loss="ce"),
    ),
}


CRITICS = {
    "a value a turn": ("turn", False, OptimizerSettings(micro_batch_tokens=1)),
    "a value a token": (
        "token",
        True,
        OptimizerSettings(minibatch_size=3, micro_batch_tokens=30),
    ),
}


def _policy(seed: int) -> LocalPolicy:
    tokenizer = word_tokenizer(["red green blue"])
    return LocalPolicy(scratch_model(one_rank.SMALL, 64, seed), tokenizer)


def _experience(
    name: str,
    trajectories: list[Any],
    objective: ObjectiveSettings,
    world_model: WorldModelSettings,
) -> Prepared:
    pool = collect(trajectories)
    algorithm = AlgorithmSettings(name=name)
    return prepare(pool, algorithm, objective, world_model, 10.0, ask=[7, 8])


class Local:
    """The local engine on the same rows; keeps the gradient of each of its optimiser steps."""

    def __init__(self, rows: list[TokenRow], case: Any) -> None:
        _, _, optimizer, objective, world_model = case
        self.policy, self.reference = _policy(0), _policy(1)
        updater = Updater(
            self.policy,
            self.reference if objective.kl_coef else None,  # type: ignore[arg-type]
            OptimizerSettings(
                lr=0.0,
                max_grad_norm=1e9,
                minibatch_size=optimizer.minibatch_size,
                micro_batch_tokens=10**6,
            ),
            objective,
            world_model,
            TEMPERATURE,
            1,
        )
        self.gradients: list[Any] = []
        [adamw] = updater.optimizers
        take = adamw.step

        def kept() -> None:
            self.gradients.append(torch.cat([p.grad.flatten() for p in updater.parameters]))
            take()

        adamw.step = kept  # type: ignore[method-assign, assignment]
        self.metrics = updater.step(rows, 0, SEED)


def _known(policy: LocalPolicy, rows: list[TokenRow]) -> list[TokenRow]:
    """Rows with the reference's log-probabilities of their tokens, as the experience maker has them."""
    found = []
    with torch.no_grad():
        for row in rows:
            ids = torch.tensor([row.ids])
            logits = policy.model(input_ids=ids).logits[:, :-1] / TEMPERATURE
            chosen = logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).flatten()
            found.append(replace(row, ref_logprob=[0.0, *chosen.tolist()]))
    return found


def _case(name: str, ranks: int) -> tuple[dict[str, Any], Local]:
    algorithm, conversation, optimizer, objective, world_model = CASES[name]
    rows = _experience(algorithm, made_up(conversation), objective, world_model).rows
    local = Local(rows, CASES[name])
    known = _known(local.reference, rows) if objective.kl_coef else rows
    return {
        "micro_batches": shard_update(known, optimizer, ranks, SEED, 0),
        "objective": objective,
        "world_model": world_model,
        "settings": Settings(
            objective=objective,
            world_model=world_model,
            rollout=RolloutSettings(temperature=TEMPERATURE),
            optimizer=optimizer,
            engine="openrlhf",
        ),
        "shape": one_rank.SMALL.model_dump(),
        "model": local.policy.model.state_dict(),
        "vocabulary": 64,
        "temperature": TEMPERATURE,
    }, local


class LocalCritic:
    """The local engine's critic on the same rows; keeps the gradient of each of its steps."""

    def __init__(self, name: str) -> None:
        level, conversation, self.optimizer = CRITICS[name]
        self.policy = _policy(0)
        critic = Critic(self.policy, CriticSettings(lr=0.0), level, 10**6, max_grad_norm=1e9)
        torch.nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(5))
        self.head = critic.head.weight.detach().clone()
        pool = collect(made_up(conversation))
        self.values = pool.at_actions(critic.values(pool.rows))
        algorithm = AlgorithmSettings(name="ppo", level=level, lam=0.9)
        signals = Signals(values=self.values)
        self.rows = prepare(pool, algorithm, OBJECTIVE, PAW, 10.0, signals, ask=[7, 8]).rows
        self.gradients: list[Any] = []
        take = critic.adamw.step

        def kept() -> None:
            own = [p.grad.flatten() for p in critic.parameters[:-1]]  # OpenRLHF's head has no bias
            self.gradients.append(torch.cat(own))
            take()

        critic.adamw.step = kept  # type: ignore[method-assign, assignment]
        count = optimizer_steps(self.optimizer, len(self.rows))
        self.steps = [critic.step(rows) for rows in minibatches(self.rows, count, SEED)]


def _critic_case(
    name: str, ranks: int, folder: Path | None = None
) -> tuple[dict[str, Any], LocalCritic]:
    level, _, optimizer = CRITICS[name]
    local = LocalCritic(name)
    case = {
        "micro_batches": shard_update(local.rows, optimizer, ranks, SEED, 0),
        "model": local.policy.model.state_dict(),
        "vocabulary": 64,
        "head": local.head,
        "level": level,
    }
    if folder is not None:
        local.policy.save(folder)
        algorithm = AlgorithmSettings(name="ppo", level=level)
        settings = Settings(algorithm=algorithm, optimizer=optimizer, engine="openrlhf")
        case |= {"folder": str(folder), "settings": settings}
    return case, local


def _compare_critics(result: dict[str, Any], local: LocalCritic) -> None:
    assert len(result["gradients"]) == len(local.gradients)
    for ours, theirs in zip(result["gradients"], local.gradients, strict=True):
        assert theirs.abs().max() > 1e-3
        # returns near 10 make gradients that large: float32 rounds them by parts of the largest
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6 * float(theirs.abs().max()))
    ours, theirs = (
        sum(step["value_loss"] for step in steps) / len(steps)
        for steps in (result["steps"], local.steps)
    )
    assert ours == pytest.approx(theirs, rel=1e-5)


def _compare(result: dict[str, Any], local: Local) -> None:
    assert len(result["gradients"]) == len(local.gradients)
    for ours, theirs in zip(result["gradients"], local.gradients, strict=True):
        assert theirs.abs().max() > 1e-3
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    for name in (
        "policy_loss",
        "kl",
        "wm_term",
        "wm_loss",
        "clipped_share",
        "entropy",
        "grad_norm",
    ):
        if name in local.metrics:
            values = [step[name] for step in result["steps"]]
            assert sum(values) / len(values) == pytest.approx(
                local.metrics[name], rel=1e-5, abs=1e-6
            ), name
    if "wm_term" in local.metrics:
        assert local.metrics["wm_term"] != 0.0


@pytest.mark.parametrize("name", CASES)
def test_one_rank_learns_what_the_local_engine_learns(name: str) -> None:
    case, local = _case(name, 1)
    result = one_rank.run(case, 0, 1)
    _compare(result, local)
    if "pass for each row" in name:
        assert result["micro_batches"] == 8


@pytest.mark.parametrize("name", CRITICS)
def test_a_critic_on_one_rank_learns_what_the_local_engines_learns(name: str) -> None:
    case, local = _critic_case(name, 1)
    _compare_critics(one_rank.run(case, 0, 1), local)


@pytest.mark.slow
def test_ranks_together_learn_what_the_local_engine_learns(tmp_path: Path) -> None:
    made = [_case(name, 2) for name in CASES]
    made += [_critic_case(name, 2) for name in CRITICS]  # type: ignore[misc]
    cases, locals_ = zip(*made, strict=True)
    torch.save(list(cases), tmp_path / "cases.pt")
    results = _ranks("one_rank.py", 2, tmp_path)
    for first, second, local in zip(*results, locals_, strict=True):
        (_compare_critics if isinstance(local, LocalCritic) else _compare)(first, local)
        assert first["steps"] == second["steps"]
        assert first["micro_batches"] == second["micro_batches"]


LAYOUTS = [(2, False), (3, False), (2, True)]
"""ZeRO stage, packing"""


@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get("PAW_CLUSTER_TESTS"), reason="DeepSpeed is imported: make test-openrlhf"
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_deepspeed_learns_what_the_local_engine_learns(tmp_path: Path, ranks: int) -> None:
    made = [_case(name, ranks) for name in CASES]
    made += [
        _critic_case(name, ranks, tmp_path / str(number))  # type: ignore[misc]
        for number, name in enumerate(CRITICS)
    ]
    cases, locals_ = zip(*made, strict=True)
    given = {"cases": list(cases), "layouts": LAYOUTS}
    torch.save(given, tmp_path / "cases.pt")
    results = _ranks("one_deepspeed_rank.py", ranks, tmp_path, str(free_port()))
    for own in results:  # every rank has the gradients and metrics of all
        for layout, found in zip(LAYOUTS, own, strict=True):
            for name, result, local in zip([*CASES, *CRITICS], found, locals_, strict=True):
                with _named(f"ZeRO-{layout[0]}, packing {layout[1]}, {name}"):
                    (_compare_critics if isinstance(local, LocalCritic) else _compare)(
                        result, local
                    )


@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get("PAW_CLUSTER_TESTS"), reason="DeepSpeed is imported: make test-openrlhf"
)
@pytest.mark.parametrize(
    ("stage", "kind", "total", "averages"),
    [
        (2, "", 258, "float32"),
        (3, "", 258, "float32"),
        (2, "plain", 256, "bfloat16"),
    ],
)
def test_deepspeed_sums_and_averages_gradients_in_float32(
    stage: int, kind: str, total: int, averages: str
) -> None:
    """The last case fails when DeepSpeed does by itself what ours makes it do."""
    command = [sys.executable, str(Path(__file__).with_name("sum_of_gradients.py")), str(stage)]
    done = subprocess.run(
        [*command, str(free_port()), kind],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert f"sum {total}.0" in done.stdout
    assert f"averages torch.{averages}" in done.stdout
    # what the plan reckons with
    assert (f"bucket {int(BUCKET)}" in done.stdout) is (kind != "plain")


@contextlib.contextmanager
def _named(case: str) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{case}: {error}") from error


def _ranks(program: str, ranks: int, folder: Path, *arguments: str) -> list[Any]:
    """What each of so many processes of a program wrote."""
    command = [sys.executable, str(Path(__file__).with_name(program))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [*command, str(rank), str(ranks), str(folder), *arguments],
            env=environment,
            cwd=Path(__file__).parents[2],
        )
        for rank in range(ranks)
    ]
    try:
        assert [process.wait(timeout=600) for process in running] == [0] * ranks
    finally:
        for process in running:  # one that waits for the other's part would stay
            process.kill()
    return [torch.load(folder / f"rank{r}.pt", weights_only=False) for r in range(ranks)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_a_cut_loses_nothing_and_keeps_the_ranks_in_step(ranks: int) -> None:
    rows = _experience("gigpo", made_up(False), OBJECTIVE, PAW).rows
    optimizer = OptimizerSettings(minibatch_size=3, micro_batch_tokens=25)
    shards = shard_update(rows, optimizer, ranks, SEED, 0)
    assert len({len(own) for own in shards}) == 1
    assert len({tuple(part.last for part in own) for own in shards}) == 1
    assert sum(part.last for part in shards[0]) == 3
    found: dict[tuple[int, ...], tuple[list[float], list[float]]] = {}
    for batch in (part.batch for own in shards for part in own):
        for b in range(len(batch.ids)):
            length = int(batch.attention_mask[b].sum())
            if batch.action[b].any():  # not idle
                ids = tuple(batch.ids[b, :length].tolist())
                assert ids not in found
                worth = batch.advantage[b, :length], batch.wm_weight[b, :length]
                found[ids] = worth[0].tolist(), worth[1].tolist()
    assert found.keys() == {tuple(row.ids) for row in rows}
    for row in rows:
        advantage, weight = found[tuple(row.ids)]
        assert advantage == pytest.approx(row.advantage)
        assert weight == pytest.approx(row.wm_weight)


def test_micro_batches_stay_inside_the_token_budget() -> None:
    rows = _experience("grpo", made_up(False), OBJECTIVE, PAW).rows
    longest = max(len(row.ids) for row in rows)
    optimizer = OptimizerSettings(micro_batch_tokens=2 * longest)
    for own in shard_update(rows, optimizer, 2, 0, 0):
        assert all(part.batch.ids.numel() <= 2 * longest for part in own)


def test_a_loss_that_is_not_finite_ends_the_run_before_a_step() -> None:
    case, _ = _case("grpo, one pass", 1)
    case["model"] = {name: value * float("nan") for name, value in case["model"].items()}
    with pytest.raises(TrainingDivergedError, match=r"loss of an optimiser step is nan"):
        one_rank.run(case, 0, 1)
