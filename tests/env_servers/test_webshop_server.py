"""The WebShop server: environments over HTTP, the site's answers, faults."""

from __future__ import annotations

import asyncio
import json
import pickle
import random
import signal
import string
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode

import gymnasium as gym
import pytest

pytest.importorskip("fastapi", reason="the extra server is not installed")
pytest.importorskip("prometheus_client", reason="the extra server is not installed")

from env_servers.gateway.app import MAX_BODY
from env_servers.sessions import SessionStore
from env_servers.webshop import create_app
from paw_gym import check_text_env
from paw_gym.envs.webshop.env import ShopSettings, WebShopEnv
from paw_gym.remote import ServerUnavailableError, SessionLostError


class Client:
    """Calls the application without a network."""

    def __init__(self, **settings: Any) -> None:
        self.app = create_app(**settings)
        self.loop = asyncio.new_event_loop()

    def __call__(
        self,
        method: str,
        path: str,
        body: bytes | Any = b"",
        headers: dict[str, str] | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = (
            "application/x-www-form-urlencoded" if path.startswith("/shop") else "application/json"
        )
        given = {"host": "127.0.0.1", "content-type": kind, "content-length": str(len(raw))}
        given["x-paw-client"] = "a key of the tests"
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode("utf-8", "replace"),
            "query_string": query.encode("latin-1", "replace"),
            "root_path": "",
            "headers": [
                (k.lower().encode("latin-1"), v.encode("latin-1"))
                for k, v in (given | (headers or {})).items()
            ],
            "client": ("127.0.0.1", 1234),
            "server": ("127.0.0.1", 80),
        }
        sent: list[Any] = []
        messages = [{"type": "http.request", "body": raw, "more_body": False}]

        async def receive() -> Any:
            return messages.pop(0) if messages else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        self.loop.run_until_complete(self.app(scope, receive, send))
        answered = {k.decode().lower(): v.decode() for k, v in sent[0]["headers"]}
        return sent[0]["status"], answered, b"".join(m.get("body", b"") for m in sent[1:])

    def json(self, method: str, path: str, body: Any = b"") -> Any:
        status, _, content = self(method, path, body)
        assert status < 300, (status, content)
        return json.loads(content)

    def one(self, op: str, status: int = 200, **call: Any) -> Any:
        """The answer to a single call."""
        [result] = self.json("POST", "/v1/calls", {"calls": [{"op": op, **call}]})["results"]
        assert result["status"] == status, result
        return result["answer"]


@pytest.fixture(scope="module")
def client() -> Client:
    return Client()


# --- environments over HTTP ----------------------------------------------------------------------------

NEW = {"env_id": "paw_gym/WebShop-v0", "kwargs": {"split": "test"}}


def test_a_program_without_an_environment_plays_as_the_environment_does(client: Client) -> None:
    env = WebShopEnv(split="test")
    listing = {"op": "tasks", **NEW, "limit": 10_000}
    [listed] = client.json("POST", "/v1/calls", {"calls": [listing]})["results"]
    assert listed["answer"]["ids"] == list(env.tasks.ids)
    opened = client.one("open", **NEW)
    assert opened["fingerprint"] == listed["answer"]["fingerprint"] == env.tasks.fingerprint
    session = opened["session"]
    observation, info = env.reset(seed=3)
    answer = client.one("reset", session=session, options={"task_id": info["task_id"]})
    shopper, terminated, reward = env.expert(), False, 0.0
    while not terminated:
        assert (answer["observation"], answer["info"]) == (observation, info)
        action = shopper()
        observation, reward, terminated, _, info = env.step(action)
        answer = client.one("step", session=session, action=action)
    assert answer["terminated"] and answer["reward"] == reward
    assert answer["info"]["reward_parts"] == info["reward_parts"]
    client.one("close", session=session)
    client.one("step", 404, session=session, action="click[x]")


def test_what_is_not_there(client: Client) -> None:
    client.one("open", 422, env_id="paw_gym/ALFWorld-v0")
    client.one("open", 422, **{**NEW, "kwargs": {"search": "lucene"}})
    assert client("POST", "/v1/calls", b"{")[0] == 422
    client.one("step", 404, session="nope", action="click[x]")
    status, headers, body = client("GET", "/shop/nope")
    assert status == 404 and headers["content-type"].startswith("text/html") and b"nope" not in body


def test_limits_of_a_request() -> None:
    client = Client(sessions=SessionStore(limit_per_client=1))
    assert client("POST", "/v1/calls", b"x" * (MAX_BODY + 1))[0] == 413
    short = {"content-length": "5"}  # says less than it sends
    assert client("POST", "/v1/calls", b"x" * (MAX_BODY + 1), short)[0] in (400, 413)
    client.one("open", **NEW)
    client.one("open", 429, **NEW)
    assert client("POST", "/shop", b"split=train")[0] == 303
    assert client("POST", "/shop", b"split=train")[0] == 429


