"""The retrieval server: its two formats, batches under concurrency, limits, faults and nonsense."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from servers import in_thread, wait_until
from starlette.testclient import TestClient

from env_servers.retrieval import Batcher, create_app
from paw_gym import make_agent_env
from paw_gym.retrieval import Hit, RemoteRetriever, RetrieverError, SearchContext, make_retriever

PASSAGES = [(f"p{i}", f'"Title {i}"\nword{i} word{i // 2} common text') for i in range(200)]

JSON = {"Content-Type": "application/json"}


class Echo:
    """Finds passages that tell which query they are for; slow, held up or broken when told to be."""

    fingerprint = "echo"
    wants_contexts = False

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.broken: Exception | None = None
        self.let = threading.Event()
        self.let.set()
        self.calls: list[int] = []

    def search(
        self,
        queries: Sequence[str],
        top_k: int = 3,
        contexts: Sequence[SearchContext] | None = None,
    ) -> list[list[Hit]]:
        self.calls.append(len(queries))
        time.sleep(self.seconds)
        assert self.let.wait(120)
        if self.broken:
            raise self.broken
        told = [c.question for c in contexts] if contexts else queries
        return [[Hit(f"{i}", f"{q} {t} {i}", 1 / (i + 1)) for i in range(top_k)]
                for q, t in zip(queries, told, strict=True)]  # fmt: skip


@contextmanager
def client(retriever: Any, **settings: Any) -> Iterator[TestClient]:
    with TestClient(
        create_app(retriever, **settings), "http://127.0.0.1", raise_server_exceptions=False
    ) as opened:
        yield opened


def running(retriever: Any, **settings: Any) -> AbstractContextManager[str]:
    return in_thread(create_app(retriever, **settings))


def test_the_format_of_search_r1_with_and_without_scores() -> None:
    retriever = make_retriever("bm25", corpus=PASSAGES)
    with client(retriever) as web:
        body = {"queries": ["word4", "word7 common"], "topk": 2, "return_scores": True}
        with_scores = web.post("/retrieve", json=body).json()["result"]
        without = web.post("/retrieve", json={**body, "return_scores": False}).json()["result"]
        default = web.post("/retrieve", json={"queries": ["common"]}).json()["result"]
    expected = retriever.search(body["queries"], 2)
    assert [[e["score"] for e in row] for row in with_scores] == [
        [hit.score for hit in row] for row in expected
    ]
    assert [[e["document"] for e in row] for row in with_scores] == without
    contents = expected[0][0].contents
    title, _, text = contents.partition("\n")
    assert without[0][0] == {
        "id": expected[0][0].id,
        "title": title.strip('"'),
        "text": text,
        "contents": contents,
    }
    assert [len(row) for row in default] == [3]


def test_the_remote_retriever_finds_what_the_local_one_finds() -> None:
    local = make_retriever("bm25", corpus=PASSAGES)
    queries = [f"word{i} common" for i in range(100)]
    with running(local, name="bm25") as url:
        remote = make_retriever(url, batch_size=7)
        plain = RemoteRetriever(f"{url}/retrieve")
        assert remote.search(queries, 4) == plain.search(queries, 4) == local.search(queries, 4)
        assert remote.search([""], 4) == [[]]
        assert remote.fingerprint == local.fingerprint
        with urlopen(f"{url}/v1/info") as info:
            assert json.load(info)["retriever"] == "bm25"


def test_a_simulated_engine_is_told_the_question_and_the_progress_of_training() -> None:
    """The same query under two questions: neither may be shown the other's golden answer."""
    retriever = make_retriever("simulated", writer="script", curriculum={"end": 1.0})
    with running(retriever) as url:
        remote = make_retriever(url)
        for question, answer, progress, useful in (
            ("Who made the bell?", "Ann Lee", 0.0, True),
            ("Who made the bell?", "Ann Lee", 1.0, False),
            ("Where is the bell?", "Rome", None, True),
        ):
            context = SearchContext(question, (answer,), 5, progress)
            assert (answer in remote.search(["bell"], 1, [context])[0][0].contents) is useful


def test_answers_are_never_mispaired() -> None:
    """Many clients at once, requests of all sizes: every answer names its own query."""
    echo = Echo(seconds=0.002)
    with running(echo, max_batch=16, threads=3) as url:

        def work(number: int) -> None:
            rng = random.Random(number)
            typed, plain = RemoteRetriever(url), RemoteRetriever(f"{url}/retrieve")
            for turn in range(15):
                queries = [f"{number}/{turn}/{i}" for i in range(rng.randint(1, 5))]
                top_k = rng.randint(1, 3)
                for retriever in (typed, plain):
                    for query, hits in zip(queries, retriever.search(queries, top_k), strict=True):
                        own = [f"{query} {query} {i}" for i in range(top_k)]
                        assert [h.contents for h in hits] == own

        with ThreadPoolExecutor(24) as threads:
            list(threads.map(work, range(24)))
    assert max(echo.calls) > 5  # requests did share calls


def test_requests_of_different_kinds_do_not_share_a_call() -> None:
    async def run() -> tuple[list[list[list[Hit]]], list[int]]:
        echo = Echo(seconds=0.05)
        batcher = Batcher(echo, threads=1)
        async with batcher.running():
            found = await asyncio.gather(
                batcher.search(["first"], 1),
                batcher.search(["a"], 1),
                batcher.search(["b"], 2),
                batcher.search(["c"], 1, [SearchContext("asked")]),
                batcher.search(["d", "e"], 1),
            )
        return list(found), echo.calls

    found, calls = asyncio.run(run())
    assert [[len(row) for row in rows] for rows in found] == [[1], [1], [2], [1], [1, 1]]
    assert found[3][0][0].contents == "c asked 0"
    assert sorted(calls) == [1, 1, 4]


