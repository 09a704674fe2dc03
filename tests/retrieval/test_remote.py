from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from servers import serve

from paw_gym import make_agent_env
from paw_gym.retrieval import RemoteRetriever, RetrieverError, SearchContext, make_retriever


def documents(queries: list[str], top_k: int, scores: bool) -> list[Any]:
    found = []
    for query in queries:
        hits = [{"id": f"{i}", "contents": f'"T"\n{query} {i}'} for i in range(top_k)]
        found.append([{"document": d, "score": 1.0} for d in hits] if scores else hits)
    return found


def search_r1(method: str, path: str, payload: Any) -> tuple[int, Any]:
    """A server that knows Search-R1's format and nothing else."""
    if (method, path) != ("POST", "/retrieve"):
        return 404, {"detail": "Not Found"}
    return 200, {"result": documents(payload["queries"], payload["topk"], payload["return_scores"])}


def quick(url: str, **settings: Any) -> RemoteRetriever:
    return RemoteRetriever(url, wait=lambda seconds: None, timeout=60, **settings)


@pytest.mark.parametrize("suffix", ["", "/", "/retrieve"])
def test_a_server_in_the_format_of_search_r1(suffix: str) -> None:
    with serve(search_r1) as url:
        retriever = quick(url + suffix, batch_size=2)
        hits = retriever.search(["a", "b", "c"], 2)
        assert [[hit.contents for hit in row] for row in hits] == [
            [f'"T"\n{q} {i}' for i in range(2)] for q in "abc"
        ]
        assert retriever.search([]) == []
        assert (
            pickle.loads(pickle.dumps(RemoteRetriever(url + suffix))).search(["a"], 1)[0][0].title
            == "T"
        )
        assert retriever.fingerprint == quick(url).fingerprint


def test_batches_and_waits() -> None:
    seen: list[int] = []
    waited: list[float] = []
    failures = [503, 0, 429]

    def answer(method: str, path: str, payload: Any) -> tuple[int, Any]:
        if failures:
            return failures.pop(0), {}
        seen.append(len(payload["queries"]))
        return search_r1(method, path, payload)

    with serve(answer) as url:
        retriever = RemoteRetriever(
            f"{url}/retrieve", batch_size=4, backoff=0.5, timeout=60, wait=waited.append
        )
        assert len(retriever.search([str(i) for i in range(10)], 1)) == 10
    assert seen == [4, 4, 2]
    assert waited == [0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ((503, {}), "asked 2 times and did not answer .status 503"),
        ((0, b""), "asked 2 times and did not answer"),
        ((200, b"<html>"), "something else than JSON"),
        ((200, {"oops": []}), "unknown form"),
        ((200, {"result": []}), "answered 1 queries with 0 results"),
        ((200, {"result": [[{"document": {}}]]}), "unknown form"),
        ((200, {"result": [[{"document": None}]]}), "unknown form"),
        ((200, {"result": [["text"]]}), "unknown form"),
        ((200, {"result": [[["text", 1.0]]]}), "unknown form"),
        ((200, {"result": [{"a": 1}]}), "unknown form"),
        ((200, [1]), "unknown form"),
        ((422, {"message": "top_k"}), "refused the request .status 422"),
        ((401, {"message": "token"}), "status 401"),
    ],
)
def test_every_failure_is_a_retriever_error(reply: tuple[int, Any], says: str) -> None:
    with (
        serve(lambda method, path, payload: reply) as url,
        pytest.raises(RetrieverError, match=says),
    ):
        quick(f"{url}/retrieve", attempts=2).search(["a"])


def test_nobody_there() -> None:
    with serve(search_r1) as url:
        pass
    with pytest.raises(RetrieverError, match="ConnectionRefused"):
        quick(url).search(["a"])


