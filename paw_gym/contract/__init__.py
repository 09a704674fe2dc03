"""What every text environment must pass: used by ``paw check`` and by the tests of an environment.

In a test::

    def test_contract():
        check_text_env("me/Maze-v0").raise_for_failures()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from paw_gym.contract import episodes, gymnasium_api, state, tasks_and_solver
from paw_gym.contract.report import CheckResult, ContractReport, ContractViolation, run_check
from paw_gym.contract.subject import Subject
from paw_gym.naming import did_you_mean

__all__ = [
    "CHECKS",
    "CheckResult",
    "ContractReport",
    "ContractViolation",
    "Subject",
    "check_text_env",
    "iter_checks",
]

CHECKS: dict[str, Callable[[Subject], str]] = {
    check.__name__: check
    for check in (
        *tasks_and_solver.CHECKS,
        *gymnasium_api.CHECKS,
        *state.CHECKS,
        *episodes.CHECKS,
    )
}
"""by name; each returns a line on what it looked at, or raises ``ContractViolation``"""


def check_text_env(
    env: str | Callable[..., Any],
    *,
    tasks: int | Sequence[str] = 3,
    seed: int = 0,
    only: Sequence[str] | None = None,
    **env_kwargs: Any,
) -> ContractReport:
    """Runs the suite and returns a named result for each check; raises for nothing the environment does.

    Args:
        env: a registered id, or what makes the environment when called with ``env_kwargs``.
        tasks: how many tasks to sample, or the ids to use.
        seed: seeds the sample and all play.
        only: names of the checks to run (``CHECKS``); ``None``: all of them.
        env_kwargs: arguments of the environment.

    Raises:
        ValueError: an unknown environment id or check name; names the nearest.
        KeyError: an unknown task id in ``tasks``.
    """
    results = list(iter_checks(env, tasks=tasks, seed=seed, only=only, **env_kwargs))
    return ContractReport(env if isinstance(env, str) else _name(env), results)


def iter_checks(
    env: str | Callable[..., Any],
    *,
    tasks: int | Sequence[str] = 3,
    seed: int = 0,
    only: Sequence[str] | None = None,
    **env_kwargs: Any,
) -> Iterator[CheckResult]:
    """``check_text_env`` one result at a time, for those who show progress. Bad arguments raise at once."""
    chosen = list(CHECKS if only is None else only)
    for name in chosen:
        if name not in CHECKS:
            raise ValueError(f"There is no check {name!r}. {did_you_mean(name, CHECKS)}")
    subject = Subject(env, tasks=tasks, seed=seed, env_kwargs=env_kwargs)
    return (run_check(name, lambda check=CHECKS[name]: check(subject)) for name in chosen)  # type: ignore[misc]


def _name(factory: Callable[..., Any]) -> str:
    return getattr(factory, "__name__", type(factory).__name__)
