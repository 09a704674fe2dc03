"""What PaW adds to an update on the cluster engine: the same run with and without it.

    CLUSTER_VENV/bin/python benchmarks/openrlhf_overhead.py --out /tmp/overhead

Without CUDA the runs use the stand-ins of tests/openrlhf/cpu and a small untrained model. Runs take turns
(off, PaW, PaW, off); of each, the first updates are not counted. Prints medians over updates; CPU seconds
are those of the training process alone, which other load on the machine hardly changes.
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
SETTINGS = ("evaluation.every=0", "objective.log_observations=false", "optimizer.schedule=constant")
VARIANTS = {"off": "objective.wm.wm=off", "PaW": "objective.wm.wm=on"}
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
    from paw_train.policies.local import LocalPolicy
    from paw_train.policies.scratch import ScratchModelSettings, scratch_model, word_tokenizer
    from paw_train.rollout import demonstrations

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
    parser.add_argument("--updates", type=int, default=22)
    parser.add_argument("--skip", type=int, default=2, help="first updates that do not count")
    parser.add_argument("--turns", default="off,PaW,PaW,off", help="the order of the runs")
    parser.add_argument("overrides", nargs="*", help="settings of both, KEY=VALUE")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if not (args.out / "model").exists():
        make_model(args.out / "model")
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in VARIANTS}
    for number, variant in enumerate(args.turns.split(",")):
        rows = run(args.out, f"run{number}", variant, [f"updates={args.updates}", *args.overrides])
        found[variant] += rows[args.skip :]
    print("| measure | off | PaW | PaW / off |\n| --- | --- | --- | --- |")
    for key, title in MEASURES.items():
        off, paw = (statistics.median(row[key] for row in found[name]) for name in VARIANTS)
        print(f"| {title} | {off:.4g} | {paw:.4g} | {paw / off:.3f} |")
    print(f"{len(found['off'])} and {len(found['PaW'])} updates.")


if __name__ == "__main__":
    main()
