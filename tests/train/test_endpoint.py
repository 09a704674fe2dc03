"""A model behind an endpoint: its cache, limits, bodies and texts, and the way to it."""

from __future__ import annotations

import contextlib
import socket
import sqlite3
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")

import fake_endpoint as fake

from paw_train.policies.endpoint.answers import AnswerCache, context_tokens, finish_text
from paw_train.policies.endpoint.policy import EndpointPolicy
from paw_train.policies.endpoint.transport import EndpointError, route_to
from paw_train.rollouts.policy import Policy, Sampling, complete
from paw_train.rollouts.rollout import rollout
from paw_train.settings.endpoint import EndpointSettings
from paw_train.settings.rollout import RolloutSettings

SAMPLING = Sampling(0.0, 32)
NOWHERE = "http://user:word@127.0.0.1:9"
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "openai_api_key", "openai_base_url"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def _policy(server: Any, api_key: str | None = None, **settings: Any) -> EndpointPolicy:
    chosen = {"url": server.url, "cache": None, "timeout": 60.0, **settings}
    return EndpointPolicy("model", EndpointSettings(**chosen), api_key)


def _ask(policy: EndpointPolicy, texts: list[str], sampling: Sampling = SAMPLING) -> list[Any]:
    return complete(policy, [[{"role": "user", "content": text}] for text in texts], sampling)


def test_a_request_that_fails_for_good_fails_its_episode_alone(server: Any) -> None:
    policy = _policy(server, retries=2)
    server.faults.status = 400
    (failed,) = _ask(policy, ["see door 1"])
    assert "refused" in failed.error
    assert policy.usage.failed == 1
    assert server.seen == 1  # asking again would not help
    server.faults.status = 503
    (failed,) = _ask(policy, ["see door 1"])
    assert "after 3 tries" in failed.error
    server.faults.status = None
    (fine,) = _ask(policy, ["see door 1"])
    assert fine.error is None
    assert fine.text == "<think>hm</think><action>go to door 1</action>"


def test_what_no_request_can_mend_ends_the_run_at_once(server: Any) -> None:
    server.faults.status = 401
    with pytest.raises(EndpointError, match="OPENAI_API_KEY"):
        _ask(_policy(server), ["a", "b", "c"])
    assert server.seen <= 3


def test_a_key_in_what_a_server_says_is_not_repeated(server: Any) -> None:
    server.faults.status = 400
    (failed,) = _ask(_policy(server, api_key="refused"), ["x"])
    assert "refused" not in failed.error
    assert "***" in failed.error


def test_an_address_that_answered_an_earlier_run_is_waited_for(server: Any, tmp_path: Path) -> None:
    settings = {"cache": str(tmp_path / "a.sqlite"), "retries": 5}
    _ask(_policy(server, **settings), ["see door 1"])
    server.kill()
    known, new = _ask(_policy(server, **settings), ["see door 1", "see door 2"])
    assert known.error is None
    assert "after 6 tries" in new.error  # its episode fails, the run does not


def test_training_with_an_endpoint_is_refused(server: Any) -> None:
    policy: Any = _policy(server)
    assert isinstance(policy, Policy)
    with pytest.raises(ValueError, match="evaluated but not trained"):
        rollout(policy, None, RolloutSettings(), 0)  # type: ignore[arg-type]


def test_equal_requests_are_asked_once_and_others_are_not(server: Any, tmp_path: Path) -> None:
    policy = _policy(server, cache=str(tmp_path / "a.sqlite"))
    texts = ["at door 1", "at door 2"]
    first = _ask(policy, texts)
    assert server.served == policy.usage.requests == 2
    policy.close()
    again = _policy(server, cache=str(tmp_path / "a.sqlite"))
    assert _ask(again, texts) == first
    assert (server.served, again.usage.cached) == (2, 2)
    _ask(again, texts, Sampling(0.0, 33))
    assert server.served == 4  # another limit is another request


def test_further_fields_of_a_request_override_no_setting() -> None:
    with pytest.raises(ValueError, match="temperature is set by evaluation.temperature"):
        EndpointSettings(extra={"temperature": 0})


def test_samples_differ_by_seed_and_are_cached_by_it(server: Any, tmp_path: Path) -> None:
    policy = _policy(server, cache=str(tmp_path / "a.sqlite"), extra={"seed": None})
    hot = Sampling(1.0, 32)
    dialogues = [[{"role": "user", "content": "at door 1"}]] * 3
    complete(policy, dialogues, hot, seed=1)
    assert server.served == 3  # three samples of one prompt, although the bodies are equal
    complete(policy, dialogues, hot, seed=1)
    assert server.served == 3
    complete(policy, dialogues, hot, seed=2)
    assert server.served == 6


