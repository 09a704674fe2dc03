"""Part ``correctness``: one update's numbers on the device against float32 on the CPU.

The same model, episodes, reference and sampling noise on both; GRPO with PaW and a KL in the loss. The
log-probability of every token, every part of the loss and the gradient of every weight are compared, and
so are the log-probabilities that a rollout reports and those that the trainer computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from gpu_model import (
    GROUP,
    MAX_RETURN,
    Check,
    Findings,
    Task,
    policy_of,
    qwen2,
    sampled,
    trajectory,
    words,
)
from torch import Tensor

from paw_train.algorithms.experience import Prepared, prepare
from paw_train.algorithms.pool import collect
from paw_train.algorithms.update import Updater
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.rollout import Trajectory
from paw_train.rollouts.scoring import row_logprobs
from paw_train.rollouts.tokens import ACTION
from paw_train.settings import AlgorithmSettings, OptimizerSettings, WorldModelSettings
from paw_train.settings.algorithm import ObjectiveSettings
from paw_train.training.memory import ModelShape

SHAPE = ModelShape(256, 6, 8, 2, 704, 1024, True, 32, qkv_bias=True)
SMALL = replace(SHAPE, hidden=32, layers=2, heads=2, kv_heads=1, intermediate=64, vocabulary=256,
                head_dim=16)  # fmt: skip
SPREAD = 0.05
"""standard deviation of the weights"""
SHARPEN = 2.0
"""factor of the embeddings, and so of the logits: likely and unlikely tokens, as with a trained model"""
LOSSES = ("policy_loss", "kl", "wm_term", "wm_loss", "grad_norm_policy", "grad_norm_wm")


@dataclass(frozen=True)
class Tolerance:
    """The largest differences from float32 on the CPU."""

    mean_logprob: float
    """mean over tokens, in nats"""
    max_logprob: float
    """of one token, in nats"""
    loss: float
    """of a part of the loss, or the norm of its gradient, relative to max(0.1, its size)"""
    gradient: float
    """norm of the difference of all gradients, relative to their norm"""


TOLERANCES: Mapping[str, Tolerance] = MappingProxyType(
    {
        "float32": Tolerance(1e-5, 2e-4, 1e-4, 1e-3),
        # 8 bits of precision: each of dozens of roundings changes a value by up to 2**-9 of it
        "bfloat16": Tolerance(0.03, 0.5, 0.05, 0.2),
    }
)
"""by the type of the weights on the device; multiplications in TensorFloat-32 are off"""


def run(task: Task) -> Findings:
    """Compares both types of weights."""
    if task.on_gpu:
        torch.backends.cuda.matmul.allow_tf32 = False
    shape = SMALL if task.small else SHAPE
    episodes = _episodes(shape, task.small)
    expected = _Pass(shape, episodes, "cpu", torch.float32)
    findings = Findings({"parameters": shape.parameters, "tokens": expected.tokens})
    for name, tolerance in TOLERANCES.items():
        found = _Pass(shape, episodes, task.device, getattr(torch, name))
        for check in _checks(expected, found, tolerance):
            findings.checks.append(replace(check, name=f"{name}, {check.name}"))
    return findings


def _episodes(shape: ModelShape, small: bool) -> list[Trajectory]:
    """Episodes of two turns, all sampled by the model itself, so that some observations are likely.

    When they were sampled, their tokens were a little more or less likely than they are now.
    """
    count, (prompt, response, observation) = (8, (24, 6, 8)) if small else (16, (160, 24, 40))
    generator = torch.Generator().manual_seed(0)
    policy = _policy(shape, "cpu", torch.float32)
    prompts = [words(prompt, shape.vocabulary, generator) for _ in range(count)]
    contexts, turns = [list(p) for p in prompts], [[] for _ in prompts]  # type: ignore[var-annotated]
    for _ in range(2):
        spans = []
        for length in (response, observation):
            spans.append([answer.ids for answer in sampled(policy, contexts, length)])
            contexts = [c + new for c, new in zip(contexts, spans[-1], strict=True)]
        for turn, answer, seen in zip(turns, *spans, strict=True):
            turn.append((answer, [0.0] * len(answer), seen))
    made = [trajectory(i, p, t) for i, (p, t) in enumerate(zip(prompts, turns, strict=True))]
    for episode, scores in zip(made, _scores(policy, made), strict=True):
        (row,) = episode.rows
        acts = torch.tensor(row.role) == ACTION
        noise = 0.15 * torch.randn(len(row.ids), generator=generator)
        row.logprob = torch.where(acts, scores + noise, 0.0).tolist()
    return made


def _policy(shape: ModelShape, device: str, dtype: torch.dtype, larger: float = 1.0) -> LocalPolicy:
    model = qwen2(shape, 0, spread=SPREAD * larger)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(SHARPEN)  # the LM head, too
    return policy_of(model.bfloat16().to(dtype), device)


def _scores(policy: LocalPolicy, episodes: list[Trajectory]) -> list[Tensor]:
    return row_logprobs(policy, [row for t in episodes for row in t.rows], 4096)


class _Pass:
    """One update without a step, on a given device and in a given type."""

    def __init__(
        self, shape: ModelShape, episodes: list[Trajectory], device: str, dtype: torch.dtype
    ) -> None:
        policy = _policy(shape, device, dtype)
        # the same numbers, a little larger: a similar policy
        reference = _policy(shape, device, dtype, 1.03).reference()
        roles = torch.tensor([role for t in episodes for row in t.rows for role in row.role])
        self.logprobs = torch.cat(_scores(policy, episodes))[roles > 0]
        self.tokens = sum(len(row.ids) for t in episodes for row in t.rows)
        # no step: a learning rate of 0, and gradients that are not scaled
        optimizer = OptimizerSettings(
            lr=0.0, max_grad_norm=1e9, micro_batch_tokens=2048, measure_gradients=True
        )
        objective, world_model = ObjectiveSettings(kl_coef=0.01), WorldModelSettings()
        updater = Updater(policy, reference, optimizer, objective, world_model, 1.0, 1)
        prepared = _prepared(policy, episodes, objective, world_model)
        self.losses = updater.step(prepared.rows, 0, 0)
        self.gradients = [
            torch.zeros(p.shape) if p.grad is None else p.grad.float().cpu()
            for p in updater.parameters
        ]
        self.gap = _rollout_gap(policy, shape)


def _prepared(
    policy: LocalPolicy,
    episodes: list[Trajectory],
    objective: ObjectiveSettings,
    world_model: WorldModelSettings,
) -> Prepared:
    pool = collect(episodes)
    return prepare(
        pool, AlgorithmSettings(), objective, world_model, MAX_RETURN, None, policy.chat.ask
    )


def _rollout_gap(policy: LocalPolicy, shape: ModelShape) -> float:
    """Mean difference of sampled tokens' log-probabilities, in nats: rollout against trainer."""
    generator = torch.Generator().manual_seed(1)
    prompts = [words(12 + 5 * i, shape.vocabulary, generator) for i in range(GROUP)]
    answers = sampled(policy, prompts, 16)
    episodes = [
        trajectory(i, prompt, [(answer.ids, answer.logprobs, [])])
        for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    ]
    reported = torch.tensor([x for answer in answers for x in answer.logprobs])
    computed = collect(episodes).at_actions(_scores(policy, episodes))
    return float((reported - computed).abs().mean())


def _checks(expected: _Pass, found: _Pass, limit: Tolerance) -> list[Check]:
    apart = (expected.logprobs - found.logprobs).abs()
    checks = [
        Check("log-probabilities, mean difference", float(apart.mean()), high=limit.mean_logprob),
        Check("log-probabilities, largest difference", float(apart.max()), high=limit.max_logprob),
        Check("rollout against trainer, mean difference", found.gap, high=limit.mean_logprob),
    ]
    for name in LOSSES:
        true = expected.losses[name]
        off = abs(found.losses[name] - true) / max(0.1, abs(true))
        checks.append(Check(name, off, high=limit.loss))
    pairs = list(zip(expected.gradients, found.gradients, strict=True))
    off = _norm([b - a for a, b in pairs]) / _norm(expected.gradients)
    return [*checks, Check("gradients, relative difference", off, high=limit.gradient)]


def _norm(tensors: list[Tensor]) -> float:
    return float(torch.stack([t.double().square().sum() for t in tensors]).sum().sqrt())
