"""Checks of the task set and the solver, and those of Gymnasium's checker and vector environments."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
from gymnasium.utils.env_checker import check_env as gymnasium_check_env

from paw_gym.contract.subject import (
    ContractViolation,
    Moment,
    Script,
    Subject,
    choose,
    continue_with,
    replay,
    require,
    start,
)
from paw_gym.internals.printable import counted
from paw_gym.internals.validation import check_task

_ATTEMPTS = 5
"""episodes in which an expert may lose to chance"""


def task_ids(subject: Subject) -> str:
    """Ids are unique strings and lead to their tasks, which have an instruction."""
    tasks = subject.make().tasks
    ids = list(tasks.ids)
    repeated = len(ids) - len(set(ids))
    require(not repeated, f"{repeated} task ids are repeated; every id must name one task.")
    for place in {0, len(ids) // 2, len(ids) - 1}:
        for key in (place, ids[place]):
            check_task(tasks[key], f"tasks[{key!r}]")
    return counted(len(ids), "task")


def fingerprint(subject: Subject) -> str:
    """The fingerprint of the tasks is the same in every instance."""
    first, second = subject.make().tasks.fingerprint, subject.make().tasks.fingerprint
    require(
        isinstance(first, str) and first, f"tasks.fingerprint is {first!r}; expected a hash (str)."
    )
    require(
        first == second,
        f"tasks.fingerprint differs between two instances: {first[:16]}, {second[:16]}. "
        "It must depend on the tasks alone.",
    )
    return first[:12]


def task_options(subject: Subject) -> str:
    """``task_id`` and ``task_index`` choose the task; an unknown one is an error that helps."""
    env = subject.make()
    ids = list(env.tasks.ids)
    for task_id in subject.task_ids:
        for options in ({"task_id": task_id}, {"task_index": ids.index(task_id)}):
            _, info = env.reset(seed=subject.seed, options=options)
            require(
                info["task_id"] == task_id,
                f"reset(options={options}) started task {info['task_id']!r}, not {task_id!r}.",
            )
    known = subject.task_ids[0]
    unknown = known + "x"
    while unknown in ids:
        unknown += "x"
    error = _error_of(lambda: env.reset(options={"task_id": unknown}), KeyError, "an unknown id")
    require(
        known in str(error),
        f"The KeyError for {unknown!r} does not name the nearest id {known!r}: {error}",
    )
    _error_of(
        lambda: env.reset(options={"task_index": len(ids)}), IndexError, "an index out of range"
    )
    _error_of(lambda: env.reset(options={"no_such": 1}), ValueError, "an unknown reset option")
    return f"{counted(len(subject.task_ids), 'task')} by id and by index; unknown ones refused"


def _error_of(call: object, expected: type[Exception], what: str) -> Exception:
    try:
        call()  # type: ignore[operator]
    except expected as error:
        return error
    except Exception as error:
        raise ContractViolation(
            f"For {what}, reset raised {type(error).__name__} ({error}); "
            f"expected {expected.__name__}."
        ) from error
    raise ContractViolation(f"For {what}, reset raised nothing; expected {expected.__name__}.")


def reference_solver(subject: Subject) -> str:
    """The reference solution or the expert reaches success in each task, with no model."""
    longest = 0
    for seed, task_id in enumerate(subject.solver_task_ids, start=subject.seed):
        try:
            steps, problem = _played_through(subject, seed, task_id)
        except NotImplementedError as error:
            if not subject.has_own_expert:
                raise ContractViolation(f"{error} It proves that tasks can be solved.") from None
            steps, problem = 0, "there is no reference solution."
        else:
            sound = not problem or _is_stochastic(subject, seed, task_id)
            require(sound, f"Task {task_id!r}: {problem}")
        if problem:
            # if chance decides, a sound expert may lose: it is tried with other seeds
            tries = (_expert_steps(subject, seed + i, task_id) for i in range(_ATTEMPTS))
            steps = next(filter(None, tries), 0)
            require(
                steps,
                f"Task {task_id!r}: {problem} Nor does expert() reach success in "
                f"{counted(_ATTEMPTS, 'episode')}.",
            )
        elif subject.has_own_expert:
            _expert_steps(subject, seed, task_id)  # it may lose, but it must not raise
        longest = max(longest, steps)
    count = counted(len(subject.solver_task_ids), "task")
    return f"{count} solved in at most {counted(longest, 'step')}"


def _played_through(subject: Subject, seed: int, task_id: str) -> tuple[int, str]:
    """Steps to success with the reference solution as it is at the start, and why it fails (or "")."""
    env = subject.make()
    start(env, seed, task_id)
    actions = list(env.reference_solution())
    if not actions:
        return 0, "the reference solution is empty."
    played = continue_with(env, actions)
    for step, moment in enumerate(played):
        if not moment.info["action_is_valid"]:
            return 0, f"action {step} of the solution, {actions[step]!r:.80}, is invalid."
    if len(played) < len(actions):
        return 0, f"the episode ended after {len(played)} of {len(actions)} actions."
    if not (played[-1].terminated and played[-1].info["success"]):
        return 0, (
            f"the solution of {len(actions)} actions does not end in success "
            f"(budget: {env.max_steps} steps)."
        )
    return len(actions), ""


def _is_stochastic(subject: Subject, seed: int, task_id: str) -> bool:
    """True if other seeds change what the reference solution, or a walk, meets."""
    env = subject.make()
    start(env, seed, task_id)
    actions = tuple(env.reference_solution() or subject.walk(seed, task_id))
    traces = [
        [moment[:-1] for moment in replay(subject.make(), Script(s, task_id, actions))]
        for s in range(seed, seed + _ATTEMPTS)
    ]
    return any(trace != traces[0] for trace in traces)


def _expert_steps(subject: Subject, seed: int, task_id: str) -> int:
    """Steps in which the expert succeeds; 0: it does not."""
    env = subject.make()
    moment, steps = start(env, seed, task_id), 0
    act = env.expert()
    while not moment.over:
        try:
            action = act()
        except StopIteration:
            return 0
        moment, steps = Moment(*env.step(action)), steps + 1
    return steps if moment.info["success"] else 0


def check_env(subject: Subject) -> str:
    """Gymnasium's ``check_env`` neither fails nor warns."""
    return _check_env(subject.make())


