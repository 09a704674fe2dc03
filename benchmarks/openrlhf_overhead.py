"""The cost of PaW in an update on the cluster engine: the same run with and without it.

    CLUSTER_VENV/bin/python benchmarks/openrlhf_overhead.py --out /tmp/overhead

Without CUDA the runs use the stand-ins of tests/openrlhf/cpu and a small untrained model. Runs take turns
(off, PaW, PaW, off) and see the same episodes, because weights hardly move; of each, the first updates
are not counted. Prints means over updates; CPU seconds are those of the training process alone, which
other load on the machine hardly changes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "tests" / "openrlhf" / "cpu" / "run_on_cpu.py"
SETTINGS = (
    "evaluation.every=0",
    "objective.log_observations=false",
    "optimizer.schedule=constant",
    "optimizer.lr=1e-9",  # below what bfloat16 resolves: both variants see the same episodes
    "rollout.groups=4",
    "rollout.group_size=8",
)
VARIANTS = {"off": "world_model.enabled=false", "PaW": "world_model.enabled=true"}
MEASURES = {
    "seconds_train_cpu": "training process, CPU s",
    "timing/ppo_train": "training, wall s",
    "timing/make_experience": "advantages and scores, wall s",
    "seconds_rollout": "rollout, wall s",
    "tokens": "tokens",
}


def make_model(folder: Path) -> None:
    """An untrained model that is large enough for the forward pass to count."""
    import numpy as np

    from paw_gym.pool import EnvPool
    from paw_train.policies.local.policy import LocalPolicy
    from paw_train.policies.local.scratch import scratch_model, word_tokenizer
    from paw_train.rollouts.rollout import demonstrations
    from paw_train.settings.scratch import ScratchModelSettings

    pool = EnvPool("paw_gym/ALFWorld-v0", split="train", template="compact", mode="conversation")
    texts = []
    for trajectory in demonstrations(
        pool, None, pool.tasks.ids[:20], 0.2, np.random.default_rng(0)
    ):
        texts.append(trajectory.episode.instruction)
        for t in trajectory.episode.transitions:
            texts += [t.prompt, t.response, t.next_observation]
    tokenizer = word_tokenizer(texts)
    shape = ScratchModelSettings(hidden=192, layers=4, heads=4, kv_heads=2, intermediate=512)
    LocalPolicy(scratch_model(shape, len(tokenizer), 0).bfloat16(), tokenizer).save(folder)


def run(out: Path, name: str, variant: str, overrides: list[str]) -> list[dict[str, Any]]:
    """One run; the measurements of its updates."""
    command = [sys.executable, str(PROGRAM), str(out), f"name={name}", VARIANTS[variant]]
    with (out / f"{name}.log").open("w", encoding="utf-8") as log:
        subprocess.run(
            [*command, *SETTINGS, *overrides],
            check=True,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    lines = (out / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--updates", type=int, default=14)
    parser.add_argument("--skip", type=int, default=2, help="first updates that do not count")
    parser.add_argument("--turns", default="off,PaW,PaW,off", help="the order of the runs")
    parser.add_argument("overrides", nargs="*", help="settings of both, KEY=VALUE")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if not (args.out / "model").exists():
        make_model(args.out / "model")
    found: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in VARIANTS}
    for number, variant in enumerate(args.turns.split(",")):
        rows = run(args.out, f"run{number}", variant, [f"updates={args.updates}", *args.overrides])
        found[variant].append(rows[args.skip :])
    print("| measure | off | PaW | PaW / off | quartiles |\n| --- | --- | --- | --- | --- |")
    for key, title in MEASURES.items():
        off, paw = ([sum(parts) for parts in _by_update(found[name], key)] for name in VARIANTS)
        ratios = [p / o for p, o in zip(paw, off, strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        count = len(off) * len(found["off"])
        print(
            f"| {title} | {sum(off) / count:.4g} | {sum(paw) / count:.4g} | "
            f"{sum(paw) / sum(off):.3f} | {low:.2f} to {high:.2f} |"
        )
    print(f"{count} updates of each; quartiles of the ratio from update to update.")


def _by_update(runs: list[list[dict[str, Any]]], key: str) -> list[list[float]]:
    """For each update, the measurements of all runs."""
    return [[row[key] for row in rows] for rows in zip(*runs, strict=True)]


if __name__ == "__main__":
    main()
