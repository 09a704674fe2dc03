"""The Model Context Protocol: the SDK's own client plays our server."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

pytest.importorskip("mcp.server.mcpserver", reason="the extra `mcp`, 2 or newer")

import httpx2
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from servers import in_thread, status_of

from env_servers.mcp import create_app, create_server
from paw_gym.registration import make_text_env

ENV = "paw_gym/ALFWorld-v0"
KWARGS = {"split": "valid_seen"}
MODES = ["legacy", "auto"]
"""the protocol with a handshake, and the one without"""


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.structured_content or {}


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return result.content[0].text


async def play(client: Client) -> None:
    here = make_text_env(ENV, **KWARGS)
    task_id = here.unwrapped.tasks.ids[2]
    first, _ = here.reset(seed=4, options={"task_id": task_id})
    started = await call(client, "reset", task_id=task_id, seed=4)
    assert (started["observation"], started["task_id"]) == (first, task_id)
    session, reward = started["session"], 0.0
    solution = here.unwrapped.reference_solution()
    for number, action in enumerate(solution):
        listed = await call(client, "list_actions", session=session)
        assert listed == {"actions": here.unwrapped.list_actions()}
        *expected, info = here.step(action)
        told = await call(client, "step", session=session, action=action)
        keys = ["observation", "reward", "terminated", "truncated"]
        assert [told[key] for key in keys] == expected
        is_last = number == len(solution) - 1
        assert set(told) - {*keys, "action_is_valid"} == (
            {"success", "score"} if is_last else set()
        )
        assert json.dumps(solution[number + 1 :])[1:-1] not in json.dumps(told) or is_last
        reward += told["reward"]
    assert told["success"] is info["success"] is True and told["terminated"]
    assert told["score"] == info["score"] and reward > 0
    assert "call reset()" in await refused(client, "step", session=session, action="look")
    again = await call(client, "reset", session=session, task_id=task_id, seed=4)
    assert again == started
    other = await call(client, "reset", task_id=task_id)
    assert other["session"] != session
    assert "no such session" in await refused(client, "step", session="mine", action="look")
    assert "There is no task 'x'" in await refused(client, "reset", task_id="x")


def run(connect: Callable[[], Any], play: Callable[[Client], Awaitable[None]] = play) -> None:
    async def main() -> None:
        async with connect() as client:
            await play(client)

    anyio.run(main)


@pytest.mark.parametrize("mode", MODES)
def test_their_client_plays_an_episode_to_success_over_stdio(mode: str) -> None:
    words = ["-m", "paw_train.cli", "serve", "mcp", "ALFWorld", "--kw", "split=valid_seen"]
    server = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))
    run(lambda: Client(stdio_client(server), mode=mode))


@pytest.mark.parametrize("mode", MODES)
def test_the_same_over_http_with_a_token(mode: str) -> None:
    with in_thread(create_app(create_server(ENV, KWARGS), token="secret")) as address:
        assert status_of(f"{address}/mcp") == 401
        assert status_of(f"{address}/health") == 200

        @asynccontextmanager
        async def connect() -> AsyncIterator[Client]:
            headers = {"Authorization": "Bearer secret"}
            async with httpx2.AsyncClient(headers=headers) as http:
                transport = streamable_http_client(f"{address}/mcp", http_client=http)
                async with Client(transport, mode=mode) as client:
                    yield client

        run(connect)


def test_sessions_are_few_and_tools_show_no_solution() -> None:
    async def fill(client: Client) -> None:
        assert [tool.name for tool in (await client.list_tools()).tools] == [
            *["reset", "step", "list_actions"]
        ]
        assert "greater or equal to zero" in await refused(client, "reset", seed=-1)
        first = await call(client, "reset")
        assert "All 1 sessions" in await refused(client, "reset")
        assert (await call(client, "reset", session=first["session"]))["session"]

    server = create_server(ENV, KWARGS, sessions=1)
    run(lambda: Client(server), fill)
