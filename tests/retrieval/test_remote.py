"""Retrieval servers, and the JSON client by itself."""

from __future__ import annotations

import os
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from servers import serve

from paw_gym.internals.http import HttpError, JsonClient
from paw_gym.retrieval import RemoteRetriever, RetrieverError, SearchContext, make_retriever


def search_r1(method: str, path: str, payload: Any) -> tuple[int, Any]:
    assert (method, path, payload["return_scores"]) == ("POST", "/retrieve", True)
    found = [
        [{"document": {"id": f"{i}", "contents": f'"T"\n{query} {i}'}, "score": 1.0}
         for i in range(payload["topk"])]
        for query in payload["queries"]
    ]  # fmt: skip
    return 200, {"result": found}


def quick(url: str, **settings: Any) -> RemoteRetriever:
    return RemoteRetriever(url, wait=lambda seconds: None, **{"timeout": 60, **settings})


@pytest.mark.parametrize("suffix", ["", "/", "/retrieve"])
@pytest.mark.parametrize(
    "info", [(404, {"detail": "Not Found"}), (200, [1]), (200, "ok"), (200, None)]
)
def test_a_server_in_the_format_of_search_r1(suffix: str, info: tuple[int, Any]) -> None:
    """It knows nothing else, or answers anything to every path."""
    with serve(lambda *asked: info if asked[0] == "GET" else search_r1(*asked)) as url:
        retriever = quick(url + suffix, batch_size=2)
        hits = retriever.search(["a", "b", "c"], 2)
        assert [[hit.contents for hit in row] for row in hits] == [
            [f'"T"\n{q} {i}' for i in range(2)] for q in "abc"
        ]
        assert retriever.search([]) == []
        copied = pickle.loads(pickle.dumps(RemoteRetriever(url + suffix)))
        assert copied.search(["a"], 1)[0][0].title == "T"
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
        ((-60, b""), "asked 2 times and did not answer .*nothing came within 0.2 s"),
        ((200, b"<html>"), "something else than JSON"),
        ((200, {"oops": []}), "unknown form"),
        ((200, {"result": []}), "answered 1 queries with 0 results"),
        ((200, {"result": [[{"document": {}}]]}), "unknown form"),
        ((200, {"result": [[{"document": None}]]}), "unknown form"),
        ((200, {"result": [[["text", 1.0]]]}), "unknown form"),
        ((200, {"result": [{"a": 1}]}), "unknown form"),
        ((200, [1]), "unknown form"),
        ((422, {"message": "top_k"}), "refused the request .status 422"),
        ((401, {"message": "token"}), "status 401"),
    ],
)
def test_every_failure_is_a_retriever_error(reply: tuple[int, Any], says: str) -> None:
    with serve(lambda method, path, payload: reply) as url:
        retriever = quick(f"{url}/retrieve", attempts=2, timeout=0.2 if reply[0] < 0 else 60)
        with pytest.raises(RetrieverError, match=says):
            retriever.search(["a"])
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


def test_bad_settings_are_named() -> None:
    for settings, says in (
        ({"batch_size": 0}, "batch_size"),
        ({"attempts": 0}, "attempts at least 1"),
        ({"tokn": "a"}, "no setting 'tokn'. Did you mean 'token'"),
    ):
        with pytest.raises(ValueError, match=says):
            make_retriever("http://x", **settings)


def test_waiting_for_a_busy_server_uses_up_no_attempts() -> None:
    replies = [503, 429, 503, 429, 503]
    waited: list[float] = []

    def answer(method: str, path: str, payload: Any) -> tuple[int, Any]:
        return (replies.pop(), {"detail": "No room."}) if replies else (200, [1])

    with serve(answer) as url:
        client = JsonClient(url, attempts=1, patience=60, wait=waited.append)
        assert client.ask("POST", "/x", {}) == [1]
        assert waited == [1.0] * 5
        replies.append(503)
        with pytest.raises(HttpError, match="asked once.*status 503: No room"):
            client.ask("POST", "/x", {}, insist=False)


def test_timeouts_are_retried_only_where_that_is_wanted() -> None:
    seen: list[str] = []

    def answer(method: str, path: str, payload: Any) -> tuple[int, Any]:
        seen.append(path)
        return -60, {}

    with serve(answer) as url:
        for retry, attempts in ((True, 3), (False, 1)):
            seen.clear()
            client = JsonClient(
                url, timeout=0.2, attempts=3, wait=lambda seconds: None, retry_timeouts=retry
            )
            with pytest.raises(HttpError, match="nothing came within 0.2 s") as failed:
                client.ask("GET", "/slow")
            while len(seen) < attempts:  # a busy server comes to them later
                time.sleep(0.01)
            assert len(seen) == attempts and failed.value.status is None


def test_an_idle_connection_that_the_server_closed_is_no_failed_attempt() -> None:
    replies: list[tuple[int, Any]] = [(200, 1), (0, b""), (200, 2)]
    with serve(lambda method, path, payload: replies.pop(0)) as url:
        client = JsonClient(url, attempts=1)
        assert [client.ask("GET", "/x") for _ in range(2)] == [1, 2]


def test_a_refusal_has_the_servers_words() -> None:
    problem = {"type": "about:blank", "title": "Gone", "status": 410, "detail": "It is over."}
    for content, words in ((problem, "It is over."), (b"plain text", "plain text")):
        with serve(lambda method, path, payload, c=content: (410, c)) as url:
            with pytest.raises(HttpError, match=r"refused the request \(status 410") as refused:
                JsonClient(url).ask("GET", "/x")
            assert (refused.value.status, refused.value.detail) == (410, words)


def test_a_query_of_the_address_stays_behind_every_path() -> None:
    with serve(lambda method, path, payload: (200, path)) as url:
        client = JsonClient(f"{url}/deployment?api-version=1", attempts=1)
        assert client.ask("POST", "/x", {}) == "/deployment/x?api-version=1"
        assert client.ask("GET", "/x?page=2") == "/deployment/x?api-version=1&page=2"
        assert JsonClient(f"{url}/", attempts=1).ask("GET", "/x") == "/x"


def test_a_token_is_sent_without_its_line_end_and_shown_in_no_error() -> None:
    for token in ("sk-secret\r\n", "sk-sécret‑"):
        client = JsonClient("http://127.0.0.1:1", token, attempts=1)
        with pytest.raises(HttpError) as refused:
            client.ask("GET", "/x")
        assert "ecret" not in str(refused.value)
        assert client._headers["Authorization"] == f"Bearer {token.strip()}"


@pytest.mark.parametrize(
    "url", ["http://[::1", "http://h:99999", "http://h:x", "h:80", "http://", "ftp://x"]
)
def test_what_is_not_an_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"An address is http://host:port or https://host, got"):
        JsonClient(url)


def test_a_forked_process_takes_a_connection_of_its_own() -> None:
    with serve(lambda method, path, payload: (200, path)) as url:
        client = JsonClient(url, attempts=1)
        client.ask("GET", "/parent")
        kept = client._held()
        child = os.fork()
        if child == 0:
            os._exit(0 if client._held() is None else 1)
        assert os.waitpid(child, 0)[1] == 0 and client._held() is kept
