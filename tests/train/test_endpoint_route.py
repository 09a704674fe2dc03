"""The way to an endpoint: queries are kept, proxies are named, and loopback goes past them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

pytest.importorskip("openai")

import fake_endpoint as fake

from paw_train.policies.endpoint.policy import EndpointPolicy
from paw_train.policies.endpoint.transport import EndpointError, route_to
from paw_train.rollouts.policy import Sampling, complete
from paw_train.settings.endpoint import EndpointSettings

NOWHERE = "http://user:word@127.0.0.1:9"
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


class Recorder(fake.FakeEndpoint):  # type: ignore[misc]
    """Notes the targets of requests, and may answer with a page instead."""

    page: tuple[int, str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.targets: list[str] = []
        self.keys: list[str | None] = []

    def _behave(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> bool:
        self.targets.append(handler.path)
        self.keys.append(handler.headers.get("api-key"))
        if self.page is not None:
            fake._send_text(handler, self.page[0], "text/html", self.page[1])
        return self.page is not None


@pytest.fixture
def server() -> Iterator[Recorder]:
    with Recorder() as running:
        yield running


def ask(url: str) -> Any:
    settings = EndpointSettings(url=url, cache=None, timeout=60)
    policy = EndpointPolicy("model", settings, "a-long-key")
    (response,) = complete(policy, [[{"role": "user", "content": "door 1"}]], Sampling(0.0, 9))
    policy.close()
    assert response.error is None, response.error
    return policy.describe()


def test_a_query_stays_behind_the_path(server: Recorder) -> None:
    base = f"http://127.0.0.1:{server.port}/openai/deployments/gpt-4o"
    for path in ("", "/", "/chat/completions"):  # the last is how Azure's own page writes it
        described = ask(f"{base}{path}?api-version=2024-02-01")
        assert described["url"] == base
    wanted = "/openai/deployments/gpt-4o/chat/completions?api-version=2024-02-01"
    assert server.targets == [wanted] * 3
    assert server.keys == ["a-long-key"] * 3
    ask(f"{server.url}?a=1&a=2&b=")
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
    server: Recorder, monkeypatch: pytest.MonkeyPatch, variable: str, proxy: str
) -> None:
    monkeypatch.setenv(variable, proxy)
    monkeypatch.setenv("NO_PROXY", "[::1],fd07:b51a:cc66:f0::/64,:::,/,10.0.0.0/99")
    ask(server.url)
    ask(server.url.replace("127.0.0.1", "localhost"))
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
    server: Recorder, monkeypatch: pytest.MonkeyPatch, status: int, page: str
) -> None:
    server.page = (status, f"<html>{page}</html>")
    monkeypatch.setenv("http_proxy", f"http://user:word@127.0.0.1:{server.port}")
    with pytest.raises(EndpointError, match=page) as refused:
        ask("http://model.example/v1")
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
            ask(url)


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
        ask("http://model.example/v1")
    assert words in str(refused.value)
    assert "http_proxy" in str(refused.value)
