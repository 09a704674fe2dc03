"""Results of the contract suite."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


class ContractViolation(AssertionError):
    """An environment breaks the contract; the message says how, and what was expected."""


class CheckSkipped(Exception):
    """A check cannot be made here (a package is missing); the message says why."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What came of one check."""

    name: str
    status: Literal["passed", "failed", "skipped"]
    detail: str
    """what was looked at, why it failed, or why it was skipped"""
    traceback: str = ""
    """where it failed"""


@dataclass(frozen=True, slots=True)
class ContractReport:
    """What came of all checks."""

    env: str
    results: list[CheckResult]

    @property
    def failures(self) -> list[CheckResult]:
        """The checks that failed."""
        return [result for result in self.results if result.status == "failed"]

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    def __getitem__(self, name: str) -> CheckResult:
        return next(result for result in self.results if result.name == name)

    def raise_for_failures(self) -> None:
        """Raises ``ContractViolation`` with every failure in it, if there is any."""
        if self.failures:
            lines = [f"{self.env} breaks {len(self.failures)} of {len(self.results)} checks:"]
            lines += [f"- {result.name}: {result.detail}" for result in self.failures]
            raise ContractViolation("\n".join([*lines, "", self.failures[0].traceback]))


def run_check(name: str, check: Callable[[], str]) -> CheckResult:
    """Runs one check; whatever it raises becomes its result."""
    try:
        return CheckResult(name, "passed", check())
    except CheckSkipped as reason:
        return CheckResult(name, "skipped", str(reason))
    except ContractViolation as violation:
        return CheckResult(name, "failed", str(violation), traceback.format_exc())
    except Exception as error:  # an environment may raise anything: that is the finding
        detail = f"{type(error).__name__}: {error}"
        return CheckResult(name, "failed", detail, traceback.format_exc())


def require(condition: object, message: str) -> None:
    """Raises ``ContractViolation(message)`` unless ``condition`` holds."""
    if not condition:
        raise ContractViolation(message)
