"""Flat, HNSW and IVF-PQ side by side: memory, time to build, queries a second, recall against flat.

    python benchmarks/retrieval_vectors.py --sizes 10000 100000

Vectors are sampled around random centres, as those of texts lie around topics, and are of length 1.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from paw_gym.retrieval.vector_index import (
    SearchEffort,
    VectorIndexSettings,
    faiss,
    fill_index,
    load_index,
    new_index,
    refine,
    save_index,
    search_index,
)
from paw_gym.retrieval.vectors import VectorStore, encode_vectors

QUERIES = 200
TOP_K = 10


def topics(count: int, dim: int, rng: np.random.Generator) -> np.ndarray:
    """[count, dim] float32 of length 1, sampled around one centre for each hundred of them."""
    centres = rng.standard_normal((max(1, count // 100), dim), dtype=np.float32)
    vectors = centres[rng.integers(len(centres), size=count)]
    vectors += 0.7 * rng.standard_normal((count, dim), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def settings(train_size: int, build_effort: int) -> dict[str, VectorIndexSettings]:
    return {
        "flat float32": VectorIndexSettings("flat"),
        "flat float16": VectorIndexSettings("flat", "float16"),
        "flat int8": VectorIndexSettings("flat", "int8"),
        "hnsw float32": VectorIndexSettings("hnsw", build_effort=build_effort),
        "hnsw int8": VectorIndexSettings("hnsw", "int8", build_effort=build_effort),
        "ivfpq": VectorIndexSettings("ivfpq", train_size=train_size),
    }


def measure(count: int, given: argparse.Namespace, folder: Path) -> None:
    rng = np.random.default_rng(0)
    vectors = topics(count, given.dim, rng)
    noise = 0.5 * rng.standard_normal((QUERIES, given.dim), dtype=np.float32) / np.sqrt(given.dim)
    queries = vectors[rng.choice(count, QUERIES, replace=False)] + noise
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    np.save(folder / f"{0:012d}.npy", encode_vectors(vectors, "float16")[0])
    stored = VectorStore(folder, (0, count), given.dim, "float16")
    exact: np.ndarray | None = None
    for name, chosen in settings(given.train_size, given.build_effort).items():
        if given.only and not any(name.startswith(only) for only in given.only):
            continue
        begun = time.perf_counter(), time.process_time()
        index = new_index(given.dim, count, chosen)
        fill_index(index, vectors, chosen)
        built = time.perf_counter() - begun[0], time.process_time() - begun[1]
        save_index(index, folder / "index.faiss")
        size = (folder / "index.faiss").stat().st_size / count
        index = load_index(folder / "index.faiss")
        efforts = [SearchEffort()]
        if chosen.kind == "ivfpq":
            efforts = [SearchEffort(refine=0), SearchEffort(refine=8)]
        for effort in efforts:
            begun = time.perf_counter(), time.process_time()
            again = effort.refine if chosen.kind == "ivfpq" else 0
            _, found = search_index(index, queries, TOP_K * max(1, again), effort)
            if again:
                _, found = refine(queries, found, stored, TOP_K)
            spent = time.perf_counter() - begun[0], time.process_time() - begun[1]
            exact = found if exact is None else exact
            pairs = zip(found, exact, strict=True)
            recall = np.mean([len(set(f) & set(e)) / TOP_K for f, e in pairs])
            label = f"{name}, refined" if again else name
            print(
                f"| {count:,} | {label} | {size:,.0f} | {built[0]:,.1f} ({built[1]:,.1f}) | "
                f"{QUERIES / spent[0]:,.0f} ({QUERIES / spent[1]:,.0f}) | {recall:.3f} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--train-size", type=int, default=200_000)
    parser.add_argument("--build-effort", type=int, default=200)
    parser.add_argument("--only", nargs="*", help="kinds to measure, flat float32 among them")
    given = parser.parse_args()
    print(f"{faiss().omp_get_max_threads()} threads, dimension {given.dim}, load {os.getloadavg()}")
    print("| vectors | index | bytes each | build s (CPU s) | queries/s (per CPU s) | recall@10 |")
    print("| --- | --- | --- | --- | --- | --- |")
    for count in given.sizes:
        with tempfile.TemporaryDirectory() as folder:
            measure(count, given, Path(folder))


if __name__ == "__main__":
    main()
