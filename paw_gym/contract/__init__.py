"""The contract suite that every text environment must pass: for ``paw check`` and an environment's own tests.

In a test::

    def test_contract():
        check_text_env("me/Maze-v0").raise_for_failures()
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from inspect import isfunction
from typing import Any

from paw_gym.contract import episodes, interface, state
from paw_gym.contract.isolation import TIME_LIMIT, run_isolated
from paw_gym.contract.subject import (
    CheckResult,
    ContractReport,
    ContractViolation,
    Subject,
    not_run,
    run_check,
)
from paw_gym.internals.naming import require_choice
from paw_gym.internals.validation import EnvDefinitionError

__all__ = [
    "CHECKS",
    "TIME_LIMIT",
    "CheckResult",
    "ContractReport",
    "ContractViolation",
    "Subject",
    "check_text_env",
    "iter_checks",
]

CHECKS: dict[str, Callable[[Subject], str]] = {
    name: check
    for module in (interface, state, episodes)
    for name, check in vars(module).items()
    if isfunction(check) and check.__module__ == module.__name__ and name[0] != "_"
}
"""the public functions of the modules; each returns a line on what it looked at, or raises
``ContractViolation``"""


def check_text_env(
    env: str | Callable[..., Any],
    *,
    tasks: int | Sequence[str] = 3,
    seed: int = 0,
    only: Sequence[str] | None = None,
    time_limit: float | None = TIME_LIMIT,
    **env_kwargs: Any,
) -> ContractReport:
    """Runs the suite and returns a named result for each check; raises for nothing the environment does.

    Args:
        env: a registered id, or what makes the environment when called with ``env_kwargs``.
        tasks: how many tasks to sample, or the ids to use.
        seed: seeds the sample and all play.
        only: names of the checks to run (``CHECKS``); ``None``: all of them.
        time_limit: seconds that a check may take; then its subprocess is ended. ``None``: no
            limit, and the checks run in this process, where a debugger reaches them.
        env_kwargs: arguments of the environment.

    Raises:
        ValueError: an unknown environment id or check name; names the nearest.
        KeyError: an unknown task id in ``tasks``.
    """
    results = list(
        iter_checks(env, tasks=tasks, seed=seed, only=only, time_limit=time_limit, **env_kwargs)
    )
    name = env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
    return ContractReport(name, results)


def iter_checks(
    env: str | Callable[..., Any],
    *,
    tasks: int | Sequence[str] = 3,
    seed: int = 0,
    only: Sequence[str] | None = None,
    time_limit: float | None = TIME_LIMIT,
    **env_kwargs: Any,
) -> Iterator[CheckResult]:
    """``check_text_env`` one result at a time, for callers showing progress. Bad arguments raise at once."""
    chosen = list(CHECKS if only is None else only)
    for name in chosen:
        require_choice("check", name, CHECKS)
    if isinstance(tasks, int) and tasks < 1:
        raise ValueError(f"tasks: at least 1 must be sampled, got {tasks}.")
    if time_limit is not None and not 0 < time_limit < math.inf:
        raise ValueError(
            f"time_limit is a number of seconds above 0, or None for no limit; got {time_limit!r}."
        )

    def work() -> Iterator[CheckResult]:
        try:
            subject = Subject(env, tasks=tasks, seed=seed, env_kwargs=env_kwargs)
        except EnvDefinitionError as error:  # wrong tasks: nothing can be played
            if error.field in env_kwargs:  # the caller's mistake, not the environment's
                raise
            return iter(not_run(chosen, str(error), "the environment cannot be made"))
        known: dict[str, str] = {}
        return (run_check(name, CHECKS[name], subject, known) for name in chosen)

    return work() if time_limit is None else run_isolated(work, chosen, time_limit)
