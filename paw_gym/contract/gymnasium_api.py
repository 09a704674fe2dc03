"""Checks against Gymnasium itself: its own checker, and its vector environments."""

from __future__ import annotations

import functools
import random
import warnings
from typing import Any

from paw_gym.contract.report import ContractViolation, require
from paw_gym.contract.subject import Moment, Subject, choose, start


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
    from gymnasium.utils.env_checker import check_env as gymnasium_check_env

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
    """``make_vec`` in one process gives what single environments give."""
    return _check_vector(subject, "sync")


def vector_async(subject: Subject) -> str:
    """``make_vec`` in subprocesses gives what single environments give."""
    return _check_vector(subject, "async")


def _make_vector(subject: Subject, mode: str, count: int) -> Any:
    import gymnasium as gym

    if isinstance(subject.env, str):
        return gym.make_vec(subject.env, count, vectorization_mode=mode, **subject.env_kwargs)
    vector = gym.vector.SyncVectorEnv if mode == "sync" else gym.vector.AsyncVectorEnv
    return vector([functools.partial(subject.env, **subject.env_kwargs)] * count)


def _check_vector(subject: Subject, mode: str, count: int = 2, steps: int = 3) -> str:
    rng = random.Random(subject.seed)
    singles = [subject.make() for _ in range(count)]
    expected = [start(env, subject.seed + i) for i, env in enumerate(singles)]
    from gymnasium import logger

    vector = _make_vector(subject, mode, count)
    # what a subprocess raises is reported from here, and need not be printed by Gymnasium too
    level, logger.min_level = logger.min_level, logger.ERROR + 1
    try:
        observations, _ = vector.reset(seed=subject.seed)
        _require_equal(observations, [m.observation for m in expected], "observations at reset")
        for step in range(steps):
            actions = [choose(rng, m.info["admissible_actions"]) for m in expected]
            results = [env.step(action) for env, action in zip(singles, actions, strict=True)]
            observations, rewards, terminations, truncations, infos = vector.step(tuple(actions))
            where = f"after step {step}"
            _require_equal(observations, [r[0] for r in results], f"observations {where}")
            _require_equal(rewards.tolist(), [r[1] for r in results], f"rewards {where}")
            _require_equal(terminations.tolist(), [r[2] for r in results], f"terminations {where}")
            _require_equal(truncations.tolist(), [r[3] for r in results], f"truncations {where}")
            require("task_id" in infos, f"infos {where} lack 'task_id': {sorted(infos)}.")
            if any(r[2] or r[3] for r in results):
                break
            expected = [Moment(*r) for r in results]
    finally:
        logger.min_level = level
        vector.close()
    return f"{count} environments"


def _require_equal(got: Any, expected: list[Any], what: str) -> None:
    require(
        list(got) == expected,
        f"make_vec: {what} are {list(got)!r:.160}; single environments give {expected!r:.160}.",
    )


CHECKS = (
    check_env,
    check_env_agent_window,
    check_env_agent_conversation,
    vector_sync,
    vector_async,
)
