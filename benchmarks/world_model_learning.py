"""The effect of world-model learning by arm and stage, from the folder of a `paw compare rwml`.

    python benchmarks/world_model_learning.py runs/rwml

Prints Markdown: the world model on held-out transitions (mean over seeds and t interval), then success
before and after policy RL. Runs that have not come so far are left out, and counted.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paw_train.evaluation.statistics import mean_interval
from paw_train.reporting.run.world_model import STAGES

ARMS = ("base", "wm-sft", "rwml")
METRICS = (
    ("similarity", "similarity", 1.0, 3),
    ("exact_match", "exact match, %", 100.0, 1),
    ("token_accuracy", "token accuracy, %", 100.0, 1),
    ("nll_per_token", "NLL per token", 1.0, 3),
)


def main() -> None:
    """Reads the runs and prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the comparison's folder")
    folder: Path = parser.parse_args().folder
    print("| arm | stage | seeds | " + " | ".join(label for _, label, _, _ in METRICS) + " |")
    print("| --- | --- | --- |" + " --- |" * len(METRICS))
    for arm in ARMS:
        for stage, label in STAGES.items():
            found = _read(folder, arm, f"world_model/{stage}.json")
            if found:
                cells = [
                    describe([scale * f[key]["mean"] for f in found], digits)
                    for key, _, scale, digits in METRICS
                ]
                print(f"| {arm} | {label} | {len(found)} | " + " | ".join(cells) + " |")
    print("\n| arm | seeds | success before RL, % | seeds | after, % | invalid before / after, % |")
    print("| --- | --- | --- | --- | --- | --- |")
    for arm in ARMS:
        before = _read(folder, arm, "eval_before.json")
        after = _read(folder, arm, "eval_after.json")
        rates = [describe([100 * f["success_rate"] for f in part], 1) for part in (before, after)]
        invalid = [
            describe([100 * f["invalid_rate"] for f in p], 1, False) for p in (before, after)
        ]
        print(
            f"| {arm} | {len(before)} | {rates[0]} | {len(after)} | {rates[1]} | "
            f"{' / '.join(invalid)} |"
        )


def describe(values: Sequence[float], digits: int, interval: bool = True) -> str:
    """The mean, its t interval, and the values it is made of."""
    if not values:
        return "-"
    text = f"{sum(values) / len(values):.{digits}f}"
    if not interval:
        return text
    if len(values) > 1:
        low, high = mean_interval(values)
        text += f" [{low:.{digits}f}, {high:.{digits}f}]"
    return text + " (" + ", ".join(f"{v:.{digits}f}" for v in values) + ")"


def _read(folder: Path, arm: str, name: str) -> list[dict[str, Any]]:
    paths = sorted(folder.glob(f"{arm}-seed*/{name}"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


if __name__ == "__main__":
    main()
