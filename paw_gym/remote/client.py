"""The client of a gateway: calls, many at a time, and what it says about its environments."""

from __future__ import annotations

import atexit
import json
import os
import secrets
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from paw_gym.core import AgentDefaults, Task, TaskSet, TextEnv
from paw_gym.internals.files import own_token
from paw_gym.internals.http import BUSY, HttpError, JsonClient
from paw_gym.internals.naming import UnknownTaskError
from paw_gym.prompts import PromptTemplate, builtin_templates
from paw_gym.remote import (
    OutOfStepError,
    RemoteError,
    ServerUnavailableError,
    SessionLostError,
    UnknownSessionError,
)

TOKEN_VARIABLE = "PAW_GATEWAY_TOKEN"
_CALLS = 512
"""in one request"""
_BYTES = 4_000_000
"""of calls in one request, unless one alone has more; a gateway reads four times as many"""
_PAGE = 10_000
"""task ids in one answer"""
_PATIENCE = 120.0
"""seconds to go on asking a server that is too busy"""
_ATTEMPTS = 20
"""how often a call that finds no room is sent"""

_KINDS: dict[str, type[Exception]] = {
    "KeyError": UnknownTaskError,
    "IndexError": IndexError,
    "ValueError": ValueError,
    "TypeError": TypeError,
    "NotImplementedError": NotImplementedError,
    "StopIteration": StopIteration,
}
"""what the environment raised for a wrong argument is raised here, too"""


@dataclass(frozen=True)
class EnvDefaults:
    """Attributes that ``TextEnv`` has by its class, for an environment behind a gateway."""

    agent: AgentDefaults
    held_out_splits: tuple[str, str]
    small_template: str
    type_groups: Mapping[str, Sequence[str]]
    has_splits: bool
    """it is made with a ``split``"""

    @classmethod
    def read(cls, described: Mapping[str, Any]) -> EnvDefaults:
        """The defaults that a gateway's description of an environment holds."""
        agent, small = dict(described["agent"]), described["small_template"]
        text = agent.pop("template_text")
        if text is not None:
            agent["template"] = PromptTemplate.parse(text, "remote")
        elif agent["template"] not in builtin_templates():  # no path on this machine
            name = agent["template"]
            raise RemoteError(f"The gateway names an unknown prompt template: {name!r}.")
        if small not in builtin_templates():
            small = TextEnv.small_template
        selection, held_out = described["held_out_splits"]
        groups = {name: tuple(types) for name, types in described["type_groups"].items()}
        splits = (selection, held_out)
        return cls(AgentDefaults(**agent), splits, small, groups, described["has_splits"])