def test_a_file_that_is_no_cache_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no database " * 100)
    with pytest.raises(ValueError, match="Delete it"):
        AnswerCache(path)
    assert path.read_text().startswith("no database")


@pytest.mark.parametrize("damage", ["'{\"text'", "'[1]'", "7", "NULL", "CAST(x'ff80' AS TEXT)"])
def test_a_damaged_answer_is_asked_for_again(server: Any, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.sqlite"
    first = _ask(_policy(server, cache=str(path)), ["at door 1"])
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute(f"UPDATE answers SET answer = {damage}")
        file.commit()
    for served in (2, 2):
        assert _ask(_policy(server, cache=str(path)), ["at door 1"]) == first
        assert server.served == served


def test_an_answer_that_a_server_broke_off_is_not_kept(server: Any, tmp_path: Path) -> None:
    server.behaviour = "error in choice"
    settings = {"cache": str(tmp_path / "a.sqlite"), "retries": 1}
    (failed,) = _ask(_policy(server, **settings), ["at door 1"])
    assert "Upstream error" in failed.error and server.seen == 2
    server.behaviour = "ok"
    (fine,) = _ask(_policy(server, **settings), ["at door 1"])
    assert fine.error is None


def test_two_processes_may_share_a_cache(tmp_path: Path) -> None:
    a, b = (AnswerCache(tmp_path / "x.sqlite") for _ in range(2))
    a.put("k", {"text": "é\ud800"})  # a lone surrogate, as some models print
    assert b.get("k") == {"text": "é\ud800"}
    assert b.get("other") is None


def test_no_more_requests_at_a_time_than_allowed(server: Any) -> None:
    _ask(_policy(server, concurrency=3), [f"at door {i}" for i in range(20)])
    assert server.served == 20
    assert server.most_running <= 3


def test_the_body_says_how_to_sample(server: Any) -> None:
    policy = _policy(server, extra={"chat_template_kwargs": {"enable_thinking": False}})
    _ask(policy, ["x"], Sampling(0.7, 9, ("</action>",), top_p=0.9, top_k=5))
    (body,) = server.bodies
    assert body["max_tokens"] == 9
    assert (body["temperature"], body["top_p"], body["top_k"]) == (0.7, 0.9, 5)
    assert body["stop"] == ["</action>"]
    assert 0 <= body["seed"] < 2**31
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert "min_p" not in body


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"text": "<action>go", "finish_reason": "stop"}, "<action>go</action>"),
        ({"text": "<action>go", "finish_reason": "length"}, "<action>go"),
        ({"text": "I will not.", "finish_reason": "stop"}, "I will not."),
        ({"text": "<action>go</action> then", "finish_reason": "length"}, "<action>go</action>"),
        ({"text": "<action>go", "finish_reason": "stop", "stop_reason": None}, "<action>go"),
        ({"text": "<action>go", "stop_reason": "end_turn"}, "<action>go</action>"),
        ({"text": "<action>go", "finish_reason": None}, "<action>go</action>"),
        ({"text": "<think><action>go", "finish_reason": "stop"}, "<think><action>go"),
        ({"text": "<action>go", "stop_reason": "</action>"}, "<action>go</action>"),
        ({"text": "<think>no <action> yet</think><search>x", "finish_reason": "stop"},
         "<think>no <action> yet</think><search>x</search>"),
        ({"text": "<think>no <search> yet</think><action>x", "finish_reason": "stop"},
         "<think>no <search> yet</think><action>x</action>"),
    ],
)  # fmt: skip
def test_the_stop_text_is_put_back_where_the_server_left_it_out(
    answer: dict[str, Any], text: str
) -> None:
    assert finish_text(answer, ("</search>", "</action>"))[0] == text


@pytest.mark.parametrize(
    ("entry", "limit"),
    [
        ({"id": "m", "max_model_len": 4096}, 4096),
        ({"id": "m", "context_length": 8192}, 8192),
        ({"id": "other", "meta": {"n_ctx": 2048, "n_ctx_train": 8192}}, 2048),
        ({"id": "m", "object": "model"}, None),
        ({"id": "m", "max_model_len": "many"}, None),
    ],
)
def test_what_servers_say_of_a_model(entry: dict[str, Any], limit: int | None) -> None:
    assert context_tokens({"data": [entry]}, "m") == limit
    assert context_tokens({"data": [{"id": "a"}, {"id": "b", "max_model_len": 1}]}, "m") is None
    assert context_tokens("<html>", "m") is None


def _reach(url: str) -> Any:
    settings = EndpointSettings(url=url, cache=None, timeout=60)
    policy = EndpointPolicy("model", settings, "a-long-key")
    (response,) = _ask(policy, ["door 1"])
    policy.close()
    assert response.error is None, response.error
    return policy.describe()


