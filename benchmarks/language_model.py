"""Tokens per second of a pretrained language model on a CPU: reading, decoding, learning, in two precisions.

The load is that of ``recipes/smollm2_alfworld_cpu.yaml``: dialogues of procedural ALFWorld, played by the
expert. *Decoding* is one more token of each. *Reading* is the next message of each, with the cache of the
dialogue so far. *Scoring* and *learning* are a forward pass, and a forward and a backward pass, over three
dialogues joined into one row, with log-probabilities of the actions and observations. Each figure is the
fastest of some repeats; precisions are measured one after the other in one process.

    python benchmarks/language_model.py
    python benchmarks/language_model.py --threads 2 --rows 32
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import torch

from paw_train.environments import make_pool
from paw_train.policies.local.decoder import BatchDecoder
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.tokens import TokenRow, collate
from paw_train.settings import load_settings
from paw_train.training.cloning import expert_rows

PRECISIONS = ("float32", "bfloat16")


def dialogues(policy: LocalPolicy, rows: int) -> list[TokenRow]:
    """Rows of whole episodes of the recipe's expert."""
    env = load_settings("smollm2_alfworld_cpu").only_env
    pool = make_pool(env, env.train_split, 1, 1, 0)
    found = expert_rows(pool, policy.chat, pool.tasks.ids[: 2 * rows], 0.1, 0)
    pool.close()
    return found[:rows]


def fastest(work: Callable[[], Any], repeats: int) -> float:
    """Seconds."""
    seconds = []
    for _ in range(repeats + 1):  # the first one compiles kernels
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def measure(policy: LocalPolicy, rows: list[TokenRow], repeats: int) -> dict[str, float]:
    """Tokens per second by phase."""
    decoder = BatchDecoder(policy.model, len(rows))
    middles = [row.steps[len(row.steps) // 2].action[0] for row in rows]
    decoder.feed([row.ids[:middle] for row, middle in zip(rows, middles, strict=True)])
    message = rows[0].ids[middles[0] : middles[0] + 50]
    step = {row: 100 + row for row in range(len(rows))}
    found = {
        "decoding": len(rows) / fastest(lambda: decoder.advance(step), 10 * repeats),
        "reading": 50 * len(rows) / fastest(lambda: decoder.feed([message] * len(rows)), repeats),
    }
    batch = collate(rows[:3], policy.pad_id, policy.can_join)
    tokens = sum(len(row.ids) for row in rows[:3])

    def score() -> None:
        with torch.no_grad():
            policy.logprobs(batch)

    def learn() -> None:
        policy.logprobs(batch).sum().backward()

    return {
        **found,
        "scoring": tokens / fastest(score, repeats),
        "learning": tokens / fastest(learn, repeats),
    }


def main() -> None:
    """Prints a table: phases by precision, and ratios to float32."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--model", default="data/adapters/smollm2_alfworld", help="path of a model or adapter"
    )
    parser.add_argument("--rows", type=int, default=16, help="dialogues at a time")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    found = {}
    for dtype in PRECISIONS:
        policy = LocalPolicy.load(chosen.model, dtype=dtype)
        found[dtype] = measure(policy, dialogues(policy, chosen.rows), chosen.repeats)
    print(f"Tokens per second; {chosen.rows} dialogues, {chosen.threads} of {os.cpu_count()} cores")
    phases = list(next(iter(found.values())))
    print("| | " + " | ".join(phases) + " |\n| --- |" + " ---: |" * len(phases))
    for name, row in found.items():
        cells = [f"{row[p]:.0f} ({row[p] / found['float32'][p]:.2f})" for p in phases]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
