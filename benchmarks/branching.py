"""The cost of a branched update beside an unbranched one with as many episodes.

    python benchmarks/branching.py runs/embedded [--groups 8] [--repeats 3] [--threads 1]

All variants take the policy of a training run's warm start. The unbranched one samples every episode from
the initial state (GRPO); the branched one samples a part of them so and continues the rest from states of
these (tree_grpo, states of highest action entropy). The third is the branched one where every branch is read
from its beginning, in rollout and update, as if nothing could be shared. What is counted, of rollout and of
update: the positions that pass through the model, padding included, seconds, and peak memory. Each
measurement is a process of its own, one variant right after the other; the first update in each warms up.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from processes import memory_mb
from rich.console import Console
from rich.table import Table

from paw_train.algorithms.experience import collect, prepare
from paw_train.algorithms.update import Updater
from paw_train.environments import make_pool, max_return, training_env
from paw_train.policies.checkpoints import find_checkpoint
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.branching import branching_rollout
from paw_train.rollouts.rollout import Trajectory, sampled_tokens
from paw_train.settings import Settings
from paw_train.settings.foreign import recorded_settings
from paw_train.settings.run import read_recorded

VARIANTS = ("unbranched", "branched", "branched, unshared")
MEASURES = (
    *("episodes", "sampled tokens", "rollout positions", "update positions", "all positions"),
    *("rollout seconds", "update seconds", "all seconds", "peak MiB"),
)


def settings_of(args: argparse.Namespace, variant: str) -> Settings:
    """The run's settings with the sizes of a variant; all have as many episodes."""
    run = Settings.read(
        recorded_settings(
            read_recorded(args.run / "config.json"), str(args.run), (), tuple(Settings.model_fields)
        )
    )
    extra = args.size * args.points * (args.branches - 1)
    if variant != "unbranched":
        name, size, branches = "tree_grpo", args.size, args.branches
    else:
        name, size, branches = "grpo", args.size + extra, 1
    own = run.rollout.branching.replace(branches=branches, points=args.points, max_tokens=None)
    sizes = run.rollout.replace(groups=args.groups, group_size=size, branching=own)
    return run.replace(rollout=sizes, algorithm=run.algorithm.replace(name=name))


class Measurement:
    """Updates of one variant."""

    def __init__(self, settings: Settings, folder: Path, shared: bool = True) -> None:
        self.settings, self.shared = settings, shared
        checkpoint = find_checkpoint(folder / "checkpoints" / "warm")
        if checkpoint is None:
            raise SystemExit(
                f"{folder} has no warm start: a run of paw train that clones an expert."
            )
        self.policy = LocalPolicy.load(checkpoint / "model")
        self.positions = 0
        self.policy.model.get_input_embeddings().register_forward_pre_hook(self._count)
        s = settings
        self.pool = make_pool(
            training_env(s.env), s.env.train_split, s.rollout.groups, s.rollout.group_size, s.seed
        )
        reference = self.policy.reference() if s.objective.kl_coef else None
        self.updater = Updater(
            self.policy, reference, s.optimizer, s.objective, s.world_model, s.rollout.temperature, 100
        )  # fmt: skip

    def _count(self, _: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        self.positions += inputs[0].numel()

    def _timed(self, work: Callable[[], Any]) -> tuple[Any, int, float]:
        before, started = self.positions, time.perf_counter()
        result = work()
        return result, self.positions - before, time.perf_counter() - started

    def update(self, seed: int) -> dict[str, float]:
        """Samples and learns once."""
        s = self.settings
        generator = torch.Generator().manual_seed(seed)
        sampled, read, seconds = self._timed(
            lambda: branching_rollout(
                self.policy, self.pool, s.rollout, generator, share=self.shared
            )
        )
        _, learned, more = self._timed(lambda: self._learn(sampled))
        return {
            "episodes": len(sampled),
            "sampled tokens": sampled_tokens(sampled),
            "rollout positions": read,
            "update positions": learned,
            "all positions": read + learned,
            "rollout seconds": seconds,
            "update seconds": more,
            "all seconds": seconds + more,
        }

    def _learn(self, sampled: list[Trajectory]) -> None:
        s, transitions = self.settings, collect(sampled)
        experience = prepare(
            transitions,
            s.algorithm,
            s.objective,
            s.world_model,
            max_return(s.env),
            self.updater.signals(transitions),
            self.policy.chat.ask,
            s.optimizer.micro_batch_tokens if self.shared and self.policy.can_join else 0,
        )
        self.updater.step(experience, 0, 0)


def measure(args: argparse.Namespace) -> dict[str, float]:
    """One variant in this process: its second update, and the peak of both."""
    torch.set_num_threads(args.threads)
    shared = args.child != "branched, unshared"
    measurement = Measurement(settings_of(args, args.child), args.run, shared)
    for seed in (2 * args.seed, 2 * args.seed + 1):
        found = measurement.update(seed)
    return {**found, "peak MiB": memory_mb(field="VmHWM")}


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    args = _arguments(argv)
    if args.child:
        print(json.dumps(measure(args)))
        return
    found: dict[str, list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
    for repeat in range(args.repeats):
        for variant in VARIANTS if repeat % 2 else reversed(VARIANTS):
            command = [sys.executable, __file__, *(argv or sys.argv[1:])]
            command += ["--child", variant, "--seed", str(repeat)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found[variant].append(json.loads(done.stdout.splitlines()[-1]))
    title = f"medians of {args.repeats} updates; ratios of branched to the others"
    table = Table("", *VARIANTS, "to unbranched", "to unshared", title=title)
    for name in MEASURES:
        middle = [statistics.median(line[name] for line in found[v]) for v in VARIANTS]
        ratios = [
            statistics.median(
                b[name] / a[name] for a, b in zip(found[other], found["branched"], strict=True)
            )
            for other in ("unbranched", "branched, unshared")
        ]
        table.add_row(name, *(f"{value:,.5g}" for value in middle), *(f"{r:.2f}" for r in ratios))
    Console().print(table)
    if args.out:
        Path(args.out).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of a training run with a warm start")
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--size", type=int, default=4, help="episodes of a group that are branched")
    parser.add_argument("--points", type=int, default=2, help="branching states of each")
    parser.add_argument("--branches", type=int, default=3, help="continuations of each state")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", help="also write the results to this JSON file")
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--child", choices=VARIANTS, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
