"""The cost of PaW: time and memory of an update, with and without it, side by side.

    python benchmarks/overhead.py [--shape embedded] [--shape long] [--repeats 3] [--threads 2]

Both variants learn from the same rollout, one right after the other, in alternating order; the time
of an update includes everything between the rollout and the new weights. Peak memory comes from two
further processes, one for each variant. Weights are random, which costs as much as trained ones.

Shapes: ``embedded`` is the embedded default, playing ALFWorld; ``long`` has prompts of 2,048 tokens,
responses of 512 and observations of 100 for a model of SmolLM2-135M's shape.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gpu_model import sampled, trajectory, updating, words
from processes import memory_mb
from rich.console import Console
from rich.table import Table

from paw_train.evaluation import make_pool
from paw_train.policies.local.policy import LocalPolicy
from paw_train.policies.local.scratch import scratch_model, word_tokenizer
from paw_train.reporting.terminal import RunDisplay
from paw_train.rollouts.rollout import Trajectory, rollout
from paw_train.settings import ObjectiveSettings, OptimizerSettings, load_settings
from paw_train.settings.model import ScratchModelSettings
from paw_train.training.local import Run

VARIANTS = ("off", "paw")
VOCABULARY, PROMPT, RESPONSE, OBSERVATION = 49152, 2048, 512, 100
"""of the shape `long`: its tokens, and those of a transition"""


@dataclass
class Shape:
    """A model, its rollouts and its settings."""

    policy: LocalPolicy
    play: Callable[[], list[Trajectory]]
    optimizer: OptimizerSettings
    objective: ObjectiveSettings


def embedded(args: argparse.Namespace) -> Shape:
    """The embedded default's model, environment and batch."""
    small = ["rollout.groups=16", "objective.kl_coef=0.01"]
    settings = load_settings("embedded", [f"threads={args.threads}", "model.device=cpu", *small])
    run = Run(settings, Path(tempfile.gettempdir()), RunDisplay(True))
    env = settings.env
    training = env.replace(kwargs={**env.kwargs, **env.train_kwargs})
    groups, size = settings.rollout.groups, settings.rollout.group_size
    pool = make_pool(training, env.train_split, groups, size, settings.seed)

    def play() -> list[Trajectory]:
        return rollout(run.policy, pool, settings.rollout, torch.Generator().manual_seed(0))

    return Shape(run.policy, play, settings.optimizer, settings.objective)


def long(args: argparse.Namespace) -> Shape:
    """Transitions of 2,048 + 512 + 100 tokens, each with a prompt of its own."""
    shape = ScratchModelSettings(
        hidden=576, layers=args.layers, heads=9, kv_heads=3, intermediate=1536
    )
    tokenizer = word_tokenizer(["a few words"])
    policy = LocalPolicy(scratch_model(shape, VOCABULARY, seed=0), tokenizer)
    generator = torch.Generator().manual_seed(0)

    def play() -> list[Trajectory]:
        prompts = [words(PROMPT, VOCABULARY, generator) for _ in range(args.rows)]
        answers = sampled(policy, prompts, RESPONSE)
        observations = [words(OBSERVATION, VOCABULARY, generator) for _ in prompts]
        return [
            trajectory(i, prompt, [(answer.ids, answer.logprobs, seen)])
            for i, (prompt, answer, seen) in enumerate(
                zip(prompts, answers, observations, strict=True)
            )
        ]

    optimizer = OptimizerSettings(micro_batch_tokens=PROMPT + RESPONSE + OBSERVATION)
    return Shape(policy, play, optimizer, ObjectiveSettings())


SHAPES = {"embedded": embedded, "long": long}


def measure_time(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Seconds of each rollout and of each variant's update."""
    shape = SHAPES[name](args)
    given = (shape.policy, shape.optimizer, shape.objective)
    updates = {variant: updating(*given, variant)[1] for variant in VARIANTS}
    seconds: dict[str, list[float]] = {"rollout": [], **{v: [] for v in VARIANTS}}
    tokens = 0
    for repeat in range(args.repeats + 1):  # the first warms up: buffers, the optimiser's state
        started = time.perf_counter()
        trajectories = shape.play()
        spent = {"rollout": time.perf_counter() - started}
        tokens = sum(len(row.ids) for t in trajectories for row in t.rows)
        for variant in VARIANTS if repeat % 2 else reversed(VARIANTS):
            given = copy.deepcopy(trajectories)
            started = time.perf_counter()
            updates[variant](given)
            spent[variant] = time.perf_counter() - started
        if repeat or args.repeats == 0:
            for part, value in spent.items():
                seconds[part].append(value)
    return {"tokens": tokens, "seconds": seconds}


def measure_memory(args: argparse.Namespace, name: str) -> float:
    """MiB at the peak of two updates, in this process."""
    shape = SHAPES[name](args)
    _, update = updating(shape.policy, shape.optimizer, shape.objective, args.child)
    trajectories = shape.play()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is measured from here on
    for _ in range(2):
        update(copy.deepcopy(trajectories))
    return memory_mb(field="VmHWM")


def children(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Memory of each variant, each in a process of its own."""
    found = {}
    for variant in VARIANTS:
        command = [sys.executable, __file__, *sys.argv[1:], "--only", name, "--child", variant]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found[variant] = json.loads(done.stdout.splitlines()[-1])
    return found


def summary(time_of: dict[str, Any], peak: dict[str, float]) -> dict[str, float]:
    """The ratios of with PaW to without, from medians."""
    rollout_s, off, paw = (
        statistics.median(time_of["seconds"][part]) for part in ("rollout", *VARIANTS)
    )
    pairs = [b / a for a, b in zip(*(time_of["seconds"][v] for v in VARIANTS), strict=True)]
    return {
        "rollout seconds": rollout_s,
        "update seconds, off": off,
        "update seconds, PaW": paw,
        "update, PaW / off": statistics.median(pairs),
        "whole step, PaW / off": (rollout_s + paw) / (rollout_s + off),
        "peak MiB, off": peak["off"],
        "peak MiB, PaW": peak["paw"],
        "peak, PaW / off": peak["paw"] / peak["off"],
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    args = _arguments(argv)
    torch.set_num_threads(args.threads)
    if args.child:
        print(json.dumps(measure_memory(args, args.only)))
        return
    for name in args.shape or list(SHAPES):
        time_of = measure_time(args, name)
        found = summary(time_of, children(args, name))
        table = Table("", name, title=f"{time_of['tokens']} tokens, {args.repeats} repeats")
        for key, value in found.items():
            table.add_row(key, f"{value:.4g}")
        Console().print(table)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", action="append", choices=list(SHAPES), help="default: all")
    parser.add_argument("--repeats", type=int, default=3, help="measured, after one to warm up")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rows", type=int, default=8, help="long: transitions of an update")
    parser.add_argument("--layers", type=int, default=30, help="long: fewer, for a quick look")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--child", choices=VARIANTS, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
