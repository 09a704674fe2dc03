"""The WebShop server: environments over HTTP, the site's answers, faults."""

from __future__ import annotations

import json
import pickle
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode

import gymnasium as gym
import pytest

from env_servers.gateway.app import MAX_BODY
from env_servers.sessions import SessionStore
from env_servers.webshop import create_app
from paw_gym import check_text_env
from paw_gym.envs.webshop.env import ShopSettings, WebShopEnv
from paw_gym.remote import ServerUnavailableError, SessionLostError

from .conftest import Client


@pytest.fixture(scope="module")
def client() -> Client:
    return Client(create_app())


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
    health = client.json("GET", "/health")
    assert health["status"] == "ok" and health["products"] == 1024


def test_what_is_not_there(client: Client) -> None:
    client.one("open", 422, env_id="paw_gym/ALFWorld-v0")
    client.one("open", 422, **{**NEW, "kwargs": {"search": "lucene"}})
    status, headers, body = client("GET", "/shop/nope")
    assert status == 404 and headers["content-type"].startswith("text/html") and b"nope" not in body


def test_limits_of_a_request() -> None:
    client = Client(create_app(sessions=SessionStore(limit_per_client=1)))
    short = {"content-length": "5"}  # says less than it sends
    assert client("POST", "/v1/calls", b"x" * (MAX_BODY + 1), short)[0] in (400, 413)
    client.one("open", **NEW)
    assert client("POST", "/shop", b"split=train")[0] == 303
    assert client("POST", "/shop", b"split=train")[0] == 429


def test_long_actions_of_many_environments_come_in_one_request(client: Client) -> None:
    steps = [{"op": "step", "session": str(n), "action": "x" * 20_000} for n in range(64)]
    results = client.json("POST", "/v1/calls", {"calls": steps})["results"]
    assert [result["status"] for result in results] == [404] * 64  # there are no such sessions


def test_pages_of_the_site(client: Client) -> None:
    shop = client.enter()
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
    shop = client.enter()
    asin = WebShopEnv().shop.catalogue[0].asin
    of_a_product = ("?q=&page=1", "?q=a&page=0", "?q=a&page=99999999999", "/nothing?q=a",
                    "?q=a&page=1&o.color=no+such", "?q=a&page=1&o.nothing=red")  # fmt: skip
    of_the_shop = ("/item/NOPE?q=a", "/results?q=a&page=-1", "/results?q=a&page=1e3",
                   f"/results?q={'x' * 2000}", "/item/..%2f..%2fetc%2fpasswd?q=a")  # fmt: skip
    for path in (*(f"/item/{asin}{rest}" for rest in of_a_product), *of_the_shop):
        assert client("GET", shop + path)[0] in (404, 422), path
    assert client("GET", f"{shop}/results?q=++")[0] == 303
    assert client("GET", f"{shop}/done")[0] == 303


def test_text_of_products_and_searches_is_escaped(client: Client) -> None:
    shop = client.enter()
    body = client("GET", f"{shop}/results?" + urlencode({"q": '"><img src=x>'}))[2]
    assert b"<img" not in body and b"&lt;img" in body


def test_the_environment_on_a_server_keeps_the_contract(serve: Any) -> None:
    server = serve("webshop")
    report = check_text_env("paw_gym/WebShop-v0", tasks=2, server=server.url, time_limit=None)
    report.raise_for_failures()
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
    assert other.task.id == env.task.id
    assert other.step("search[mug]")[0] != observation
    env.close(), other.close()


def test_many_sessions_at_once(serve: Any) -> None:
    """Each gets the answers of its own."""
    server = serve("webshop")

    def shop(number: int) -> None:
        env = WebShopEnv(server=server.url, split="test")
        for seed in range(2):
            env.reset(seed=number * 10 + seed)
            shopper, over = env.expert(), False
            while not over:
                _, _, terminated, truncated, info = env.step(shopper())
                assert info["action_is_valid"]
                over = terminated or truncated
        env.close()

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(shop, range(16)))


def test_a_split_without_tasks_is_said() -> None:
    few = Client(create_app(ShopSettings(num_products=3)))
    assert b"test (0)" in few("GET", "/")[2]
    status, _, page = few("POST", "/shop", b"split=test")
    assert status == 404 and b"This shop has no task in split" in page
