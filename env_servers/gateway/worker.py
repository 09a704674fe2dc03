"""A process that holds environments and executes calls, one at a time, in the order they come.

    python -c "from env_servers.gateway.worker import main; main()" CONNECTION SETTINGS

It trusts the gateway, which has checked every call, and nobody else speaks to it: its connection is
inherited. Whatever an environment does (raise, exit, hang, die), it does it here.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

from env_servers.problems import ProblemError
from paw_gym.core import TextEnv
from paw_gym.internals.constructors import has_splits, import_named
from paw_gym.prompts import builtin_templates
from paw_gym.remote import generator_text, set_generator

OK, LOST, REFUSED = 200, 410, 422
_ARGUMENT_ERRORS = (KeyError, IndexError, ValueError, TypeError)
"""what a wrong argument raises; the environment goes on"""
_HARMLESS: dict[str, tuple[type[Exception], ...]] = {
    "reset": _ARGUMENT_ERRORS,
    "step": (),
    "replay": (*_ARGUMENT_ERRORS, RuntimeError),
    "ask": (Exception,),  # a question changes nothing, whatever came of it
}
"""by call of a session, what the environment may raise and go on"""
_PROBES = 16
"""environments kept to answer questions about tasks"""
_EXPERTS = 8
"""experts of a session"""

_PR_SET_PDEATHSIG = 1

log = logging.getLogger("env_servers.gateway.worker")


class RefusedError(Exception):
    """A call with a wrong argument; the environment is as before."""

    def __init__(self, error: BaseException) -> None:
        reason = error.args[0] if isinstance(error, KeyError) and error.args else error
        super().__init__(str(reason)[:2000])
        kinds = (*_ARGUMENT_ERRORS, NotImplementedError, StopIteration)
        self.kind = next((k.__name__ for k in kinds if isinstance(error, k)), "RuntimeError")


class Hosted:
    """One environment, with the wrappers that ``gymnasium.make`` puts around it."""

    def __init__(self, env_id: str, kwargs: dict[str, Any]) -> None:
        from paw_gym.registration import make_text_env

        self.env = make_text_env(env_id, **kwargs)
        inner = self.env.unwrapped
        if not isinstance(inner, TextEnv):
            raise TypeError(f"{env_id} makes a {type(inner).__name__}, not a paw_gym.TextEnv.")
        self.text_env = inner
        self.shows = type(inner).prompt_observation is not TextEnv.prompt_observation
        self._experts: list[Callable[[], str]] = []
        self.over = True

    def describe(self, env_id: str) -> dict[str, Any]:
        """A description of the environment for clients, who ask for it once."""
        env = self.text_env
        small = env.small_template
        if small not in builtin_templates():  # to a client it would be a path on this machine
            small = TextEnv.small_template
        return {
            "env_id": env_id,
            "fingerprint": env.tasks.fingerprint,
            "split": env.tasks.split,
            "num_tasks": len(env.tasks),
            "max_steps": env.max_steps,
            "agent": {**asdict(env.agent), "template_text": _template_text(env.agent.template)},
            "held_out_splits": list(env.held_out_splits),
            "has_splits": has_splits(env_id),
            "type_groups": {name: list(types) for name, types in env.type_groups.items()},
            "small_template": small,
            "recorded_info": list(env.recorded_info),
            "shows": self.shows,
            "asks_admissible": type(env).is_admissible is not TextEnv.is_admissible,
            "asks_actions": type(env).list_actions is not TextEnv.list_actions,
        }

    def reset(self, call: dict[str, Any]) -> dict[str, Any]:
        self._experts = []
        if call.get("progress") is not None:
            self.text_env.set_progress(call["progress"])
        observation, info = self.env.reset(seed=call.get("seed"), options=call.get("options"))
        self.over = False
        return self._shown({"observation": observation, "info": info})

    def step(self, call: dict[str, Any]) -> dict[str, Any]:
        if self.over:
            raise RefusedError(RuntimeError("The episode is over: call reset()."))
        observation, reward, terminated, truncated, info = self.env.step(call["action"])
        self.over = bool(terminated or truncated)
        return self._shown(
            {
                "observation": observation,
                "reward": float(reward),
                "terminated": bool(terminated),
                "truncated": bool(truncated),
                "info": info,
            }
        )

    def _shown(self, answer: dict[str, Any]) -> dict[str, Any]:
        if self.shows:
            shown = self.text_env.prompt_observation(answer["observation"])
            if shown != answer["observation"]:
                answer["shown"] = shown
        return answer

    def ask(self, call: dict[str, Any]) -> dict[str, Any]:
        """Answers a question; the episode stays as it is, but an expert may advance."""
        env, text = self.text_env, call.get("text", "")
        answers: dict[str, Callable[[], Any]] = {
            "actions": env.list_actions,
            "admissible": lambda: bool(env.is_admissible(text)),
            "shown": lambda: env.prompt_observation(text),
            "solution": lambda: list(env.reference_solution()),
            "expert": self._new_expert,
            "advice": lambda: self._advice(call.get("number", 0)),
        }
        return {"answer": answers[call["what"]]()}

    def _new_expert(self) -> int:
        if len(self._experts) >= _EXPERTS:
            raise ValueError(f"An episode has at most {_EXPERTS} experts.")
        self._experts.append(self.text_env.expert())
        return len(self._experts) - 1

    def _advice(self, number: int) -> str:
        if not 0 <= number < len(self._experts):
            raise ValueError(f"This episode has no expert {number}: ask for a new one.")
        return self._experts[number]()

    def replay(self, call: dict[str, Any]) -> dict[str, Any]:
        """Plays an episode again and gives what its last reset or step gave."""
        answer: dict[str, Any] = {}
        for entry in call["journal"]:
            if "what" in entry:
                with suppress(Exception):  # it may be refused, as when it was first asked
                    self.with_generator(self.ask, entry)
            else:
                answer = self.with_generator(self.step if "action" in entry else self.reset, entry)
        return answer

    def with_generator(
        self, method: Callable[[dict[str, Any]], dict[str, Any]], call: dict[str, Any]
    ) -> dict[str, Any]:
        """Calls ``method`` with the client's generator, and adds its new state if it changed."""
        env = self.text_env
        if call.get("rng") is not None:
            set_generator(env.np_random, call["rng"])
        before = None if call.get("seed") is not None else generator_text(env.np_random)
        answer = method(call)
        after = generator_text(env.np_random)
        if after != before:
            answer["rng"] = after
        return answer


