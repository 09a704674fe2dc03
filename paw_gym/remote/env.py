"""The environment on the client's side, and asking many of them in one request."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import gymnasium as gym

from paw_gym.core import INFO_KEYS, Outcome, Task, TextEnv
from paw_gym.internals.printable import encodable
from paw_gym.remote import (
    OutOfStepError,
    RemoteError,
    ServerUnavailableError,
    SessionLostError,
    UnknownSessionError,
    generator_text,
    set_generator,
)
from paw_gym.remote.client import EnvDefaults, GatewayClient, client_for

TIMEOUT = 330.0
"""seconds to wait for an answer: more than a gateway gives an environment to load its data"""


class RemoteEnv(TextEnv):
    """An environment that runs in a gateway (``paw serve gateway``) and behaves as it does here.

    ## Description
    The same tasks, observations, rewards and infos as the environment itself, byte for byte: seeds
    mean the same, and the generator's state travels along whenever either side samples from it.

    ## Action Space, Observation Space, Rewards, Starting State
    Those of the environment that the gateway runs.

    ## Episode End
    That of the environment. When it fails over there, or its session expires, ``step`` raises
    ``SessionLostError``, and ``reset`` begins anew.

    ## Arguments
    ``url``: the gateway. ``remote_id``: the environment's id there. ``token``: if the gateway asks
    for one; better in the environment variable ``PAW_GATEWAY_TOKEN``. ``timeout``: seconds to wait
    for an answer. All others go to the environment, as far as the gateway allows.
    """

    arguments_elsewhere: ClassVar[bool] = True
    """the signature below does not name them all: see ``paw_gym.internals.constructors``"""

    def __init__(
        self,
        url: str,
        remote_id: str,
        token: str | None = None,
        timeout: float = TIMEOUT,
        render_mode: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.client: GatewayClient = client_for(url, token, timeout)
        self.remote_id, self._kwargs = remote_id, kwargs
        described = self.client.describe(remote_id, kwargs)
        tasks = self.client.tasks(remote_id, kwargs)
        super().__init__(tasks, described["max_steps"], render_mode)
        for name, value in vars(EnvDefaults.read(described)).items():
            if name != "has_splits":
                setattr(self, name, value)
        self.recorded_info = tuple(described["recorded_info"])  # type: ignore[misc]
        self._asks_admissible, self._shows = described["asks_admissible"], described["shows"]
        self._asks_actions = described["asks_actions"]
        self._held: list[str] = []
        """the session, if there is one"""
        self._server_generator: str | None = None
        """state of the generator over there, if it is known"""
        self._journal: dict[str, Any] = {}
        """the reset and the steps since, which make the same state again"""
        self._has_expert = False
        """over there, with a state that playing again does not bring back"""
        self._shown: dict[str, str] = {}
        """the episode's observations, as a prompt shows them"""
        self._ahead: tuple[Any, dict[str, Any], dict[str, Any] | Exception] | None = None
        """a call that is to come, what was sent for it, and what came of it"""
        self.client.keep(self, self._held)

    @classmethod
    def defaults(
        cls,
        url: str,
        remote_id: str,
        token: str | None = None,
        timeout: float = TIMEOUT,
        render_mode: str | None = None,
        **kwargs: Any,
    ) -> EnvDefaults:
        """Attributes that others have by their class, of an environment made with these arguments."""
        return EnvDefaults.read(client_for(url, token, timeout).describe(remote_id, kwargs))

    @property
    def env_id(self) -> str:
        """The id of the environment that it stands for."""
        return self.remote_id

    def _open_call(self) -> dict[str, Any]:
        return {"op": "open", "env_id": self.remote_id, "kwargs": self._kwargs}

    def _opened(self, answer: Mapping[str, Any]) -> None:
        if answer["fingerprint"] != self.tasks.fingerprint:
            self.client.forget()
            raise ServerUnavailableError(
                f"{self.client.url} serves other tasks than when this environment was made: "
                "make it anew."
            )
        self._held[:] = [answer["session"]]
        self._server_generator = None

    def _of_session(self, call: dict[str, Any]) -> dict[str, Any]:
        """The call with the session, and with the generator's state if the server has another."""
        call["session"] = self._held[0]
        if call.get("seed") is None and call["op"] != "restore":
            here = generator_text(self.np_random)
            if here is not None and (call["op"] == "reset" or here != self._server_generator):
                call["rng"] = here
        return call

    def _ask(self, call: dict[str, Any], reopen: bool = False) -> dict[str, Any]:
        for last in (False, True):
            if not self._held:
                if not reopen:
                    raise SessionLostError("There is no session: call reset().")
                self._opened(self.client.call(self._open_call()))
            try:
                return self._take(call, self.client.call(self._of_session(call)))
            except SessionLostError as error:
                if isinstance(error, OutOfStepError) and not (last or reopen or self._has_expert):
                    self._play_again(self._journal)
                    continue
                self._lose(error)
                if last or not reopen or not isinstance(error, UnknownSessionError):
                    raise
        raise AssertionError("unreachable")

    def _lose(self, error: SessionLostError) -> None:
        self._over = True
        self._server_generator = None
        if isinstance(error, UnknownSessionError):
            self._held.clear()

    def _take(self, call: Mapping[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        """Puts the generator into the state that the server's is in."""
        state = answer.get("rng")
        if state is not None:
            set_generator(self.np_random, state)
        if call["op"] == "restore":
            self._server_generator = None
        else:
            self._server_generator = state or call.get("rng") or self._server_generator
        return answer

    # --- an episode ----------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Starts an episode; see ``TextEnv.reset``."""
        gym.Env.reset(self, seed=seed)
        call = self._reset_call(seed, options)
        answer = self._fetched(call) or self._ask(call, reopen=True)
        self._journal = {
            "reset": {k: v for k, v in call.items() if k not in ("op", "session")},
            "steps": [],
        }
        self._has_expert = False
        info = answer["info"]
        self._task = Task(info["task_id"], info["instruction"], info["task_type"])
        self._steps, self._over = 0, False
        self._shown.clear()
        self._last = self._outcome(answer)
        return self._last.observation, self._info(self._last)

    def _reset_call(self, seed: int | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
        call: dict[str, Any] = {"op": "reset"}
        if seed is not None:
            call["seed"] = int(seed)
        if options:
            call["options"] = {  # plain numbers instead of NumPy's
                name: value.item() if hasattr(value, "item") else value
                for name, value in options.items()
            }
        if getattr(self, "progress", None) is not None:
            call["progress"] = self.progress
        return call

    def _act(self, action: str) -> Outcome:
        call = self._step_call(action)
        answer = self._fetched(call) or self._ask(call)
        self._journal["steps"].append({k: call[k] for k in ("action", "rng") if k in call})
        return self._outcome(answer)

    def _step_call(self, action: str) -> dict[str, Any]:
        return {"op": "step", "action": encodable(action), "at": self._steps}

    def _outcome(self, answer: Mapping[str, Any]) -> Outcome:
        observation, info = answer["observation"], answer["info"]
        if self._shows:
            self._shown[observation] = answer.get("shown", observation)
        return Outcome(
            observation,
            reward=float(answer.get("reward", 0.0)),
            terminated=bool(answer.get("terminated", False)),
            success=info["success"],
            score=info["score"],
            action_is_valid=info["action_is_valid"],
            admissible_actions=info["admissible_actions"],
            info={name: value for name, value in info.items() if name not in INFO_KEYS},
            truncated=bool(answer.get("truncated", False)),
        )

    def _start(self, task: Task) -> Outcome:
        raise NotImplementedError("A remote environment starts its episodes in reset().")

    # --- ahead of being asked ------------------------------------------------------------------------

    def _fetched(self, call: dict[str, Any]) -> dict[str, Any] | None:
        """The answer that ``fetch_ahead`` brought for exactly this call, if it did."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead[0] != call:
            return None
        _, sent, answer = ahead
        forgotten = isinstance(answer, UnknownSessionError)
        # asking again takes another session, restores the episode, or tells why not
        if forgotten or (isinstance(answer, SessionLostError) and call["op"] == "step"):
            return None
        if isinstance(answer, Exception):
            if isinstance(answer, SessionLostError):
                self._lose(answer)  # after a reset that failed, the episode before does not go on
            raise answer
        if "rng" in sent:
            call["rng"] = sent["rng"]
        return self._take(sent, answer)

    @staticmethod
    def fetch_ahead(asked: Sequence[tuple[RemoteEnv, str, tuple[Any, ...]]]) -> None:
        """Asks the gateways of many environments at once, in one request each. The calls of ``reset`` and
        ``step`` that follow, with the same arguments, take what was answered, or raise what went wrong."""
        by_client: dict[GatewayClient, list[tuple[RemoteEnv, dict[str, Any]]]] = {}
        for env, method, arguments in asked:
            call = (env._reset_call if method == "reset" else env._step_call)(*arguments)
            by_client.setdefault(env.client, []).append((env, call))
        for client, wanted in by_client.items():
            new = [(env, c) for env, c in wanted if c["op"] == "reset" and not env._held]
            answers = client.calls([env._open_call() for env, _ in new])
            for (env, call), answer in zip(new, answers, strict=True):
                try:
                    if isinstance(answer, Exception):
                        raise answer
                    env._opened(answer)
                except Exception as error:  # raised by the call that it is for
                    env._ahead = (call, {}, error)
            held = [(env, call) for env, call in wanted if env._held]
            sent = [env._of_session(dict(call)) for env, call in held]
            for (env, call), one, answer in zip(held, sent, client.calls(sent), strict=True):
                env._ahead = (call, one, answer)

    # --- questions -----------------------------------------------------------------------------------

    def prompt_observation(self, observation: str) -> str:
        """The observation as a prompt shows it; comes along with the observation itself."""
        if not self._shows:
            return observation
        if observation not in self._shown:
            asked = {"op": "ask", "what": "shown", "text": observation}
            self._shown[observation] = str(self._ask(asked)["answer"])
        return self._shown[observation]

    def list_actions(self) -> Sequence[str] | None:
        """Actions that would be accepted now; asked for if the environment does not list them by itself."""
        if not self._asks_actions:
            return super().list_actions()
        listed = self._ask({"op": "ask", "what": "actions"})["answer"]
        return None if listed is None else [str(action) for action in listed]

    def is_admissible(self, action: str) -> bool:
        """Says if an action would be accepted now, as far as the listed actions show."""
        if not self._asks_admissible:
            return super().is_admissible(action)
        answer = self._ask({"op": "ask", "what": "admissible", "text": encodable(action)})["answer"]
        return bool(answer)

    def reference_solution(self) -> list[str]:
        return [str(action) for action in self._ask({"op": "ask", "what": "solution"})["answer"]]

    def expert(self) -> Callable[[], str]:
        """The environment's expert, which stays with it: each action is asked for."""
        number = self._ask({"op": "ask", "what": "expert"})["answer"]
        self._has_expert = True
        return lambda: str(self._ask({"op": "ask", "what": "advice", "number": number})["answer"])

    # --- save and restore ----------------------------------------------------------------------------

    def _get_state(self) -> Any:
        return {"journal": copy.deepcopy(self._journal), "shown": dict(self._shown)}

    def _set_state(self, state: Any) -> None:
        """Has the episode played again over there: states are small, and no code travels."""
        self._ahead = None
        self._play_again(copy.deepcopy(state["journal"]))
        self._shown = dict(state["shown"])

    def _play_again(self, journal: dict[str, Any]) -> None:
        before, over = generator_text(self.np_random), self._over
        answer = self._ask({"op": "restore", **journal}, reopen=True)
        if before is not None:
            set_generator(self.np_random, before)
        self._over, self._journal = over, journal
        if self._outcome(answer) != self._last:
            self._over = True
            raise SessionLostError(
                "Played again, the episode went another way: this environment is not deterministic."
            )

    def close(self) -> None:
        if self._held:
            # a session that is gone already, or cannot be reached now, expires by itself
            with suppress(ServerUnavailableError, RemoteError):
                self.client.call({"op": "close", "session": self._held[0]})
            self._held.clear()
