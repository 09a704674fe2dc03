"""Checks that an episode depends on its seed and its actions, and can be saved and restored exactly."""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import product
from typing import Any, TypeVar

import numpy as np

from paw_gym.contract.subject import (
    JUNK,
    CheckSkipped,
    Moment,
    Script,
    Subject,
    continue_with,
    replay,
    require,
    require_same,
    start,
)
from paw_gym.internals.printable import counted
from paw_gym.registration import text_env_spec

T = TypeVar("T")


def determinism(subject: Subject) -> str:
    """The same seed and actions give the same episode: in a fresh, a used, and an advising instance."""
    for script in subject.scripts:
        env = subject.make()
        first = replay(env, script)
        fresh = _with_other_global_state(lambda script=script: replay(subject.make(), script))  # type: ignore[misc]
        require_same(first, fresh, "a fresh instance with the same seed")
        require_same(first, replay(env, script), "reset of a used instance with the same seed")
        again = start(env, script.seed, script.task_id)
        with suppress(NotImplementedError):
            env.reference_solution()
        advised = [again, *continue_with(env, script.actions)]
        require_same(first, advised, "after a call of reference_solution()")
        require(
            env.tasks.fingerprint == subject.make().tasks.fingerprint,
            "After an episode, a new instance has another tasks.fingerprint: leave the data of tasks as "
            "it is, and keep in self.state what changes.",
        )
    return f"{counted(len(subject.scripts), 'episode')}, played four times"


def _with_other_global_state(call: Callable[[], T]) -> T:
    """The result of ``call`` with Python's and NumPy's global generators in another state, then put back."""
    saved = random.getstate(), np.random.get_state()  # noqa: NPY002  (it is what is under test)
    try:
        random.seed(987654321)
        np.random.seed(987654321)  # noqa: NPY002
        return call()
    finally:
        random.setstate(saved[0])
        np.random.set_state(saved[1])  # noqa: NPY002


_CHILD = """\
import importlib, json, sys
path, package, env, kwargs, scripts = json.load(sys.stdin)
sys.path[:] = path
importlib.import_module(package)
from paw_gym.contract.subject import Script, replay
from paw_gym.registration import make_text_env
made = make_text_env(env, **kwargs).unwrapped
print("\\n" + json.dumps([[m[:4] for m in replay(made, Script(*s))] for s in scripts]))
"""


