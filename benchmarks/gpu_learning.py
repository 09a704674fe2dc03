"""Part ``learning``: the start of the embedded recipe, trained as anyone would train it.

The run lies in the part's folder, so a part that was stopped goes on where it was.
"""

from __future__ import annotations

import json
import math
from typing import Any

from gpu_findings import Check, Findings, Task

from paw_train.training.local import train_from_recipe

CLONED = 0.15
"""success of the warm start on held-out games that is surely not reached by chance: it has 0.38 on CPUs"""
FULL = ("updates=8", "evaluation.tasks=100", "evaluation.every=4", "checkpoint_every=2")
SMALL = ("updates=2", "evaluation.every=2", "cloning.steps=2", "optimizer.measure_gradients=false")


def run(task: Task) -> Findings:
    """Trains, or goes on with it."""
    recipe, changes = ("smoke", SMALL) if task.small else ("embedded", FULL)
    place = [f"out={task.folder}", "name=run", f"model.device={task.device}"]
    folder = train_from_recipe(recipe, [*place, *changes], quiet=True)
    updates = [json.loads(line) for line in (folder / "metrics.jsonl").open(encoding="utf-8")]
    before, after = (_success(folder / f"eval_{when}.json") for when in ("before", "after"))
    fields = ("update", "success_rate", "wm_loss", "seconds_rollout", "seconds_train", "tokens")
    curve = [{name: row[name] for name in fields if name in row} for row in updates]
    findings = Findings({"curve": curve, "success_before": before, "success_after": after})
    finite = sum(math.isfinite(row["wm_loss"]) and not row["skipped"] for row in updates)
    findings.checks.append(Check("updates with finite losses", finite, low=len(updates)))
    if not task.small:
        findings.checks.append(Check("success of the warm start", before["mean"], low=CLONED))
    return findings


def _success(path: Any) -> dict[str, Any]:
    result = json.loads(path.read_text(encoding="utf-8"))
    return {"mean": result["success_rate"], "ci95": result["ci95"], "n": result["n"]}
