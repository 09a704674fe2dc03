"""Part ``throughput``: tokens/s of rollout and update, PaW's overhead, and peak memory against the preflight.

The shape of Qwen2.5-1.5B with random weights in bfloat16; prompts of 2,048 tokens, responses of 512 and
observations of 100. Updates without and with PaW learn from the same rollout, in turns. Tokens/s are
given beside what the device's bandwidth and arithmetic, measured before, would allow.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from gpu_model import (
    Check,
    Findings,
    Task,
    Values,
    policy_of,
    qwen2,
    sampled,
    trajectory,
    updating,
    words,
)

from paw_train.policies.local.policy import LocalPolicy, enable_recomputation
from paw_train.rollouts.rollout import Trajectory, sampled_tokens
from paw_train.settings import ObjectiveSettings, OptimizerSettings, Settings, load_settings
from paw_train.training.memory import KNOWN, ModelShape, memory_of
from paw_train.training.phases import GIB, Phase, local_phases

RECIPE = "alfworld_qwen2.5-1.5b_grpo_paw"
MODEL = "Qwen/Qwen2.5-1.5B-Instruct"
PREFLIGHT = 0.15
"""how far measured memory may differ from the preflight's"""
OVERHEAD = 1.025
"""largest ratio of a step (rollout and update) with PaW to one without, in time and in peak memory"""


@dataclass(frozen=True)
class Size:
    """A model, and the amount of work that is done with it."""

    shape: ModelShape
    dtype: torch.dtype
    episodes: int
    prompt: int
    response: int
    observation: int
    micro_batch_tokens: int
    rollouts: int
    """measured ones, after one to warm up"""
    updates: int
    """measured ones, without and with PaW each, after one to warm up"""


FULL = Size(KNOWN[MODEL], torch.bfloat16, 64, 2048, 512, 100, 16384, 2, 5)
STARTED = 12
"""episodes of the update before a measured one: two full micro-batches, so that memory and the optimiser's
state are allocated"""
SMALL = Size(
    ModelShape(32, 2, 2, 1, 64, 256, True, 16, True), torch.bfloat16, 8, 24, 8, 6, 128, 1, 1
)


def run(task: Task) -> Findings:
    """Measures an update, several times."""
    size = SMALL if task.small else FULL
    limits = ceilings(task)
    model = qwen2(size.shape, 0, size.dtype, device=task.device if task.on_gpu else "cpu")
    enable_recomputation(model)
    policy = policy_of(model, task.device)
    rollouts, updates = _Watch(task), {name: _Watch(task) for name in ("off", "paw")}
    ends = time.monotonic() + task.seconds
    episodes = _rollout(policy, size)
    policy.rest()
    with _updater(policy, size, "off") as update:  # as in training, whose states are in memory
        update(copy.deepcopy(episodes[:STARTED]))
        for _ in range(size.rollouts):
            with rollouts.measured(True):
                _rollout(policy, size)
                policy.rest()
    for repeat in range(size.updates + 1):  # the first warms up
        if repeat > 1 and time.monotonic() + _longest(updates) > ends:
            break
        for name in ("off", "paw") if repeat % 2 else ("paw", "off"):
            with _updater(policy, size, name) as update:
                update(copy.deepcopy(episodes[:STARTED]))
                given = copy.deepcopy(episodes)
                with updates[name].measured(repeat > 0):
                    update(given)
    memory = {"rollout": rollouts.peak, **{name: watch.peak for name, watch in updates.items()}}
    findings = _findings(task, size, episodes, rollouts, updates, memory)
    if limits:
        findings.values |= {"ceilings": limits, "bounds": bounds(size, limits)}
    return findings


def ceilings(task: Task) -> dict[str, float]:
    """Bytes/s of a large copy (reads and writes), and floating-point operations/s of a large product."""
    if task.small or not task.on_gpu:
        return {}
    source = torch.randn(2**30, device=task.device, dtype=torch.bfloat16)
    target, square = torch.empty_like(source), source[: 2**26].view(8192, 8192)
    amounts = {
        "bytes_per_second": (lambda: target.copy_(source), 2.0 * source.nbytes),
        "operations_per_second": (lambda: square @ square, 2.0 * 8192**3),
    }
    found = {}
    for name, (work, amount) in amounts.items():
        seconds = []
        for _ in range(12):
            task.wait()
            started = time.perf_counter()
            work()
            task.wait()
            seconds.append(time.perf_counter() - started)
        found[name] = amount / statistics.median(seconds[2:])
    return found


def bounds(size: Size, limits: dict[str, float]) -> dict[str, float]:
    """Tokens/s that the ceilings allow.

    A token step reads every weight and half of the final cache; an update computes each product
    four times (forward, again for the backward pass, and two there).
    """
    weights = size.shape.parameters
    width = torch.finfo(size.dtype).bits // 8
    seen = size.episodes * (size.prompt + size.response / 2) * size.shape.cache_values
    step = width * (weights + seen) / limits["bytes_per_second"]
    return {
        "rollout_tokens_per_second": size.episodes / step,
        "update_tokens_per_second": limits["operations_per_second"] / (8 * weights),
    }


def _longest(updates: dict[str, _Watch]) -> float:
    """Seconds that a repetition may take, judged by those before."""
    return sum(1.3 * max(watch.seconds) for watch in updates.values())


