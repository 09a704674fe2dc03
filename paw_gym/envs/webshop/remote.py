"""WebShop on a server: the environment as a client of ``paw serve webshop``."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from paw_gym.core import Outcome, Task, TaskSet, TextEnv
from paw_gym.envs.webshop.env import WebShopEnv, without_instruction
from paw_gym.naming import did_you_mean

TIMEOUT = 30.0
"""seconds to wait for an answer"""


class ServerUnavailableError(ConnectionError):
    """The server cannot be reached, or refuses; the message says why and what to do."""


class SessionLostError(RuntimeError):
    """The server no longer knows the session: it was restarted, or the session expired."""


class ShopClient:
    """Speaks the server's JSON API over one connection that is kept open.

    Args:
        url: the server's address, such as ``http://127.0.0.1:8000``.
        token: bearer token, where the server asks for one.

    Raises:
        ValueError: not an address.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f"server: expected an address such as 'http://127.0.0.1:8000', got {url!r}."
            )
        self.url = url.rstrip("/")
        self._parts, self._prefix = parts, parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/json", "Connection": "keep-alive"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._connection: http.client.HTTPConnection | None = None

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Sends a request and returns the JSON of its answer (``None`` for an empty one).

        Raises:
            ServerUnavailableError: no connection, or the server refused.
            SessionLostError: the server does not know the session.
        """
        status, data = self._exchange(method, path, None if body is None else json.dumps(body))
        if status < 400:
            return json.loads(data) if data else None
        try:
            said = str(json.loads(data)["message"])
        except (ValueError, KeyError, TypeError):
            said = data.decode(errors="replace")[:200]
        if status == 404 and path.startswith("/api/sessions/"):
            raise SessionLostError(
                f"{self.url} does not know this session any more (it was restarted, or the session "
                "expired). Call reset() to begin a new episode."
            )
        hint = " Give the token as token='...'." if status == 401 else ""
        raise ServerUnavailableError(f"{self.url} answered {status}: {said}{hint}")

    def _exchange(self, method: str, path: str, body: str | None) -> tuple[int, bytes]:
        fresh = self._connection is None
        try:
            return self._once(method, path, body)
        except (http.client.HTTPException, OSError) as error:
            self.close()
            # a kept connection may have been closed meanwhile: nothing was done then
            stale = isinstance(error, http.client.RemoteDisconnected | BrokenPipeError)
            if fresh or not (stale or isinstance(error, ConnectionResetError)):
                raise self._unavailable(error) from error
        try:
            return self._once(method, path, body)
        except (http.client.HTTPException, OSError) as error:
            self.close()
            raise self._unavailable(error) from error

    def _once(self, method: str, path: str, body: str | None) -> tuple[int, bytes]:
        if self._connection is None:
            secure = self._parts.scheme == "https"
            kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
            assert self._parts.hostname is not None
            self._connection = kind(self._parts.hostname, self._parts.port, timeout=TIMEOUT)
        self._connection.request(method, self._prefix + path, body, self._headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def _unavailable(self, error: Exception) -> ServerUnavailableError:
        return ServerUnavailableError(
            f"No WebShop server answers at {self.url} ({error}). Start one with "
            "`paw serve webshop`, then call reset()."
        )

    def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __del__(self) -> None:
        if getattr(self, "_connection", None) is not None:  # an environment that nobody closed
            self.close()


class RemoteWebShopEnv(WebShopEnv):
    """``WebShop-v0`` with ``server=URL``: tasks, pages and rewards come from that server.

    What the shop is made of is the server's choice: arguments that would choose it are refused here.
    """

    def __init__(
        self,
        split: str = "train",
        data_dir: Any = None,
        num_products: int | None = None,
        search: str = "bm25",
        server: str | None = None,
        goals: Any = None,
        prices: Any = None,
        max_steps: int = 15,
        nouns: str | None = None,
        price_seed: int = 0,
        show_attributes: bool = False,
        token: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        for name, given in (
            ("data_dir", data_dir is not None),
            ("num_products", num_products is not None),
            ("search", search != "bm25"),
            ("goals", goals is not None),
            ("prices", prices is not None),
            ("nouns", nouns is not None),
            ("price_seed", price_seed != 0),
            ("show_attributes", show_attributes),
        ):
            if given:
                raise ValueError(
                    f"{name} is the server's to choose: give it to `paw serve webshop`, "
                    "or leave server out."
                )
        from paw_gym.envs.webshop.tasks import SPLITS

        if split not in SPLITS:
            raise ValueError(f"Unknown split {split!r}. {did_you_mean(split, SPLITS)}")
        assert server is not None
        self.split = split
        self.client = ShopClient(server, token)
        self._session: str | None = None
        TextEnv.__init__(self, self._fetch_tasks(), max_steps, render_mode)
        self.state: dict[str, Any] = {}
        """the server's last answer"""

    def _fetch_tasks(self) -> TaskSet:
        path = f"/api/tasks/{self.split}"
        listed = self.client.call("GET", path)

        def load(task_id: str) -> Task:
            found = self.client.call("GET", f"{path}/{urllib.parse.quote(task_id)}")
            return Task(found["id"], found["instruction"], found["type"])

        return TaskSet(listed["ids"], load, listed["fingerprint"], self.split)

    def _start(self, task: Task) -> Outcome:
        wanted = {"split": self.split, "task_id": task.id}
        if self._session is not None:
            try:
                path = f"/api/sessions/{self._session}/start"
                return self._take(self.client.call("POST", path, wanted))
            except SessionLostError:
                self._session = None
        answer = self.client.call("POST", "/api/sessions", wanted)
        self._session = answer["session"]
        return self._take(answer)

    def _act(self, action: str) -> Outcome:
        # an action may hold halves of a surrogate pair, which no server can read
        text = action.encode("utf-8", "replace").decode()
        return self._take(self.client.call("POST", self._path("step"), {"action": text}))

    def _path(self, what: str) -> str:
        return f"/api/sessions/{self._session}/{what}"

    def _take(self, answer: dict[str, Any]) -> Outcome:
        if answer["fingerprint"] != self.tasks.fingerprint:
            raise ServerUnavailableError(
                f"{self.client.url} serves other tasks than when this environment was made "
                f"(fingerprint {answer['fingerprint'][:12]}, was {self.tasks.fingerprint[:12]}): "
                "make the environment anew."
            )
        self.state = answer
        return Outcome(
            answer["observation"],
            reward=answer["reward"],
            terminated=answer["terminated"],
            success=answer["success"],
            score=answer["score"],
            action_is_valid=answer["action_is_valid"],
            admissible_actions=answer["admissible_actions"],
            info={"reward_parts": answer["reward_parts"]},
        )

    def _get_state(self) -> dict[str, Any]:
        return dict(self.state)

    def _set_state(self, state: dict[str, Any]) -> None:
        restored = {"split": self.split, "task_id": state["task_id"], "visit": state["visit"]}
        if self._session is None:
            wanted = {"split": self.split, "task_id": state["task_id"]}
            self._session = self.client.call("POST", "/api/sessions", wanted)["session"]
        self.client.call("PUT", self._path("visit"), restored)
        self.state = dict(state)

    def is_admissible(self, action: str) -> bool:
        """Whether the page accepts an action: any search, and the clicks that it lists."""
        from paw_gym.envs.webshop.actions import parse_action

        parsed = parse_action(action)
        if parsed.verb == "search":
            return bool(parsed.argument)
        return f"{parsed.verb}[{parsed.argument}]" in (self._last.admissible_actions or ())

    def prompt_observation(self, observation: str) -> str:
        """Without the instruction, which the prompt's own slot holds."""
        return without_instruction(observation, self.task.instruction)

    def reference_solution(self) -> list[str]:
        """A purchase with score 1, found by the server."""
        found = self.client.call("GET", self._path("solution"))
        return [str(action) for action in found["actions"]]

    def expert(self) -> Callable[[], str]:
        """A shopper that acts on the text alone."""
        from paw_gym.envs.webshop.expert import Shopper

        shopper = Shopper(self.task.instruction)

        def act() -> str:
            chosen = [value for _, value in self.state["visit"]["options"]]
            return shopper.act(self._last.observation, self._last.admissible_actions or (), chosen)

        return act

    def close(self) -> None:
        """Closes the session and the connection."""
        if self._session is not None:
            # a session that is gone already, or cannot be reached now, expires by itself
            with suppress(ServerUnavailableError, SessionLostError):
                self.client.call("DELETE", f"/api/sessions/{self._session}")
            self._session = None
        self.client.close()