def test_contexts_go_only_where_they_are_wanted() -> None:
    payloads: list[Any] = []
    wants = [True]

    def answer(method: str, path: str, payload: Any) -> tuple[int, Any]:
        if path == "/v1/info":
            return 200, {"fingerprint": "f", "wants_contexts": wants[0]}
        payloads.append(payload)
        return 200, {"results": [{"query": q, "hits": []} for q in payload["queries"]]}

    context = [SearchContext("who?", ("Ann",), 3, 0.5)]
    with serve(answer) as url:
        assert quick(url).fingerprint == "f"
        quick(url).search(["a"], 2, context)
        wants[0] = False
        quick(url).search(["a"], 2, context)
    told = {"question": "who?", "golden_answers": ["Ann"], "seed": 3, "progress": 0.5}
    assert payloads == [
        {"queries": ["a"], "top_k": 2, "contexts": [told]},
        {"queries": ["a"], "top_k": 2},
    ]


def test_threads_do_not_mix_up_answers() -> None:
    with serve(search_r1) as url:
        retriever = quick(f"{url}/retrieve")

        def work(name: int) -> None:
            for query in (f"{name}-{i}" for i in range(20)):
                assert retriever.search([query], 1)[0][0].text == f"{query} 0"

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(work, range(8)))


def test_a_server_that_dies_and_comes_back_in_an_episode() -> None:
    alive = [True]

    def answer(method: str, path: str, payload: Any) -> tuple[int, Any]:
        return search_r1(method, path, payload) if alive[0] else (0, b"")

    with serve(answer) as url:
        agent = make_agent_env(
            "paw_gym/SearchQA-v0", retriever=quick(f"{url}/retrieve"), num_passages=300
        )
        agent.reset(seed=0)
        seen = []
        for alive[0], query in ((True, "one"), (False, "two"), (True, "three")):
            *_, info = agent.step(f"<think>.</think><search>{query}</search>")
            seen.append((info["transition"].next_observation, info["retrieval_failed"]))
    assert "one 0" in seen[0][0] and not seen[0][1]
    assert "did not answer" in seen[1][0] and seen[1][1]
    assert "three 0" in seen[2][0] and seen[2][1]


def test_a_server_that_is_too_slow_in_an_episode() -> None:
    slow = [False]

    def answer(method: str, path: str, payload: Any) -> tuple[int, Any]:
        return (-60, {}) if slow[0] else search_r1(method, path, payload)

    with serve(answer) as url:
        retriever = RemoteRetriever(f"{url}/retrieve", timeout=30, attempts=2, wait=lambda s: None)
        agent = make_agent_env("paw_gym/SearchQA-v0", retriever=retriever, num_passages=300)
        agent.reset(seed=0)
        *_, info = agent.step("<think>.</think><search>one</search>")
        assert not info["retrieval_failed"]
        slow[0], retriever.client.timeout = True, 0.2
        retriever.client._forget()  # the open connection keeps the timeout that it was made with
        *_, info = agent.step("<think>.</think><search>two</search>")
    assert info["retrieval_failed"] and "nothing came within 0.2 s" in info["retrieval_error"]
    assert "did not answer" in info["transition"].next_observation
    assert info["transition"].info["retrieval_failed"] and info["transition"].reward == 0.0


def test_bad_settings_are_named() -> None:
    for url in ("ftp://x", "http://", "http:///x"):
        with pytest.raises(ValueError, match="An address is"):
            RemoteRetriever(url)
    with pytest.raises(ValueError, match="batch_size"):
        RemoteRetriever("http://x", batch_size=0)
    with pytest.raises(ValueError, match="attempts at least 1"):
        make_retriever("http://x", attempts=0)
    with pytest.raises(ValueError, match="no setting 'tokn'. Did you mean 'token'"):
        make_retriever("http://x", tokn="a")


@pytest.mark.parametrize("info", [[1], "ok", None, 3])
def test_a_server_that_answers_anything_to_every_path(info: Any) -> None:
    def answer(method: str, path: str, payload: Any) -> Any:
        return (200, info) if method == "GET" else search_r1(method, path, payload)

    with serve(answer) as url:
        assert len(quick(url).search(["a"], 1)) == 1