def other_process(subject: Subject) -> str:
    """Another process, where strings have other hashes and sets another order, plays the same episodes."""
    name = subject.env.rpartition(":")[2] if isinstance(subject.env, str) else ""
    package = text_env_spec(name).package if name else "__main__"
    if package == "__main__":
        raise CheckSkipped("not registered by a module, which another process could import")
    try:
        scripts = [(s.seed, s.task_id, s.actions) for s in subject.scripts]
        given = json.dumps([sys.path, package, name, subject.env_kwargs, scripts])
    except TypeError as error:
        raise CheckSkipped(f"settings that another process cannot be given: {error}") from error
    hashes = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    child = subprocess.run(
        [sys.executable, "-c", _CHILD],
        input=given,
        env={**os.environ, "PYTHONHASHSEED": hashes},
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode:
        reason = " ".join(child.stderr.strip().splitlines()[-1:])
        raise CheckSkipped(f"another process cannot play it: {reason}")
    where = "a process with another PYTHONHASHSEED (does a set decide an order?)"
    played = json.loads(child.stdout.split("\n")[-2])
    for script, found in zip(subject.scripts, played, strict=True):
        here = [m._replace(info={}) for m in replay(subject.make(), script)]
        require_same(here, [Moment(a, b, c, d, {}) for a, b, c, d in found], where)
    return f"{counted(len(subject.scripts), 'episode')} in another process"


def seeded_task_choice(subject: Subject) -> str:
    """Without options the seed chooses the task, the same one each time."""
    seeds = range(subject.seed, subject.seed + 5)
    chosen = [start(subject.make(), seed).info["task_id"] for seed in seeds]
    again = [start(subject.make(), seed).info["task_id"] for seed in seeds]
    require(
        chosen == again,
        f"The same seeds chose different tasks: {chosen} and {again}. "
        "Randomness must come from self.np_random.",
    )
    count = len(subject.make().tasks)
    require(
        count < 10 or len(set(chosen)) > 1,
        f"Five seeds all chose task {chosen[0]!r} out of {count}.",
    )
    return f"seeds {seeds.start} to {seeds.stop - 1}"


def global_random_state(subject: Subject) -> str:
    """Playing leaves the global generators of Python and NumPy alone."""

    def states() -> Any:
        return random.getstate(), np.random.get_state()  # noqa: NPY002

    env, script = subject.make(), subject.scripts[0]
    # other states than earlier episodes left: one that is seeded alike each time is seen too
    before, _, after = _with_other_global_state(lambda: (states(), replay(env, script), states()))
    require(before[0] == after[0], "An episode advanced Python's global random generator.")
    same = all(np.array_equal(a, b) for a, b in zip(before[1], after[1], strict=True))
    require(same, "An episode advanced NumPy's global random generator.")
    return "untouched"


def independent_instances(subject: Subject) -> str:
    """Two instances that are stepped in turns do not disturb each other."""
    pair = [subject.scripts[0], subject.scripts[-1]]
    alone = [replay(subject.make(), script) for script in pair]
    envs = [subject.make() for _ in pair]
    together = [[start(e, s.seed, s.task_id)] for e, s in zip(envs, pair, strict=True)]
    for step in range(max(len(trace) for trace in alone) - 1):
        for env, script, trace, moments in zip(envs, pair, alone, together, strict=True):
            if step < len(trace) - 1:
                moments.extend(continue_with(env, script.actions[step : step + 1]))
    for left, right in zip(alone, together, strict=True):
        require_same(left, right, "an instance next to another one")
    return "2 instances in turns"


def save_restore(subject: Subject) -> str:
    """A pickled state continues exactly: in the same, in a fresh, and in a used instance."""
    return _check_save_restore(subject, subject.make)


def save_restore_agent(subject: Subject) -> str:
    """The same behind ``AgentInterface``, prompts and history included."""
    return _check_save_restore(subject, subject.agent)


def _check_save_restore(subject: Subject, make: Callable[[], Any]) -> str:
    saves = 0
    for script in subject.scripts:
        for cut in sorted({0, len(script.actions) // 2, len(script.actions)}):
            env, used = make(), make()
            left = _play_to(env, script, cut)
            stored = pickle.dumps(env.save_state())
            expected = _future(env, left)
            start(used, script.seed + 1, subject.task_ids[-1])
            places = (
                ("the same instance", env),
                ("a fresh instance", make()),
                ("a used one", used),
            )
            for name, target in places:
                target.restore_state(pickle.loads(stored))
                where = f"restored after {cut} steps into {name}"
                require_same(expected, _future(target, left), where)
            saves += 1
    return f"{saves} states"


def _play_to(env: Any, script: Script, cut: int) -> list[str]:
    """Plays the first actions of a script, or an agent's responses for them; returns those that are left."""
    actions = [getattr(env, "response_for", str)(action) for action in script.actions]
    start(env, script.seed, script.task_id)
    played = continue_with(env, actions[:cut])
    return [] if played and played[-1].over else actions[cut:]


def _future(env: Any, actions: Sequence[str]) -> list[Moment]:
    """The remaining episode after a state, and the start of the episode that the generator samples next."""
    remaining = continue_with(env, actions)
    observation, info = env.reset()
    return [*remaining, Moment(observation, 0.0, False, False, info)]


def saved_state_is_frozen(subject: Subject) -> str:
    """Playing on does not change a state that was saved or restored before."""
    for script in subject.scripts:
        env = subject.make()
        first = start(env, script.seed, script.task_id)
        state = env.save_state()
        # if actions are listed, a refused one shows which would be accepted now
        probe = JUNK[2:3] if first.info["admissible_actions"] is not None else ()
        expected = continue_with(env, (*probe, *script.actions))
        for disturbance in subject.scripts:
            env.restore_state(state)
            got = continue_with(env, (*probe, *script.actions))
            require_same(expected, got, "a state restored again")
            env.restore_state(state)
            continue_with(env, disturbance.actions)
    return f"{len(subject.scripts)} states, restored often"


def copies(subject: Subject) -> str:
    """``copy.deepcopy`` and ``pickle`` in mid-episode give environments that go on in the same way."""
    ways: dict[str, Callable[[Any], Any]] = {"copy.deepcopy": copy.deepcopy}
    # what a test makes by hand may hold local functions and classes, which pickle cannot find
    cls = type(subject.make())
    found = getattr(sys.modules.get(cls.__module__), cls.__qualname__, None)
    if isinstance(subject.env, str) and found is cls:
        ways["pickle"] = lambda env: pickle.loads(pickle.dumps(env))
    script = subject.scripts[-1]
    for make, (name, way) in product((subject.make_wrapped, subject.agent), ways.items()):
        env = make()
        way(env)  # before the first reset too
        cut = len(script.actions) // 2
        left = _play_to(env, script, cut)
        twin = way(env)
        require_same(_future(env, left), _future(twin, left), f"{name} after {cut} steps")
    return " and ".join(ways)