class GatewayClient:
    """Speaks to one gateway. Its sessions are its own: it sends a key that nobody else knows.

    Args:
        token: bearer token, if the gateway asks for one; ``None``: that of this user's own gateway.
    """

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        self._http = JsonClient(
            url, partial(own_token, url) if token is None else token, timeout, patience=_PATIENCE,
            retry_timeouts=False, headers={"X-PaW-Client": secrets.token_urlsafe(24)},
        )  # fmt: skip
        self.url = self._http.url
        self._held: dict[int, list[str]] = {}
        """sessions by the environment that holds them"""
        self._abandoned: list[str] = []
        self._process = os.getpid()
        self._described: dict[str, dict[str, Any]] = {}
        self._task_sets: dict[str, TaskSet] = {}

    def call(self, call: dict[str, Any]) -> dict[str, Any]:
        """The answer to one call.

        Raises:
            SessionLostError: the environment is gone; ``reset()`` makes another.
            ServerUnavailableError: no gateway, no entry, no room.
            KeyError, IndexError, ValueError, ...: as the environment raised it.
        """
        [answer] = self.calls([call])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def calls(self, calls: Sequence[dict[str, Any]]) -> list[dict[str, Any] | Exception]:
        """The answers to many calls, each for a different session, or what ``call`` would raise."""
        answers: list[dict[str, Any] | Exception] = []
        for part in _parts(calls):
            try:
                answers += self._exchange(part)
            except (ServerUnavailableError, RemoteError) as error:
                answers += [error] * len(part)
        return answers

    def _exchange(self, calls: list[dict[str, Any]]) -> list[dict[str, Any] | Exception]:
        results = self._post(calls)
        for _ in range(_ATTEMPTS - 1):
            busy = [i for i, result in enumerate(results) if result["status"] in BUSY]
            if not busy:
                break
            pauses = [float(results[i]["answer"].get("retry_after", 1)) for i in busy]
            time.sleep(min(10.0, max(pauses)))
            for i, result in zip(busy, self._post([calls[i] for i in busy]), strict=True):
                results[i] = result
        return [self._outcome(result) for result in results]

    def _post(self, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
        given_up, self._abandoned = self._abandoned[:_CALLS], self._abandoned[_CALLS:]
        return self._request([*calls, *_closing(given_up)])[: len(calls)]

    def _request(self, calls: list[dict[str, Any]], insist: bool = True) -> list[dict[str, Any]]:
        try:
            answer = self._http.ask("POST", "/v1/calls", {"calls": calls}, insist=insist)
        except HttpError as error:
            raise self._failure(error) from error
        results: list[dict[str, Any]] = answer["results"]
        return results

    def _failure(self, error: HttpError) -> Exception:
        if error.status is None:
            return ServerUnavailableError(
                f"No server answers at {self.url} ({error.detail}). Start one (`paw serve gateway`, "
                "or `paw serve webshop` for the shop), then call reset()."
            )
        said = f"{self.url} answered {error.status}: {error.detail}"
        if error.status in (401, 403):
            how = f"Give the server's token as token='...', or in the variable {TOKEN_VARIABLE}."
            return ServerUnavailableError(f"{said} {how}")
        busy = error.status in BUSY or error.status >= 500
        return ServerUnavailableError(said) if busy else RemoteError(said)

    def _outcome(self, result: dict[str, Any]) -> dict[str, Any] | Exception:
        status, answer = int(result["status"]), dict(result["answer"])
        if status == 200:
            return answer
        said, kind = str(answer.get("detail", "")), _KINDS.get(str(answer.get("exception")))
        if status == 404:
            return UnknownSessionError(f"{said} Call reset() to begin a new episode.")
        if status == 409:
            return OutOfStepError(said)
        if status == 410:
            return SessionLostError(said)
        if status in BUSY:
            return ServerUnavailableError(f"{self.url}: {said}")
        return RemoteError(said) if kind is None else kind(said)

    def keep(self, env: Any, held: list[str]) -> None:
        """Notes where an environment keeps its session; closes it if nobody else has."""
        self._held[id(held)] = held
        weakref.finalize(env, self._abandon, held).atexit = False

    def _abandon(self, held: list[str]) -> None:
        """Has the next request close a session. A forked process does not own what it has a copy of."""
        if os.getpid() == self._process:
            self._abandoned += self._held.pop(id(held), [])

    def close_all(self) -> None:
        """Closes all sessions, if the gateway answers at once; otherwise they expire."""
        if os.getpid() != self._process:
            return
        sessions = [*self._abandoned, *(name for held in self._held.values() for name in held)]
        with suppress(ServerUnavailableError, RemoteError):
            for part in _parts(_closing(sessions)):
                self._request(part, insist=False)

    # --- what it serves ------------------------------------------------------------------------------

    def describe(self, env_id: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The gateway's description of an environment; asked once."""
        key = _named(env_id, kwargs)
        if key not in self._described:
            call = {"op": "describe", "env_id": env_id, "kwargs": kwargs}
            self._described[key] = self.call(call)
        return self._described[key]

    def tasks(self, env_id: str, kwargs: dict[str, Any]) -> TaskSet:
        """The tasks of an environment; their ids are fetched once, a task when it is asked for."""
        key = _named(env_id, kwargs)
        if key not in self._task_sets:
            about, described = {"env_id": env_id, "kwargs": kwargs}, self.describe(env_id, kwargs)
            fingerprint, ids = described["fingerprint"], list[str]()
            while len(ids) < described["num_tasks"]:
                page = self.call({"op": "tasks", **about, "offset": len(ids), "limit": _PAGE})
                if page["fingerprint"] != fingerprint or not page["ids"]:
                    raise ServerUnavailableError(
                        f"{self.url} changed the tasks of {env_id} while they were being listed."
                    )
                ids += page["ids"]

            @lru_cache(4096)
            def task(task_id: str) -> Task:
                found = self.call({"op": "task", **about, "task_id": task_id})
                return Task(found["id"], found["instruction"], found["type"])

            self._task_sets[key] = TaskSet(ids, task, fingerprint, described["split"])
        return self._task_sets[key]

    def forget(self) -> None:
        """Asks again what the gateway serves, from the next environment on."""
        self._described.clear()
        self._task_sets.clear()


def _closing(sessions: Sequence[str]) -> list[dict[str, Any]]:
    return [{"op": "close", "session": session} for session in sessions]


def _named(env_id: str, kwargs: dict[str, Any]) -> str:
    return json.dumps([env_id, kwargs], sort_keys=True)


def _parts(calls: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    parts: list[list[dict[str, Any]]] = []
    size = 0
    for call in calls:
        length = len(json.dumps(call)) + 2  # ASCII: as many bytes; and what comes between two calls
        if not parts or len(parts[-1]) >= _CALLS or size + length > _BYTES:
            parts.append([])
            size = 0
        parts[-1].append(call)
        size += length
    return parts


def client_for(url: str, token: str | None, timeout: float) -> GatewayClient:
    """The client of this process for a gateway, so that environments share a connection and a key."""
    given = token if token is not None else os.environ.get(TOKEN_VARIABLE)
    return _client_for(url.rstrip("/"), given, timeout, os.getpid())


@lru_cache(maxsize=64)
def _client_for(url: str, token: str | None, timeout: float, process: int) -> GatewayClient:
    client = GatewayClient(url, token, timeout)
    atexit.register(client.close_all)
    return client
