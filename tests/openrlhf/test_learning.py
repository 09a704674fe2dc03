"""The cluster's learning step computes what the local engine computes, however the rows are spread."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from servers import free_port
from small_policies import word_policy
from torch import Tensor
from trajectories import made_up

from paw_train.algorithms.critic import Critic
from paw_train.algorithms.experience import Signals, prepare
from paw_train.algorithms.pool import collect
from paw_train.algorithms.update import Updater, averaged, minibatches, optimizer_steps
from paw_train.losses.objective import LossOutput
from paw_train.policies.local.guarded_step import TrainingDivergedError
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.scoring import row_logprobs
from paw_train.rollouts.tokens import TokenRow
from paw_train.settings import (
    AlgorithmSettings,
    CriticSettings,
    ObjectiveSettings,
    OptimizerSettings,
    Settings,
)
from paw_train.settings.rollout import RolloutSettings
from paw_train.settings.world_model import WorldModelSettings
from paw_train.training.openrlhf.learning import learn, shard_update
from paw_train.training.phases import BUCKET

needs_deepspeed = pytest.mark.skipif(
    not os.environ.get("PAW_CLUSTER_TESTS"), reason="DeepSpeed is imported: make test-openrlhf"
)
TEMPERATURE, SEED = 0.8, 3
OBJECTIVE = ObjectiveSettings(kl_coef=0.05, entropy_coef=0.02)
PAW = WorldModelSettings()
ROW_BY_ROW = OptimizerSettings(micro_batch_tokens=1)
MINIBATCHES = OptimizerSettings(minibatch_size=3, micro_batch_tokens=30)


class Case(NamedTuple):
    algorithm: str
    conversation: bool = False
    optimizer: OptimizerSettings = OptimizerSettings(micro_batch_tokens=40)
    objective: ObjectiveSettings = OBJECTIVE
    world_model: WorldModelSettings = PAW


CASES = {
    "one pass": Case("grpo", optimizer=OptimizerSettings()),
    "a pass for each row": Case("gigpo", optimizer=ROW_BY_ROW),
    "sequence mean, no world model, no KL": Case(
        "rloo",
        optimizer=ROW_BY_ROW,
        objective=ObjectiveSettings(kl_coef=0.0, aggregation="sequence-mean"),
        world_model=WorldModelSettings.preset("off"),
    ),
    "dialogues of unequal length in mini-batches": Case(
        "gigpo", True, MINIBATCHES, world_model=WorldModelSettings(loss="mae")
    ),
    "no policy term": Case(
        "grpo",
        objective=ObjectiveSettings(policy_coef=0.0, kl_coef=0.0),
        world_model=WorldModelSettings.preset("echo", filter="warnings"),
    ),
    "two steps ahead": Case("reinforce_pp", world_model=WorldModelSettings(horizon=2, loss="ce")),
}
CRITICS = {"a value a turn": ("turn", False, ROW_BY_ROW), "a token": ("token", True, MINIBATCHES)}


def _policy(seed: int) -> LocalPolicy:
    return word_policy(["red green blue"], seed)


def _rows(case: Case) -> list[TokenRow]:
    pool, algorithm = collect(made_up(case.conversation)), AlgorithmSettings(name=case.algorithm)
    return prepare(pool, algorithm, case.objective, case.world_model, 10.0, ask=[7, 8]).rows


def _kept(adamw: Any, parameters: list[Any]) -> list[Tensor]:
    """The gradient of each step that an optimiser takes from now on."""
    found: list[Tensor] = []
    take = adamw.step

    def kept() -> None:
        found.append(torch.cat([p.grad.flatten() for p in parameters]))
        take()

    adamw.step = kept
    return found


class Local(NamedTuple):
    """What the local engine computes of the same rows."""

    metrics: dict[str, float]
    gradients: list[Tensor]
    """of each optimiser step"""


def _case(name: str, ranks: int) -> tuple[dict[str, Any], Local]:
    case, policy = CASES[name], _policy(0)
    reference = _policy(1) if case.objective.kl_coef else None
    undivided = case.optimizer.replace(lr=0.0, max_grad_norm=1e9, micro_batch_tokens=10**6)
    terms = (case.objective, case.world_model)
    updater = Updater(policy, reference, undivided, *terms, TEMPERATURE, 1)
    gradients = _kept(updater.optimizers[0], updater.parameters)
    rows = _rows(case)
    metrics = updater.step(rows, 0, SEED)
    known = rows
    if reference is not None:  # whose log-probabilities come from the experience maker
        scored = row_logprobs(reference, rows, 10**6, TEMPERATURE)
        pairs = zip(rows, scored, strict=True)
        known = [replace(row, ref_logprob=found.tolist()) for row, found in pairs]
    settings = Settings(
        objective=case.objective,
        world_model=case.world_model,
        rollout=RolloutSettings(temperature=TEMPERATURE),
        optimizer=case.optimizer,
        engine="openrlhf",
    )
    parts = shard_update(known, case.optimizer, ranks, SEED, 0)
    given = {"micro_batches": parts, "settings": settings, "model": policy.model}
    return given, Local(metrics, gradients)


def _critic_case(name: str, ranks: int, folder: Path) -> tuple[dict[str, Any], Local]:
    level, conversation, optimizer = CRITICS[name]
    policy = _policy(0)
    policy.save(folder)
    critic = Critic(policy, CriticSettings(lr=0.0), level, 10**6, max_grad_norm=1e9)
    torch.nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(5))
    pool = collect(made_up(conversation))
    signals = Signals(values=pool.at_actions(critic.values(pool.rows)))
    algorithm = AlgorithmSettings(name="ppo", level=level, lam=0.9)
    rows = prepare(pool, algorithm, OBJECTIVE, PAW, 10.0, signals, ask=[7, 8]).rows
    gradients = _kept(critic.adamw, critic.parameters[:-1])  # OpenRLHF's head has no bias
    count = optimizer_steps(optimizer, len(rows))
    steps = [critic.step(part) for part in minibatches(rows, count, SEED)]
    case = {
        "micro_batches": shard_update(rows, optimizer, ranks, SEED, 0),
        "settings": Settings(algorithm=algorithm, optimizer=optimizer, engine="openrlhf"),
        "head": critic.head.weight.detach().clone(),
        "folder": str(folder),
    }
    return case, Local({"value_loss": averaged(steps)["value_loss"]}, gradients)


def _compare(result: dict[str, Any], local: Local, where: str) -> None:
    assert len(result["gradients"]) == len(local.gradients), where
    for ours, theirs in zip(result["gradients"], local.gradients, strict=True):
        largest = float(theirs.abs().max())
        assert largest > 1e-3
        # returns near 10 make a critic's gradients that large, and float32 rounds by parts of them
        scale = largest if "value_loss" in local.metrics else 1.0
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6 * scale), where
    compared = {"policy_loss", "kl", "wm_term", "wm_loss", "clipped_share", "entropy", "grad_norm"}
    for name in local.metrics.keys() & {*compared, "value_loss"}:
        values = [step[name] for step in result["steps"]]
        wanted = pytest.approx(local.metrics[name], rel=1e-5, abs=1e-6)
        assert sum(values) / len(values) == wanted, f"{where}: {name}"
    assert local.metrics.get("wm_term") != 0.0


LAYOUTS = [(2, False), (3, False), (2, True)]
"""ZeRO stage, packing"""


@pytest.mark.slow
@needs_deepspeed
@pytest.mark.parametrize("ranks", [1, 2])
def test_deepspeed_learns_what_the_local_engine_learns(tmp_path: Path, ranks: int) -> None:
    made = {name: _case(name, ranks) for name in CASES}
    assert len(made["a pass for each row"][0]["micro_batches"][0]) == 8 // ranks
    made |= {name: _critic_case(name, ranks, tmp_path / name) for name in CRITICS}
    given = {"cases": [case for case, _ in made.values()], "layouts": LAYOUTS}
    for own in _ranks(ranks, tmp_path, given):  # every rank has the gradients and metrics of all
        for layout, found in zip(LAYOUTS, own, strict=True):
            for (name, (_, local)), result in zip(made.items(), found, strict=True):
                _compare(result, local, f"ZeRO-{layout[0]}, packing {layout[1]}, {name}")


@pytest.mark.slow
@needs_deepspeed
def test_deepspeed_sums_and_averages_gradients_in_float32(tmp_path: Path) -> None:
    """The last case fails when DeepSpeed does by itself what ours makes it do."""
    [(zero2, zero3, plain)] = _ranks(1, tmp_path, {"sums": [(2, False), (3, False), (2, True)]})
    # the size of a bucket is what the plan reckons with
    assert zero2 == zero3 == (258.0, torch.float32, int(BUCKET))
    assert plain[:2] == (256.0, torch.bfloat16) and plain[2] != int(BUCKET)


def _ranks(ranks: int, folder: Path, given: dict[str, Any]) -> list[Any]:
    """What each of so many processes of DeepSpeed made of what they were given."""
    torch.save(given, folder / "given.pt")
    program = Path(__file__).with_name("one_deepspeed_rank.py")
    arguments = [str(ranks), str(folder), str(free_port())]
    running = [
        subprocess.Popen(
            [sys.executable, str(program), str(rank), *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
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
    rows = _rows(Case("gigpo"))
    optimizer = OptimizerSettings(minibatch_size=3, micro_batch_tokens=25)
    shards = shard_update(rows, optimizer, ranks, SEED, 0)
    assert len({len(own) for own in shards}) == 1
    assert len({tuple(part.last for part in own) for own in shards}) == 1
    assert sum(part.last for part in shards[0]) == 3
    found: dict[tuple[int, ...], tuple[list[float], list[float]]] = {}
    for batch in (part.batch for own in shards for part in own):
        assert batch.ids.numel() <= 25
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


def test_a_loss_that_is_not_finite_ends_the_run_before_a_step() -> None:
    [parts] = shard_update(_rows(Case("grpo")), OptimizerSettings(), 1, SEED, 0)
    output = LossOutput(torch.tensor(float("nan")), torch.tensor(1.0), None, {})
    with pytest.raises(TrainingDivergedError, match=r"loss of an optimiser step is nan"):
        learn(parts, lambda _: output, lambda _: None, pytest.fail, lambda own: own, 1)
