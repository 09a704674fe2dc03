"""The JSON client by itself: patience with a busy server, timeouts, and whose words an error has."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from servers import serve

from paw_gym.internals.http import HttpError, JsonClient


def test_a_busy_server_is_waited_for_and_does_not_use_up_attempts() -> None:
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


@pytest.mark.parametrize("url", ["http://[::1", "http://h:99999", "http://h:x", "h:80", "http://"])
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