def _template_text(name: str) -> str | None:
    """The content of a template file; ``None`` for a built-in one, which clients have."""
    if name in builtin_templates():
        return None
    with open(name, encoding="utf-8") as file:
        return file.read()


class Host:
    """All environments of a worker, by session."""

    def __init__(self) -> None:
        self._hosted: dict[str, Hosted] = {}
        self._probes: OrderedDict[str, Hosted] = OrderedDict()

    def answer(self, call: dict[str, Any]) -> tuple[int, bytes]:
        """Status and JSON of a call's answer; whatever is raised becomes problem details."""
        try:
            return OK, json.dumps(getattr(self, f"_{call['op']}")(call)).encode()
        except RefusedError as refusal:
            return REFUSED, ProblemError(REFUSED, str(refusal), exception=refusal.kind).content()
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # the environment's own
            log.warning("%s failed", call.get("op"), exc_info=True)
            self.drop(call.get("session", ""))
            reason = f"it raised {type(error).__name__}: {str(error)[:300]}"
            return LOST, ProblemError(LOST, reason).content()

    def drop(self, session: str) -> None:
        hosted = self._hosted.pop(session, None)
        if hosted is not None:
            try:
                hosted.env.close()
            except Exception:  # it is not needed any more
                return

    # --- without a session ---------------------------------------------------------------------------

    def _probe(self, call: dict[str, Any]) -> Hosted:
        key = repr((call["env_id"], sorted(call["kwargs"].items())))
        if key not in self._probes:
            self._probes[key] = _make(call)
        self._probes.move_to_end(key)
        while len(self._probes) > _PROBES:
            self._probes.popitem(last=False)[1].env.close()
        return self._probes[key]

    def _describe(self, call: dict[str, Any]) -> dict[str, Any]:
        return self._probe(call).describe(call["env_id"])

    def _tasks(self, call: dict[str, Any]) -> dict[str, Any]:
        tasks = self._probe(call).text_env.tasks
        ids = list(tasks.ids[call["offset"] : call["offset"] + call["limit"]])
        return {"ids": ids, "num_tasks": len(tasks), "fingerprint": tasks.fingerprint}

    def _task(self, call: dict[str, Any]) -> dict[str, Any]:
        tasks = self._probe(call).text_env.tasks
        try:
            task = tasks[call["task_id"]]
        except KeyError as error:
            raise RefusedError(error) from error
        return {"id": task.id, "type": task.type, "instruction": task.instruction}

    # --- of a session --------------------------------------------------------------------------------

    def _make(self, call: dict[str, Any]) -> dict[str, Any]:
        self._hosted[call["session"]] = _make(call)
        return {}

    def _drop(self, call: dict[str, Any]) -> dict[str, Any]:
        self.drop(call["session"])
        return {}

    def _play(self, call: dict[str, Any]) -> dict[str, Any]:
        hosted = self._hosted[call["session"]]
        try:
            if call["op"] == "replay":
                return hosted.replay(call)
            return hosted.with_generator(getattr(hosted, call["op"]), call)
        except _HARMLESS[call["op"]] as error:
            raise RefusedError(error) from error

    _reset = _step = _replay = _ask = _play


def _make(call: dict[str, Any]) -> Hosted:
    try:
        return Hosted(call["env_id"], call["kwargs"])
    except (OSError, ImportError) as error:  # its message names the server's files
        log.error("%s cannot be made", call["env_id"], exc_info=True)
        reason = RuntimeError(f"{call['env_id']} cannot be made here: see the gateway's log.")
        raise RefusedError(reason) from error
    except _ARGUMENT_ERRORS as error:
        raise RefusedError(error) from error


# --- the process -------------------------------------------------------------------------------------


def serve(connection: Connection, host: Host) -> None:
    """Answers calls until the other end is closed; an empty message says that it begins with new ones."""
    connection.send_bytes(b"")
    with suppress(EOFError):
        while calls := json.loads(connection.recv_bytes()):
            connection.send_bytes(b"")
            for call in calls:
                connection.send_bytes(b"%d%b" % host.answer(call))


def _prepare(settings: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":  # a worker that hangs would not see that its gateway is gone
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != settings["parent"]:
            sys.exit("The gateway is gone already.")
    os.dup2(2, 1)  # what an environment prints is not an answer
    if settings["memory_mb"]:
        import resource

        most = settings["memory_mb"] << 20
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for name in settings["modules"]:
        import_named(name)


def main() -> None:
    logging.basicConfig(format="worker: %(message)s", level=logging.WARNING)
    descriptor, settings = sys.argv[1:]
    _prepare(json.loads(settings))
    serve(Connection(int(descriptor)), Host())