def check_env_agent_window(subject: Subject) -> str:
    """The same behind ``AgentInterface``, window mode."""
    return _check_env(subject.agent("window"))


def check_env_agent_conversation(subject: Subject) -> str:
    """The same behind ``AgentInterface``, conversation mode."""
    return _check_env(subject.agent("conversation"))


def _check_env(env: Any) -> str:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            # rendering is tested by making the environment anew, which takes a registered id
            gymnasium_check_env(env, skip_render_check=env.spec is None)
        except Exception as error:
            raise ContractViolation(
                f"gymnasium's check_env failed: {type(error).__name__}: {error}"
            ) from error
    texts = [str(warning.message) for warning in said]
    require(not texts, f"gymnasium's check_env warned: {' | '.join(texts)}")
    return "no warning"


def vector_sync(subject: Subject) -> str:
    """A vector environment in one process gives what single environments give."""
    return _check_vector(subject, "sync")


def vector_async(subject: Subject) -> str:
    """A vector environment in subprocesses gives what single environments give."""
    return _check_vector(subject, "async")


def _check_vector(subject: Subject, mode: str, count: int = 2, steps: int = 3) -> str:
    rng = random.Random(subject.seed)
    singles = [subject.make() for _ in range(count)]
    expected = [start(env, subject.seed + i) for i, env in enumerate(singles)]
    kind = gym.vector.SyncVectorEnv if mode == "sync" else gym.vector.AsyncVectorEnv
    vector = kind([subject.make_wrapped] * count)
    # what a subprocess raises is reported from here, and need not be printed by Gymnasium too
    level, gym.logger.min_level = gym.logger.min_level, gym.logger.ERROR + 1
    try:
        observations, _ = vector.reset(seed=subject.seed)
        _require_equal(observations, [m.observation for m in expected], "observations at reset")
        for step in range(steps):
            actions = [choose(rng, m.info["admissible_actions"]) for m in expected]
            results = [env.step(action) for env, action in zip(singles, actions, strict=True)]
            observations, rewards, ends, truncations, infos = vector.step(tuple(actions))
            where = f"after step {step}"
            got = (observations, *(each.tolist() for each in (rewards, ends, truncations)))
            names = ("observations", "rewards", "terminations", "truncations")
            for what, values, wanted in zip(names, got, zip(*results, strict=True), strict=False):
                _require_equal(values, wanted, f"{what} {where}")
            require("task_id" in infos, f"infos {where} lack 'task_id': {sorted(infos)}.")
            expected = [Moment(*r) for r in results]
            if any(moment.over for moment in expected):
                break
    finally:
        gym.logger.min_level = level
        vector.close()
    return f"{count} environments"


def _require_equal(got: Sequence[Any], expected: Sequence[Any], what: str) -> None:
    require(
        list(got) == list(expected),
        f"{what} of a vector environment are {list(got)!r:.160}; single environments give {expected!r:.160}.",
    )