def test_a_query_stays_behind_the_path(server: Any) -> None:
    base = f"http://127.0.0.1:{server.port}/openai/deployments/gpt-4o"
    for path in ("", "/", "/chat/completions"):  # the last is how Azure's own page writes it
        described = _reach(f"{base}{path}?api-version=2024-02-01")
        assert described["url"] == base
    wanted = "/openai/deployments/gpt-4o/chat/completions?api-version=2024-02-01"
    assert server.targets == [wanted] * 3
    assert server.keys == ["a-long-key"] * 3
    _reach(f"{server.url}?a=1&a=2&b=")
    assert server.targets[-1] == "/v1/chat/completions?a=1&a=2&b="
    assert server.keys[-1] is None


@pytest.mark.parametrize(
    "url", ["localhost:8000/v1", "http://", "http://[::1/v1", "http://h:99999/v1", "ftp://h/v1",
            "http://h\x00/v1"]
)  # fmt: skip
def test_what_is_not_an_address_is_refused_in_one_line(url: str) -> None:
    with pytest.raises(
        EndpointError, match=r"endpoint\.url=.* is not an address.*http://HOST:PORT"
    ):
        EndpointPolicy("model", EndpointSettings(url=url, cache=None))


@pytest.mark.parametrize("variable", ["http_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("proxy", [NOWHERE, "socks5://127.0.0.1:9", "no address"])
def test_loopback_is_asked_directly(
    server: Any, monkeypatch: pytest.MonkeyPatch, variable: str, proxy: str
) -> None:
    monkeypatch.setenv(variable, proxy)
    monkeypatch.setenv("NO_PROXY", "[::1],fd07:b51a:cc66:f0::/64,:::,/,10.0.0.0/99")
    _reach(server.url)
    _reach(server.url.replace("127.0.0.1", "localhost"))
    assert route_to("http://[::1]:1/v1").proxy is None


@pytest.mark.parametrize(
    ("host", "exempt", "direct"),
    [
        ("model.example", "", False),
        ("model.example", "other.example", False),
        ("model.example", ".example", True),
        ("model.example", "*", True),
        ("10.1.2.3", "10.0.0.0/8", True),
        ("10.1.2.3", "11.0.0.0/8, 10.1.2.3", True),
        ("[fd07:b51a:cc66:f0::1]", "fd07:b51a:cc66:f0::/64", True),
        ("[fd07:b51a:cc66:f0::1]", "[fd07:b51a:cc66:f0::1]", True),
        ("10.1.2.3", "fd07::/64,300.1.2.3", False),
    ],
)
def test_no_proxy_names_hosts_domains_addresses_and_networks(
    monkeypatch: pytest.MonkeyPatch, host: str, exempt: str, direct: bool
) -> None:
    monkeypatch.setenv("http_proxy", NOWHERE)
    monkeypatch.setenv("no_proxy", exempt)
    route = route_to(f"http://{host}/v1")
    assert (route.proxy is None) is direct
    assert direct or route.proxy_name == "the proxy http://127.0.0.1:9 (http_proxy)"
    route.client()


@pytest.mark.parametrize(("status", "page"), [(403, "blocked"), (407, "who?"), (503, "no DNS")])
def test_a_proxy_s_page_names_the_proxy_and_not_the_key(
    server: Any, monkeypatch: pytest.MonkeyPatch, status: int, page: str
) -> None:
    monkeypatch.setitem(fake._RAW, "page", (status, "text/html", f"<html>{page}</html>"))
    server.behaviour = "page"
    monkeypatch.setenv("http_proxy", f"http://user:word@127.0.0.1:{server.port}")
    with pytest.raises(EndpointError, match=page) as refused:
        _reach("http://model.example/v1")
    said = str(refused.value)
    assert f"the proxy http://127.0.0.1:{server.port} (http_proxy)" in said
    assert "NO_PROXY=model.example" in said
    assert "OPENAI_API_KEY" not in said
    assert "word" not in said


def test_a_host_that_takes_no_connection_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paw_train.policies.endpoint.policy.CONNECT_SECONDS", 0.1)
    with contextlib.ExitStack() as held, socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):  # those that wait are as many as may
            one = held.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}/v1"
        with pytest.raises(EndpointError, match=f"Nothing answers at {url} .no connection within"):
            _reach(url)


@pytest.mark.parametrize(
    ("proxy", "words"),
    [(NOWHERE, "Nothing answers at http://model.example/v1 by the proxy http://127.0.0.1:9"),
     ("socks5://127.0.0.1:9", "socksio"), ("http://[::1", "cannot be asked by the proxy")],
)  # fmt: skip
def test_a_proxy_that_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, proxy: str, words: str
) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    with pytest.raises(EndpointError) as refused:
        _reach("http://model.example/v1")
    assert words in str(refused.value)
    assert "http_proxy" in str(refused.value)
