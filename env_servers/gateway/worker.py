"""A process that holds environments and executes calls, one at a time, in the order they come.

    python -c "from env_servers.gateway.worker import main; main()" SETTINGS

It trusts the gateway, which has checked every call, and nobody else speaks to it: calls come in by its
standard input, a line for each list of them. Whatever an environment does (raise, exit, hang, die), it
does it here.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from paw_gym.core import TextEnv
from paw_gym.internals.constructors import has_splits, import_named
from paw_gym.prompts import builtin_templates
from paw_gym.remote import generator_text, set_generator

OK, LOST, REFUSED = 200, 410, 422
_ARGUMENT_ERRORS = (KeyError, IndexError, ValueError, TypeError)
"""what a wrong argument raises; the environment goes on"""
_HARMLESS: dict[str, tuple[type[Exception], ...]] = {
    "task": (KeyError,),
    "reset": _ARGUMENT_ERRORS,
    "restore": (*_ARGUMENT_ERRORS, RuntimeError),
    "ask": (Exception,),  # a question changes nothing, whatever came of it
}
"""by call, what the environment may raise and go on"""
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
        self.text_env: TextEnv = self.env.unwrapped
        made = type(self.text_env)
        self.shows = made.prompt_observation is not TextEnv.prompt_observation
        self._experts: list[Callable[[], str]] = []
        self.over = True

    def describe(self, call: dict[str, Any]) -> dict[str, Any]:
        """A description of the environment for clients, who ask for it once."""
        env, agent = self.text_env, asdict(self.text_env.agent)
        # of a built-in one, which clients have, the name is enough
        is_file = env.agent.template not in builtin_templates()
        agent["template_text"] = Path(env.agent.template).read_text("utf-8") if is_file else None
        return {
            "env_id": call["env_id"],
            "fingerprint": env.tasks.fingerprint,
            "split": env.tasks.split,
            "num_tasks": len(env.tasks),
            "max_steps": env.max_steps,
            "agent": agent,
            "held_out_splits": list(env.held_out_splits),
            "has_splits": has_splits(call["env_id"]),
            "type_groups": {name: list(types) for name, types in env.type_groups.items()},
            "small_template": env.small_template,
            "recorded_info": list(env.recorded_info),
            "shows": self.shows,
            "asks_admissible": type(env).is_admissible is not TextEnv.is_admissible,
            "asks_actions": type(env).list_actions is not TextEnv.list_actions,
        }

    def tasks(self, call: dict[str, Any]) -> dict[str, Any]:
        tasks = self.text_env.tasks
        ids = list(tasks.ids[call["offset"] : call["offset"] + call["limit"]])
        return {"ids": ids, "num_tasks": len(tasks), "fingerprint": tasks.fingerprint}

    def task(self, call: dict[str, Any]) -> dict[str, Any]:
        task = self.text_env.tasks[call["task_id"]]
        return {"id": task.id, "type": task.type, "instruction": task.instruction}

    def reset(self, call: dict[str, Any]) -> dict[str, Any]:
        self._experts = []
        if "progress" in call:
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

    def restore(self, call: dict[str, Any]) -> dict[str, Any]:
        """Plays an episode again and gives what its last reset or step gave."""
        answer = self.with_generator(self.reset, call["reset"])
        for step in call["steps"]:
            answer = self.with_generator(self.step, step)
        return answer

    def ask(self, call: dict[str, Any]) -> dict[str, Any]:
        """Answers a question; the episode stays as it is, but an expert may advance."""
        env, experts, number = self.text_env, self._experts, call["number"]
        answer: Any
        match call["what"]:
            case "actions":
                answer = env.list_actions()
            case "admissible":
                answer = bool(env.is_admissible(call["text"]))
            case "shown":
                answer = env.prompt_observation(call["text"])
            case "solution":
                answer = list(env.reference_solution())
            case "expert":
                if len(experts) >= _EXPERTS:
                    raise ValueError(f"An episode has at most {_EXPERTS} experts.")
                experts.append(env.expert())
                answer = len(experts) - 1
            case "advice":
                if number >= len(experts):
                    raise ValueError(f"This episode has no expert {number}: ask for a new one.")
                answer = experts[number]()
        return {"answer": answer}

    def with_generator(
        self, method: Callable[[dict[str, Any]], dict[str, Any]], call: dict[str, Any]
    ) -> dict[str, Any]:
        """Calls ``method`` with the client's generator, and adds its new state if it changed."""
        env = self.text_env
        if "rng" in call:
            set_generator(env.np_random, call["rng"])
        before = None if "seed" in call else generator_text(env.np_random)
        answer = method(call)
        after = generator_text(env.np_random)
        if after != before:
            answer["rng"] = after
        return answer


class Host:
    """All environments of a worker, by session."""

    def __init__(self) -> None:
        self._hosted: dict[str, Hosted] = {}
        self._probes: OrderedDict[str, Hosted] = OrderedDict()

    def answer(self, call: dict[str, Any]) -> tuple[int, bytes]:
        """Status and JSON of a call's answer; whatever is raised becomes an answer, too."""
        try:
            try:
                answer = self._execute(call)
            except _HARMLESS.get(call["op"], ()) as error:
                raise RefusedError(error) from error
            return OK, json.dumps(answer).encode()
        except RefusedError as refusal:
            said = {"detail": str(refusal), "exception": refusal.kind}
            return REFUSED, json.dumps(said).encode()
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # the environment's own
            log.warning("%s failed", call["op"], exc_info=True)
            self._drop(call.get("session", ""))
            reason = f"it raised {type(error).__name__}: {str(error)[:300]}"
            return LOST, json.dumps({"detail": reason}).encode()

    def _execute(self, call: dict[str, Any]) -> dict[str, Any]:
        op = call["op"]
        match op:
            case "describe" | "tasks" | "task":
                answer: dict[str, Any] = getattr(self._probe(call), op)(call)
                return answer
            case "make":
                self._hosted[call["session"]] = _make(call)
                return {}
            case "drop":
                self._drop(call["session"])
                return {}
        hosted = self._hosted[call["session"]]
        if op == "restore":
            return hosted.restore(call)
        return hosted.with_generator(getattr(hosted, op), call)

    def _probe(self, call: dict[str, Any]) -> Hosted:
        key = repr((call["env_id"], sorted(call["kwargs"].items())))
        if key not in self._probes:
            self._probes[key] = _make(call)
        self._probes.move_to_end(key)
        while len(self._probes) > _PROBES:
            self._probes.popitem(last=False)[1].env.close()
        return self._probes[key]

    def _drop(self, session: str) -> None:
        hosted = self._hosted.pop(session, None)
        if hosted is not None:
            try:
                hosted.env.close()
            except Exception:  # it is not needed any more
                return


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


def serve(lines: Iterable[bytes], answers: BinaryIO) -> None:
    """Answers calls, a line each; an empty one says that it begins with what came together."""

    def say(line: bytes) -> None:
        answers.write(line + b"\n")
        answers.flush()

    host = Host()
    say(b"")
    for line in lines:
        say(b"")
        for call in json.loads(line):
            say(b"%d%b" % host.answer(call))


def main() -> None:
    logging.basicConfig(format="worker: %(message)s", level=logging.WARNING)
    settings = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":  # a worker that hangs would not see that its gateway is gone
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != settings["parent"]:
            sys.exit("The gateway is gone already.")
    lines, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # what an environment prints is not an answer
    if settings["memory_mb"]:
        import resource

        most = settings["memory_mb"] << 20
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for name in settings["modules"]:
        import_named(name)
    serve(lines, answers)