def test_long_actions_of_many_environments_come_in_one_request(client: Client) -> None:
    sessions = [client.one("open", **NEW)["session"] for _ in range(64)]
    resets = [{"op": "reset", "session": session, "seed": 1} for session in sessions]
    assert client("POST", "/v1/calls", {"calls": resets})[0] == 200
    steps = [{"op": "step", "session": s, "action": "search[" + "x" * 20_000} for s in sessions]
    results = client.json("POST", "/v1/calls", {"calls": steps})["results"]
    assert {result["status"] for result in results} == {200}
    for session in sessions:
        client.one("close", session=session)


def test_a_token_is_asked_for() -> None:
    client = Client(token="s3cret")
    assert client("GET", "/health")[0] == 200
    for path in ("/", "/metrics", "/openapi.json"):
        status, headers, _ = client("GET", path)
        assert status == 401 and headers["www-authenticate"].startswith("Basic")
    for wrong in (
        "Bearer nope",
        "Basic bm9wZQ==",
        "Basic %%%",
        "Bearer",
        "s3cret",
        "Digest s3cret",
    ):
        assert client("GET", "/", headers={"authorization": wrong})[0] == 401
    assert client("GET", "/", headers={"authorization": "Bearer s3cret"})[0] == 200
    basic = {"authorization": "Basic YW55OnMzY3JldA=="}  # any:s3cret
    assert client("GET", "/", headers=basic)[0] == 200


def test_health_and_metrics(client: Client) -> None:
    health = client.json("GET", "/health")
    assert health["status"] == "ok" and health["products"] == 1024
    client("GET", "/no/such/place")
    text = client("GET", "/metrics")[2].decode()
    for line in ('http_requests_total{method="GET",status="404"}', "http_request_seconds_bucket"):
        assert line in text
    assert f"webshop_sessions {float(health['sessions'])}" in text


# --- the site ------------------------------------------------------------------------------------------


def enter(client: Client, split: str = "test") -> str:
    status, headers, _ = client("POST", "/shop", f"split={split}".encode())
    assert status == 303
    return headers["location"]


def test_pages_of_the_site(client: Client) -> None:
    shop = enter(client)
    assert b"search_input" in client("GET", shop)[2]
    status, headers, body = client("GET", f"{shop}/results?q=travel+mugs")
    assert status == 200 and b"data-asin=" in body
    assert "script-src" not in headers["content-security-policy"]
    assert "default-src 'none'" in headers["content-security-policy"]
    asin = body.decode().split('data-asin="')[1].split('"')[0]
    item = f"{shop}/item/{asin}?q=mugs&page=1"
    assert b"Buy Now" in client("GET", item)[2]
    for sub in ("description", "features", "reviews"):
        assert client("GET", item.replace("?", f"/{sub}?"))[0] == 200
    assert client("GET", item.replace("?", "/attributes?"))[0] == 404
    status, headers, _ = client("POST", f"{shop}/buy/{asin}", b"q=mugs&page=1")
    assert status == 303 and headers["location"] == f"{shop}/done"
    assert b'id="score"' in client("GET", f"{shop}/done")[2]
    assert client("GET", item)[0] == 303  # the purchase is made
    assert client("POST", f"{shop}/leave")[0] == 303 and client("GET", shop)[0] == 404


def test_addresses_that_no_click_leads_to(client: Client) -> None:
    shop = enter(client)
    asin = WebShopEnv().shop.catalogue[0].asin
    for path in (
        f"/item/{asin}?q=&page=1",
        f"/item/{asin}?q=a&page=0",
        f"/item/{asin}?q=a&page=99999999999",
        f"/item/{asin}?q=a&page=1&o.color=no+such",
        f"/item/{asin}?q=a&page=1&o.nothing=red",
        f"/item/{asin}/nothing?q=a",
        "/item/NOPE?q=a",
        "/results?q=a&page=-1",
        "/results?q=a&page=1e3",
        "/results?" + urlencode({"q": "x" * 2000}),
        "/item/..%2f..%2fetc%2fpasswd?q=a",
    ):
        assert client("GET", shop + path)[0] in (404, 422), path
    assert client("GET", f"{shop}/results?q=++")[0] == 303
    assert client("GET", f"{shop}/done")[0] == 303


def test_text_of_products_and_searches_is_escaped(client: Client) -> None:
    shop = enter(client)
    body = client("GET", f"{shop}/results?" + urlencode({"q": '"><img src=x>'}))[2]
    assert b"<img" not in body and b"&lt;img" in body


# --- faults --------------------------------------------------------------------------------------------

_PATHS = (
    "/", "/shop", "/shop/{s}", "/shop/{s}/results", "/shop/{s}/item/{a}", "/shop/{s}/item/{a}/features",
    "/shop/{s}/buy/{a}", "/shop/{s}/done", "/shop/{s}/leave", "/style.css", "/health", "/metrics",
    "/v1/calls",
)  # fmt: skip
_JUNK = (
    "", "..", "%00", "\u202e", "' OR 1=1", "{{7*7}}", "\ud800", "💥" * 40, "-1", "NaN", "a/../../etc",
    "<script>", "[" * 90, "null", "\r\nX: y",
)  # fmt: skip