class _Watch:
    """Seconds and peak GPU memory of what is done within ``measured``."""

    def __init__(self, task: Task) -> None:
        self.task, self.seconds, self.peak = task, [], 0.0  # type: ignore[var-annotated]

    def measured(self, kept: bool) -> _Watch:
        self._kept = kept
        return self

    def __enter__(self) -> None:
        if self.task.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        self.task.wait()
        self._started = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self.task.wait()
        if self._kept:
            self.seconds.append(time.perf_counter() - self._started)
        if self.task.on_gpu:
            self.peak = max(self.peak, torch.cuda.max_memory_allocated() / GIB)


def _rollout(policy: LocalPolicy, size: Size) -> list[Trajectory]:
    generator = torch.Generator().manual_seed(0)
    vocabulary = size.shape.vocabulary
    prompts = [words(size.prompt, vocabulary, generator) for _ in range(size.episodes)]
    answers = sampled(policy, prompts, size.response)
    return [
        trajectory(
            i,
            prompt,
            [(answer.ids, answer.logprobs, words(size.observation, vocabulary, generator))],
        )
        for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    ]


@contextmanager
def _updater(
    policy: LocalPolicy, size: Size, preset: str
) -> Iterator[Callable[[list[Trajectory]], None]]:
    # steps that are too small to change the model noticeably
    optimizer = OptimizerSettings(lr=1e-7, micro_batch_tokens=size.micro_batch_tokens)
    updater, update = updating(policy, optimizer, ObjectiveSettings(kl_coef=0.0), preset)

    def update_and_release(trajectories: list[Trajectory]) -> None:
        update(trajectories)
        updater.release()

    yield update_and_release
    updater.weights.close()  # the next optimiser has float32 copies of its own


def _findings(
    task: Task,
    size: Size,
    episodes: list[Trajectory],
    rollouts: _Watch,
    updates: dict[str, _Watch],
    memory: dict[str, float],
) -> Findings:
    responses = sampled_tokens(episodes)
    tokens = sum(len(row.ids) for t in episodes for row in t.rows)
    pairs = zip(updates["off"].seconds, updates["paw"].seconds, strict=True)
    overhead = statistics.median(paw / off for off, paw in pairs)
    rollout = statistics.median(rollouts.seconds)
    step = (rollout + statistics.median(updates["paw"].seconds)) / (
        rollout + statistics.median(updates["off"].seconds)
    )
    values: Values = {
        "parameters": size.shape.parameters,
        "sampled_tokens": responses,
        "trained_tokens": tokens,
        "rollout_tokens_per_second": responses / statistics.median(rollouts.seconds),
        "update_tokens_per_second": {
            name: tokens / statistics.median(watch.seconds) for name, watch in updates.items()
        },
        "seconds": {
            "rollout": rollouts.seconds,
            **{name: watch.seconds for name, watch in updates.items()},
        },
        "update_paw_over_off": overhead,
        "step_paw_over_off": step,
    }
    if task.on_gpu:
        values["memory_paw_over_off"] = memory["paw"] / memory["off"]
    findings = Findings(values)
    if not task.small:
        findings.checks.append(Check("step, PaW / off", step, high=OVERHEAD))
    if task.on_gpu:
        values["peak_gib"] = memory
        ratio = values["memory_paw_over_off"]
        findings.checks.append(Check("peak memory, PaW / off", ratio, high=OVERHEAD))
        values["preflight_gib"] = preflight(size, memory_of(torch.device(task.device)) or 0.0)
        findings.checks += memory_checks(memory, values["preflight_gib"])
    return findings


def memory_checks(measured: dict[str, float], expected: dict[str, float]) -> list[Check]:
    """Measured peaks in relation to the preflight's."""
    ratios = {
        "training": max(measured["off"], measured["paw"]) / expected["training"],
        "rollout": measured["rollout"] / expected["rollout"],
    }
    # the preflight counts the most that a rollout can take
    low = {"training": 1 - PREFLIGHT, "rollout": None}
    return [
        Check(f"peak memory, {name}, measured / preflight", ratio, low[name], 1 + PREFLIGHT)
        for name, ratio in ratios.items()
    ]


def preflight(size: Size, available: float) -> dict[str, float]:
    """GiB of each phase by the preflight, on a GPU of ``available``, without what it sets aside for CUDA."""
    settings = _settings(size)
    phases = local_phases(settings, size.shape, available)
    return {phase.name: _counted(phase) for phase in phases}


def _counted(phase: Phase) -> float:
    return phase.memory - phase.parts["reserved"]


def _settings(size: Size) -> Settings:
    longest = size.prompt + size.response + size.observation
    changes: dict[str, Any] = {
        "engine": "local",
        "model.dtype": str(size.dtype).removeprefix("torch."),
        "model.gradient_checkpointing": "true",
        "objective.kl_coef": 0.0,
        "optimizer.micro_batch_tokens": size.micro_batch_tokens,
        "rollout.engine": "local",
        "rollout.groups": 1,
        "rollout.group_size": size.episodes,
        "rollout.max_response_tokens": size.response,
        "rollout.max_context_tokens": longest,
    }
    return load_settings(RECIPE, [f"{key}={value}" for key, value in changes.items()])