def test_who_hangs_up_costs_no_call() -> None:
    async def run() -> list[int]:
        echo = Echo()
        echo.let.clear()
        batcher = Batcher(echo, threads=1)
        async with batcher.running():
            first = asyncio.create_task(batcher.search(["a"], 1))
            while not echo.calls:
                await asyncio.sleep(0.01)
            second = asyncio.create_task(batcher.search(["b"], 1))
            while batcher.pending < 2:
                await asyncio.sleep(0.01)
            second.cancel()
            echo.let.set()
            await first
            await batcher.search(["c"], 1)  # its turn comes after the second's
            assert batcher.pending == 0
        return echo.calls

    assert asyncio.run(run()) == [1, 1]


def test_too_many_are_sent_away() -> None:
    echo = Echo()
    echo.let.clear()
    answers: list[tuple[int, str | None]] = []
    with (
        running(echo, max_batch=1, threads=1, max_pending=3) as url,
        ThreadPoolExecutor(8) as threads,
    ):

        def ask() -> None:
            connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
            connection.request("POST", "/retrieve", json.dumps({"queries": ["a"], "topk": 1}), JSON)
            answer = connection.getresponse()
            answers.append((answer.status, answer.getheader("Retry-After")))

        for _ in range(8):
            threads.submit(ask)
        wait_until(lambda: len(answers) == 5)
        echo.let.set()
    assert answers == [(429, "1")] * 5 + [(200, None)] * 3


def test_a_broken_retriever_is_told_and_does_not_stay_broken() -> None:
    echo = Echo()
    with client(echo) as web:
        body = {"queries": ["a"], "topk": 1}
        echo.broken = RetrieverError("the model is away")
        answer = web.post("/retrieve", json=body)
        assert answer.status_code == 502 and "the model is away" in answer.json()["detail"]
        echo.broken = None
        assert web.post("/retrieve", json=body).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/retrieve", {}, "queries: Field required"),
        ("/retrieve", {"queries": "one"}, "queries: Input should be a valid"),
        ("/v1/search", {"queries": [1]}, "queries.0"),
        ("/retrieve", {"queries": ["a"], "topk": 0}, "topk: Input should be greater than or eq"),
        ("/retrieve", {"queries": ["a"] * 5}, "at most 4 queries, got 5"),
        ("/v1/search", {"queries": ["a" * 2001]}, "at most 2000 characters"),
        ("/v1/search", {"queries": ["a"], "contexts": []}, "1 queries came with 0 contexts"),
        ("/v1/search", {"queries": ["a"], "contexts": [{}]}, "contexts.0.question"),
    ],
)
def test_requests_out_of_bounds_are_refused(path: str, body: Any, says: str) -> None:
    with client(Echo(), max_queries=4) as web:
        answer = web.post(path, json=body)
    assert answer.status_code == 422 and says in answer.json()["detail"]


@pytest.mark.parametrize("settings", [{"default_top_k": 101}, {"threads": 0}])
def test_settings_out_of_bounds_are_refused_at_the_start(settings: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        create_app(Echo(), **settings)


def test_a_whole_training_batch_comes_in_one_request() -> None:
    echo = Echo()
    queries: list[Any] = [f"query {i}" for i in range(1_280)]
    queries[3], queries[5], queries[7] = None, {"query": "x"}, "long " * 200_000
    with client(echo, max_batch=100) as web:
        answer = web.post("/retrieve", json={"queries": queries, "topk": 1})
        assert answer.status_code == 200
        results = answer.json()["result"]
        assert web.post("/retrieve", json={"queries": ["a"] * 2_049}).status_code == 422
    assert len(results) == 1_280 and results[3] == results[5] == []
    assert results[8][0]["contents"] == "query 8 query 8 0"
    cut = ("long " * 200_000)[:2_000]
    assert results[7][0]["contents"] == f"{cut} {cut} 0"
    assert max(echo.calls) == 100 and sum(echo.calls) == 1_278


@pytest.mark.slow
def test_a_server_that_is_killed_in_an_episode(serve: Any, tmp_path: Path) -> None:
    """`kill -9`: started again while the client retries, nothing is lost; else the episode is marked."""
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(f'{{"id": "p{i}", "contents": "word{i}"}}\n' for i in range(9)))
    server = serve("retriever", "--corpus", str(corpus))
    revive = [True]

    def wait(seconds: float) -> None:
        if revive[0] and server.process.poll() is not None:
            server.start()

    remote = RemoteRetriever(server.url, attempts=2, wait=wait)
    agent = make_agent_env("paw_gym/SearchQA-v0", retriever=remote, num_passages=300)
    agent.reset(seed=1)
    marks = []
    for word, revive[0] in (("word1", True), ("word2", True), ("word3", False)):
        if word != "word1":
            server.stop(signal.SIGKILL)
        *_, info = agent.step(f"<think>.</think><search>{word}</search>")
        marks.append((info["retrieved"], info["retrieval_failed"]))
    assert marks == [(["p1"], False), (["p2"], False), ([], True)]
    assert "did not answer" in info["transition"].next_observation
    *_, info = agent.step("<think>.</think><answer>word</answer>")
    assert info["retrieval_failed"] and info["transition"].info["retrieval_failed"]