def malformed(rng: random.Random, live: Sequence[str]) -> tuple[str, str, bytes, dict[str, str]]:
    """A request with at least one thing wrong."""

    def word() -> str:
        if rng.random() < 0.5:
            return rng.choice(_JUNK)
        return "".join(rng.choices(string.printable, k=rng.randint(1, 30)))

    def value(depth: int = 0) -> Any:
        kinds: list[Any] = [None, True, -1, 1e308, 2**70, word(), word()]
        if depth < 3:
            kinds += [
                [value(depth + 1) for _ in range(2)],
                {word(): value(depth + 1) for _ in range(2)},
            ]
        return rng.choice(kinds)

    path = rng.choice(_PATHS)
    session = rng.choice(live) if rng.random() < 0.6 else quote(word(), safe="", errors="replace")
    path = path.replace("{s}", session).replace("{a}", quote(word(), safe="", errors="replace"))
    if rng.random() < 0.5:
        path += "?" + "&".join(f"{word()}={word()}" for _ in range(rng.randint(1, 4)))
    body: bytes = b""
    kind = rng.random()
    if kind < 0.3:
        known = ("env_id", "kwargs", "seed", "options", "action", "at", "what", "steps", "q")
        body = json.dumps({rng.choice(known): value() for _ in range(3)}).encode()
    elif kind < 0.5:
        body = json.dumps(value()).encode()
    elif kind < 0.8:
        body = rng.randbytes(rng.randint(0, 200))
    method = rng.choice(("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "BREW", ""))
    headers = {rng.choice(("content-type", "content-length", "authorization", "cookie")): "x\x80y"}
    return method, path.encode("utf-8", "replace").decode(), body, headers


def test_three_thousand_malformed_requests_never_fail(client: Client) -> None:
    rng = random.Random(0)
    seen: dict[int, int] = {}
    live: list[str] = []
    for number in range(3_000):
        if number % 500 == 0:  # some of them close it
            opened = client.one("open", **NEW)["session"]
            client.one("reset", session=opened, seed=number)
            live = [enter(client).rpartition("/")[2], opened]
        request = malformed(rng, live)
        status = client(*request)[0]
        assert status < 500, request
        seen[status // 100] = seen.get(status // 100, 0) + 1
    assert seen[4] > 1_500
    assert client.json("GET", "/health")["status"] == "ok"
    check_text_env(
        "paw_gym/WebShop-v0", tasks=1, only=["determinism"], time_limit=None
    ).raise_for_failures()


def test_the_environment_on_a_server_keeps_the_contract(serve: Any) -> None:
    server = serve("webshop")
    check_text_env(
        "paw_gym/WebShop-v0", tasks=2, server=server.url, time_limit=None
    ).raise_for_failures()
    status, said = server.stop()
    assert status in (0, -signal.SIGTERM) and "Traceback" not in said
    for line in said.splitlines()[1:]:
        assert {"time", "level"} <= json.loads(line).keys()


def test_a_server_that_is_killed_and_started_again(serve: Any) -> None:
    server = serve("webshop", "--token", "abc")
    with pytest.raises(ServerUnavailableError, match="token="):
        gym.make("paw_gym/WebShop-v0", server=server.url)
    env = gym.make("paw_gym/WebShop-v0", server=server.url, token="abc", split="test").unwrapped
    env.reset(seed=1)
    env.step("search[mug]")
    server.stop(signal.SIGKILL)
    with pytest.raises(ServerUnavailableError, match="paw serve webshop"):
        env.step("click[next >]")
    with pytest.raises(ServerUnavailableError):
        env.reset(seed=1)
    server.start()
    env.reset(seed=1)
    state = pickle.loads(pickle.dumps(env.save_state()))
    server.stop(signal.SIGKILL)
    server.start()
    with pytest.raises(SessionLostError, match=r"reset\(\)"):
        env.step("search[mug]")
    observation, _ = env.reset(seed=1)
    for action in env.reference_solution():
        _, reward, _, _, _ = env.step(action)
    assert reward == 1.0
    other = gym.make("paw_gym/WebShop-v0", server=server.url, token="abc", split="test").unwrapped
    other.restore_state(state)
    assert other.last_info["task_id"] == env.last_info["task_id"]
    assert other.step("search[mug]")[0] != observation
    env.close(), other.close()


def test_many_sessions_at_once(serve: Any) -> None:
    """Each gets the answers of its own."""
    from threading import Thread

    server = serve("webshop")
    problems: list[BaseException] = []

    def shop(number: int) -> None:
        try:
            env = WebShopEnv(server=server.url, split="test")
            for seed in range(2):
                env.reset(seed=number * 10 + seed)
                shopper, over = env.expert(), False
                while not over:
                    _, _, terminated, truncated, info = env.step(shopper())
                    assert info["action_is_valid"]
                    over = terminated or truncated
            env.close()
        except BaseException as error:
            problems.append(error)

    threads = [Thread(target=shop, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert server.process.poll() is None


def test_a_split_without_tasks_is_said() -> None:
    few = Client(settings=ShopSettings(num_products=3))
    assert b"test (0)" in few("GET", "/")[2]
    status, _, page = few("POST", "/shop", b"split=test")
    assert status == 404 and b"This shop has no task in split" in page
