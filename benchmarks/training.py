"""Rollout and update of this project and of TRL's ``GRPOTrainer``, side by side.

    python benchmarks/training.py --make-env DIR [--shapes embedded,long,smollm2] [--repeats 3]
    python benchmarks/training.py --trl-python PATH/bin/python

Both train the same model on the same prompts with completions of the same fixed length: equal
micro-batches, float32, AdamW, no reference model, one optimiser step an update, equal threads. TRL
has an environment of its own (``--make-env`` makes it, ``--trl-python`` names one). The two take
turns, each time in a new process whose first step is not counted.

CPU seconds are what the ratios are of, since they stay nearly the same when other programs use the
machine; seconds on the clock stand beside them.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table
from training_job import PHASES, Job, StepRecord, read_records
from training_model import SHAPES, Shape, write_model, write_prompts

HERE = Path(__file__).resolve().parent
TRL_VERSION = "1.16.0"
SIDES = ("paw", "trl")
Measurements = dict[str, list[list[StepRecord]]]
"""side -> processes -> measured steps"""


def make_env(folder: Path) -> Path:
    """A virtual environment with TRL and this one's torch and transformers; returns its Python."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    torch = importlib.metadata.version("torch").partition("+")[0]
    same = f"transformers=={importlib.metadata.version('transformers')}"
    install = [str(python), "-m", "pip", "install", "-q"]
    subprocess.run([*install, f"torch=={torch}"], check=True)
    subprocess.run([*install, f"torch=={torch}", f"trl=={TRL_VERSION}", same], check=True)
    return python


def make_job(shape: Shape, folder: Path, threads: int) -> Job:
    """Writes the model and samples the prompts of all steps."""
    words = write_model(shape, folder)
    steps = shape.steps + 1
    return Job(
        model=str(folder),
        prompts=write_prompts(words, steps * shape.groups, shape.prompt_tokens, seed=0),
        groups=shape.groups,
        group_size=shape.group_size,
        prompt_tokens=shape.prompt_tokens,
        completion_tokens=shape.completion_tokens,
        micro_rows=shape.micro_rows,
        threads=threads,
    )


def run_side(side: str, python: str, job: Job, folder: Path) -> tuple[list[StepRecord], str]:
    """One measured process; its steps without the warm-up, and its versions."""
    task, answer = folder / "job.json", folder / "answer.json"
    job.write(task)
    answer.unlink(missing_ok=True)
    threads = str(job.threads)
    done = subprocess.run(
        [python, str(HERE / f"training_{side}.py"), str(task), str(answer)],
        env={
            **os.environ,
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or not answer.exists():
        raise SystemExit(f"the process of {side} failed:\n{done.stderr[-3000:]}")
    return read_records(answer)


def check_equal(job: Job, measured: dict[str, list[StepRecord]]) -> None:
    """Raises ``SystemExit`` unless both sides read and sampled the same amounts of the same prompts."""
    for side, records in measured.items():
        counts = {(record.sampled, record.trained) for record in records}
        if counts != {(job.sampled, job.trained)} or len(records) != job.steps:
            raise SystemExit(
                f"{side}: expected {job.steps} steps of {job.sampled} sampled and {job.trained} "
                f"trained tokens, got {len(records)} of {sorted(counts)}."
            )
    prompts = [[record.prompts for record in records] for records in measured.values()]
    if any(other != prompts[0] for other in prompts):
        raise SystemExit("The two sides did not see the same prompts in tokens.")


def rate(records: list[StepRecord], phase: str, clock: str, tokens: int) -> float:
    """Tokens a second over the steps of one process."""
    seconds: float = sum(getattr(getattr(record, phase), clock) for record in records)
    return tokens * len(records) / seconds


def show(name: str, shape: Shape, job: Job, found: Measurements, console: Console) -> None:
    """Prints medians over processes, and the ratio of each pair of neighbours."""
    table = Table(title=f"{name}: {shape.note}")
    for column in ("tokens/s", "paw (CPU)", "TRL (CPU)", "ratio", "range", "paw", "TRL", "ratio "):
        table.add_column(column, justify="left" if column == "tokens/s" else "right")
    for phase in PHASES:
        tokens = job.sampled if phase == "rollout" else job.trained
        cells = [phase]
        for clock in ("cpu", "wall"):
            rates = {
                side: [rate(records, phase, clock, tokens) for records in found[side]]
                for side in SIDES
            }
            ratios = [a / b for a, b in zip(rates["paw"], rates["trl"], strict=True)]
            cells += [f"{statistics.median(rates[side]):,.0f}" for side in SIDES]
            cells.append(f"{statistics.median(ratios):.2f}")
            if clock == "cpu":
                cells.append(f"{min(ratios):.2f}-{max(ratios):.2f}")
        table.add_row(*cells)
    console.print(table)
    console.print(
        f"{job.groups} prompts x {job.group_size} completions, {job.prompt_tokens} + "
        f"{job.completion_tokens} tokens, micro-batches of {job.micro_rows} rows, vocabulary "
        f"{shape.vocabulary:,}; {shape.steps} steps in each of {len(found['paw'])} processes a side."
    )


def measure(job: Job, shape: Shape, pythons: dict[str, str], repeats: int) -> Measurements:
    """Lets the sides take turns."""
    found: Measurements = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="paw-bench-") as scratch:
        for _ in range(repeats):
            turn: dict[str, list[StepRecord]] = {}
            for side in SIDES:
                turn[side], versions = run_side(side, pythons[side], job, Path(scratch))
                counted = turn[side][job.warm_up :]
                print(
                    f"  {side}: {rate(counted, 'rollout', 'cpu', job.sampled):,.0f} tokens/s rollout, "
                    f"{rate(counted, 'update', 'cpu', job.trained):,.0f} update (CPU); {versions}",
                    file=sys.stderr,
                )
            check_equal(job, turn)
            for side in SIDES:
                found[side].append(turn[side][job.warm_up :])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    env = parser.add_mutually_exclusive_group(required=True)
    env.add_argument("--trl-python", help="Python of an environment that has TRL")
    env.add_argument("--make-env", type=Path, help="make that environment here (once)")
    parser.add_argument("--shapes", default="embedded,long", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--repeats", type=int, default=3, help="processes a side")
    parser.add_argument("--steps", type=int, help="measured steps in each process")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    chosen = args.shapes.split(",")
    if unknown := set(chosen) - set(SHAPES):
        parser.error(f"unknown shapes {sorted(unknown)}; there are {', '.join(SHAPES)}")
    trl_python = str(make_env(args.make_env)) if args.make_env else args.trl_python
    pythons = {"paw": sys.executable, "trl": trl_python}
    console = Console(width=100)
    for name in chosen:
        shape = SHAPES[name]
        shape = replace(shape, steps=args.steps or shape.steps)
        with tempfile.TemporaryDirectory(prefix="paw-bench-model-") as folder:
            job = make_job(shape, Path(folder), args.threads)
            found = measure(job, shape, pythons, args.repeats)
        show(name, shape, job, found, console)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    console.print(f"{args.threads} thread(s) a side; load of the machine (1, 5, 15 min): {load}.")


if __name__ == "__main__":
    main()
