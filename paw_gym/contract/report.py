"""Results of the contract suite."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from paw_gym.internals.validation import EnvDefinitionError, with_place


class ContractViolation(AssertionError):
    """An environment breaks the contract; the message states how, and what was expected."""


class CheckSkipped(Exception):
    """A check cannot be made here (a package is missing); the message states why."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check."""

    name: str
    status: Literal["passed", "failed", "skipped"]
    detail: str
    """a line on what was looked at, why it failed, or why it was skipped"""
    traceback: str = ""
    """of the failure"""


@dataclass(frozen=True, slots=True)
class ContractReport:
    """The results of all checks."""

    env: str
    results: list[CheckResult]

    @property
    def failures(self) -> list[CheckResult]:
        return [result for result in self.results if result.status == "failed"]

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def summary(self) -> str:
        """How many checks passed, failed and were skipped."""
        return count_results(self.results)

    def __getitem__(self, name: str) -> CheckResult:
        return next(result for result in self.results if result.name == name)

    def raise_for_failures(self) -> None:
        """Raises ``ContractViolation`` with every failure in it, if there is any."""
        if self.failures:
            lines = [f"{self.env} does not keep the contract: {self.summary}."]
            lines += [f"- {result.name}: {result.detail}" for result in self.failures]
            raise ContractViolation("\n".join([*lines, "", self.failures[0].traceback]))


def count_results(results: list[CheckResult]) -> str:
    """``23 passed, 1 skipped``: how many of each status that occurs."""
    by_status = {s: sum(r.status == s for r in results) for s in ("failed", "passed", "skipped")}
    return ", ".join(f"{count} {status}" for status, count in by_status.items() if count)


def run_check(
    name: str, check: Callable[[Any], str], subject: Any, known: dict[str, str]
) -> CheckResult:
    """Runs one check; whatever it raises becomes its result.

    Args:
        name: of the check.
        check: the check.
        subject: what it is called with.
        known: for each finding, the check that reported it; new ones are added. A finding is a wrong
            field of the environment's own definition, or an exception and its line in the environment's
            code. Another check that stumbles over the same finding is skipped, not failed.
    """
    try:
        return CheckResult(name, "passed", check(subject))
    except CheckSkipped as reason:
        return CheckResult(name, "skipped", str(reason))
    except Exception as error:  # an environment may raise anything: that is the finding
        cause = _definition_error(error)
        finding = cause.field if cause else _raised(error)
        if finding and known.setdefault(finding, name) != name:
            return CheckResult(name, "skipped", f"stopped by what {known[finding]} reports")
        plain = cause or isinstance(error, ContractViolation)
        detail = str(cause or error) if plain else with_place(error)
        return CheckResult(name, "failed", detail, traceback.format_exc())


def _definition_error(error: BaseException | None) -> EnvDefinitionError | None:
    """The error of the environment's definition that an error was raised from, if there is one."""
    while error is not None and not isinstance(error, EnvDefinitionError):
        error = error.__cause__ or error.__context__
    return error


def _raised(error: BaseException) -> str | None:
    """Names an exception by its text and the line that raised it; ``None``: a check's own finding."""
    # a cause that was never raised itself, such as a worker's traceback as text, has no line
    while error.__cause__ is not None and error.__cause__.__traceback__ is not None:
        error = error.__cause__
    if isinstance(error, ContractViolation):
        return None
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__}: {error}, {frames[-1].filename}, {frames[-1].lineno}"


def require(condition: object, message: str) -> None:
    """Raises ``ContractViolation(message)`` unless ``condition`` holds."""
    if not condition:
        raise ContractViolation(message)
