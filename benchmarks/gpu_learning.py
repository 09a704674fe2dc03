"""Part ``learning``: whole runs side by side, with and without PaW, until the time is up.

Each run is a process, as in ordinary training: success on held-out games before and after, a validation
panel in between. Small policies come first, together; language models get the GPU after them, since each run
keeps the memory that it took. A run that is still learning when its time is up stops after its update, and
the policy that it has by then is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_model import Check, Findings, Task

from paw_train.reporting.run.data import read_object, read_records
from paw_train.training.local import train_from_recipe

ROOT = Path(__file__).resolve().parents[1]
CLONED = 0.15
"""success on held-out games that a warm start cannot reach by chance: on CPUs it reaches 0.38"""
MEASURED = 0.25
"""share of the time, but at most ``LONGEST`` seconds, that is kept for measuring what was learned"""
LONGEST = 60.0
OFF, PAW = "world_model.preset=off", "world_model.preset=paw"
GPU = ("optimizer.micro_batch_tokens=16384",
       "optimizer.measure_gradients=false", "checkpoint_every=1000", "threads=1")  # fmt: skip
REGIME = ("env.invalid_when=malformed", "algorithm.normalize=false")
"""a refused command costs nothing, as in the paper, and a group's returns are not divided by their spread"""
PANELS = ("evaluation.tasks=200", "evaluation.batch=200", "evaluation.selection_tasks=96")
MEDIUM = ("model.scratch={tokenizer: words, architecture: llama, spell_unknown: false, hidden: 256, "
          "layers: 4, heads: 4, kv_heads: 2, intermediate: 704}", "cloning.steps=600",
          "cloning.episodes=4000", "cloning.slips=random", "optimizer.lr=2e-4")  # fmt: skip
SMOLLM2 = ("model.path=data/adapters/smollm2_alfworld", "model.dtype=bfloat16", "cloning.episodes=0",
           "rollout.groups=16", "rollout.group_size=8", "rollout.max_response_tokens=24",
           "objective.kl_coef=0", "optimizer.minibatches=4", "optimizer.lr=2e-4", "updates=60",
           "evaluation.every=8", "evaluation.selection_tasks=100")  # fmt: skip


@dataclass(frozen=True)
class Arm:
    """One run: a recipe, and the settings that replace the recipe's."""

    recipe: str
    changes: tuple[str, ...]


LITTLE = {
    "0.7M default": Arm("embedded", ()),
    "0.7M default, off": Arm("embedded", (OFF,)),
    "0.7M grpo": Arm("embedded", (*REGIME, OFF)),
    "0.7M grpo+paw": Arm("embedded", (*REGIME, PAW)),
    "3.2M grpo": Arm("embedded", (*MEDIUM, *REGIME, OFF)),
    "3.2M grpo+paw": Arm("embedded", (*MEDIUM, *REGIME, PAW)),
}
LANGUAGE = {
    "smollm2 grpo": Arm("llm", (*SMOLLM2, *REGIME, OFF)),
    "smollm2 grpo+paw": Arm("llm", (*SMOLLM2, *REGIME, PAW)),
}
ARMS = LITTLE | LANGUAGE
SMALL = {
    "smoke grpo+paw": Arm("smoke", ("updates=2", "cloning.steps=2", "evaluation.every=2", PAW))
}
FIELDS = ("update", "success_rate", "wm_loss", "invalid_rate", "grad_norm", "tokens", "sampled_tokens",
          "seconds_rollout", "seconds_train", "peak_memory_mb", "skipped")  # fmt: skip


def run(task: Task) -> Findings:
    """Runs every arm; the result is what they have at the end."""
    waves = [SMALL] if task.small else [LITTLE, LANGUAGE]
    ends = time.monotonic() + task.seconds
    for number, wave in enumerate(waves):
        _together(task, list(wave), (ends - time.monotonic()) / (len(waves) - number))
    arms = SMALL if task.small else ARMS
    found = {name: _read(_folder(task, name)) for name in arms}
    findings = Findings({"arms": found})
    for name, arm in found.items():
        rows = arm["updates"]
        finite = sum(math.isfinite(row.get("wm_loss", 0.0)) and not row["skipped"] for row in rows)
        findings.checks.append(
            Check(f"{name}: updates with finite losses", finite, low=max(1, len(rows)))
        )
        if not task.small and arm["before"]:
            success = arm["before"]["success_rate"]
            findings.checks.append(Check(f"{name}: success of the start", success, low=CLONED))
    return findings


def _folder(task: Task, name: str) -> Path:
    return task.folder / name.replace(" ", "_").replace(",", "")


def _together(task: Task, names: Sequence[str], seconds: float) -> None:
    """Runs arms side by side for at most the given time."""
    ends = time.monotonic() + seconds
    processes = [_started(task, name, seconds) for name in names]
    try:
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, ends - time.monotonic()))
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _started(task: Task, name: str, seconds: float) -> subprocess.Popen[bytes]:
    folder = _folder(task, name)
    command = [sys.executable, __file__, name, str(folder), task.device, str(seconds)]
    with folder.with_name(f"{folder.name}.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT)


def _read(folder: Path) -> dict[str, Any]:
    def rows(name: str) -> list[dict[str, Any]]:
        return list(read_records(folder / name, "update").by_key.values())

    def measured(when: str) -> dict[str, Any] | None:
        path = folder / f"eval_{when}.json"
        result = read_object(path) if path.exists() else None
        return result and {key: result[key] for key in ("success_rate", "ci95", "n")}

    return {
        "before": measured("before"),
        "after": measured("after"),
        "validation": rows("validation.jsonl"),
        "updates": [{k: row[k] for k in FIELDS if k in row} for row in rows("metrics.jsonl")],
    }


def train_arm(name: str, folder: Path, device: str, seconds: float) -> None:
    """Trains an arm until its time is up, and measures the policy that it has by then."""
    small = name in SMALL
    arm = (SMALL if small else ARMS)[name]
    changes = [f"out={folder.parent}", f"name={folder.name}", f"model.device={device}"]
    changes += arm.changes if small else [*GPU, *PANELS, *arm.changes]
    timer = threading.Timer(
        seconds - min(LONGEST, MEASURED * seconds), os.kill, (os.getpid(), signal.SIGINT)
    )
    timer.daemon = True
    timer.start()
    train_from_recipe(arm.recipe, changes, quiet=True)
    timer.cancel()
    latest = folder / "checkpoints" / "latest"
    if latest.exists() and not (folder / "eval_after.json").exists():
        measured = folder.with_name(f"{folder.name}-after")
        panel = [f"evaluation.tasks={200 if not small else 6}", f"model.device={device}"]
        command = [sys.executable, "-m", "paw_train.cli", "eval", str(folder), *panel]
        subprocess.run([*command, f"--out={measured}"], check=True)
        shutil.copyfile(measured / "result.json", folder / "eval_after.json")


def main() -> None:
    """Trains one arm."""
    parser = argparse.ArgumentParser(description="Trains one arm of the part.")
    parser.add_argument("name", choices=[*ARMS, *SMALL])
    parser.add_argument("folder", type=Path)
    parser.add_argument("device")
    parser.add_argument("seconds", type=float)
    train_arm(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
