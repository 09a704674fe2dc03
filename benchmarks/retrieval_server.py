"""The retrieval server under load, against Lucene in one process, over the same generated passages.

    python benchmarks/retrieval_server.py --passages 1000000 --clients 64 --seconds 20 --folder DIR

In-process searches are warmed up and then measured for ``--seconds`` of processor time each, in turns, so
that neither compiling nor other programs on a busy machine count; the server is loaded for ``--seconds`` by
the clock. Every answer is compared with that of the retriever itself, so an answer to the wrong query would
be counted. Passages and both indices are kept in ``--folder``. Needs the extras server, retrieval and lucene
(without lucene, the comparison is left out).
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from processes import Service, cpu_seconds, memory_mb

from paw_gym.retrieval import BM25Retriever, Corpus, Retriever
from paw_gym.retrieval.bm25_index import build_index

VOCABULARY = 200_000
LENGTH = 60
POOL = 2_000


def write_corpus(path: Path, count: int) -> None:
    """Writes passages whose words follow the Zipf-Mandelbrot law, without the most frequent ones."""
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = np.array(["".join(rng.choice(letters, rng.integers(4, 10))) for _ in range(VOCABULARY)])
    law = np.cumsum(1 / (np.arange(VOCABULARY) + 30.0))
    part = path.with_suffix(".part")
    with open(part, "w", encoding="utf-8") as file:
        for start in range(0, count, 10_000):
            size = min(10_000, count - start)
            picks = np.searchsorted(law, rng.random((size, LENGTH)) * law[-1])
            for row, chosen in enumerate(words[picks]):
                text = f'"Passage {start + row}"\n{" ".join(chosen)}'
                file.write(json.dumps({"id": str(start + row), "contents": text}) + "\n")
    os.replace(part, path)


def make_queries(corpus: Corpus) -> list[str]:
    """Queries of six words from one passage each."""
    rng = np.random.default_rng(1)
    queries = []
    for position in rng.integers(len(corpus), size=POOL):
        words = corpus[int(position)].text.split()
        queries.append(" ".join(rng.choice(words, 6, replace=False)))
    return queries


def open_lucene(corpus: Corpus, folder: Path) -> Retriever | None:
    try:
        from paw_gym.retrieval.lucene import LuceneRetriever

        begun, cpu = time.perf_counter(), time.process_time()
        lucene = LuceneRetriever(corpus, folder)
    except ImportError as error:
        print(f"Lucene is left out: {error}")
        return None
    wall, spent = time.perf_counter() - begun, time.process_time() - cpu
    size = sum(path.stat().st_size for path in folder.iterdir()) / len(corpus)
    print(
        f"Lucene index of {size:,.0f} bytes a passage ready after {wall:.0f} s ({spent:.0f} CPU s)"
    )
    return lucene


def measure(retrievers: dict[str, Retriever], queries: list[str], seconds: float) -> None:
    """Queries a second of each, one thread in this process, in turns of a tenth of the time."""
    totals = {name: [0, 0.0, 0.0] for name in retrievers}
    for retriever in retrievers.values():
        for query in queries:  # compiles the code and reads what is on disk
            retriever.search([query], 3)
    for _ in range(10):
        for name, retriever in retrievers.items():
            begun, cpu, total = time.perf_counter(), time.process_time(), totals[name]
            while time.process_time() - cpu < seconds / 10:
                retriever.search([queries[total[0] % POOL]], 3)
                total[0] += 1
            total[1] += time.perf_counter() - begun
            total[2] += time.process_time() - cpu
    for name, (asked, wall, spent) in totals.items():
        print(
            f"{name}, one thread: {asked / wall:,.0f} queries/s ({asked / spent:,.0f} per CPU second)",
            flush=True,
        )


def client(
    port: int, number: int, seconds: float, queries: list[str], expected: Any, out: Any
) -> None:
    rng = np.random.default_rng(number)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    kind = {"Content-Type": "application/json"}
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop:
        pick = rng.integers(POOL)
        with_scores = bool(rng.integers(2))
        body = {"queries": [queries[pick]], "topk": 3, "return_scores": with_scores}
        begun = time.perf_counter()
        connection.request("POST", "/retrieve", json.dumps(body), kind)
        (found,) = json.loads(connection.getresponse().read())["result"]
        out["seconds"].append(time.perf_counter() - begun)
        ids = [entry["document"]["id"] if with_scores else entry["id"] for entry in found]
        out["wrong"] += ids != expected[pick]


def run_server(given: argparse.Namespace, queries: list[str], expected: list[list[str]]) -> None:
    corpus, index = str(given.folder / "corpus.jsonl"), str(given.folder / "bm25")
    options = ("--corpus", corpus, "--index", index, "--threads", "2")
    with Service("serve", "retriever", *options) as server:
        client(server.port, 99, 2.0, queries, expected, {"seconds": [], "wrong": 0})
        results = [{"seconds": [], "wrong": 0} for _ in range(given.clients)]
        threads = [
            threading.Thread(
                target=client, args=(server.port, n, given.seconds, queries, expected, result)
            )
            for n, result in enumerate(results)
        ]
        before, begun = cpu_seconds(server.pid), time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wall = time.perf_counter() - begun
        spent = cpu_seconds(server.pid) - before
        seconds = np.concatenate([result["seconds"] for result in results])
        asked = len(seconds)
        p50, p99 = np.quantile(seconds, [0.5, 0.99]) * 1000
        print(
            f"Server, {given.clients} clients: "
            f"{asked / wall:,.0f} queries/s ({asked / spent:,.0f} per CPU second of the server), "
            f"p50 {p50:,.0f} ms, p99 {p99:,.0f} ms, RSS {memory_mb(server.pid):,.0f} MB, of which "
            f"{memory_mb(server.pid, 'RssAnon'):,.0f} MB are its own and the rest mapped files, "
            f"wrong answers: {sum(result['wrong'] for result in results)} of {asked:,}"
        )
    print(f"load {os.getloadavg()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passages", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    path = given.folder / "corpus.jsonl"
    if not path.is_file():
        write_corpus(path, given.passages)
    begun, cpu = time.perf_counter(), time.process_time()
    corpus = Corpus.open(path)
    print(f"{len(corpus):,} passages scanned in {time.perf_counter() - begun:.0f} s", end=" ")
    print(f"({time.process_time() - cpu:.0f} CPU s); load {os.getloadavg()}")
    begun, cpu = time.perf_counter(), time.process_time()
    build_index(corpus, given.folder / "bm25")
    size = sum(path.stat().st_size for path in (given.folder / "bm25").iterdir())
    print(f"index: {size / len(corpus):,.0f} bytes a passage", end=", ")
    print(f"{time.perf_counter() - begun:.0f} s ({time.process_time() - cpu:.0f} CPU s) to build")
    bm25 = BM25Retriever(corpus, given.folder / "bm25")
    queries = make_queries(corpus)
    expected = [[hit.id for hit in bm25.search([query], 3)[0]] for query in queries]
    retrievers: dict[str, Retriever] = {"bm25": bm25}
    if (lucene := open_lucene(corpus, given.folder / "lucene")) is not None:
        retrievers["Lucene"] = lucene
    measure(retrievers, queries, given.seconds)
    run_server(given, queries, expected)


if __name__ == "__main__":
    main()
