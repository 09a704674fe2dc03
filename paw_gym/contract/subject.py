"""The environment under test, scripted episodes to put it through, and the results of checks."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

from paw_gym.core import TextEnv
from paw_gym.internals.validation import EnvDefinitionError, with_place
from paw_gym.registration import make_text_env
from paw_gym.wrappers import AgentInterface


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


def not_run(names: Sequence[str], detail: str, reason: str, stack: str = "") -> list[CheckResult]:
    """The results of checks of which the first one failed in a way that none after it could be made."""
    first = CheckResult(names[0], "failed", detail, stack)
    return [first, *(CheckResult(name, "skipped", f"not run: {reason}") for name in names[1:])]


def run_check(
    name: str, check: Callable[[Any], str], subject: Any, known: dict[str, str]
) -> CheckResult:
    """Runs one check; whatever it raises becomes its result.

    Args:
        known: for each finding, the check that reported it; new ones are added. A finding is a wrong
            field of the environment's own definition, or an exception and its line in the environment's
            code. Another check that stumbles over the same finding is skipped, not failed.
    """
    try:
        return CheckResult(name, "passed", check(subject))
    except CheckSkipped as reason:
        return CheckResult(name, "skipped", str(reason))
    except Exception as error:  # an environment may raise anything: that is the finding
        finding, detail = _finding(error)
        if finding and known.setdefault(finding, name) != name:
            return CheckResult(name, "skipped", f"stopped by what {known[finding]} reports")
        return CheckResult(name, "failed", detail, traceback.format_exc())


def _finding(error: BaseException) -> tuple[str, str]:
    """(a name of what was found, ``""`` for a check's own finding; its description)."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    # a cause that was never raised itself, such as a worker's traceback as text, has no line
    while cause is not None and cause.__traceback__ is not None:
        if isinstance(cause, EnvDefinitionError):
            return cause.field, str(cause)
        chain.append(cause)
        cause = cause.__cause__
    detail = str(error) if isinstance(error, ContractViolation) else with_place(error)
    if isinstance(chain[-1], ContractViolation):
        return "", detail
    frame = traceback.extract_tb(chain[-1].__traceback__)[-1]
    return f"{chain[-1]!r}, {frame.filename}, {frame.lineno}", detail


def require(condition: object, message: str) -> None:
    """Raises ``ContractViolation(message)`` unless ``condition`` holds."""
    if not condition:
        raise ContractViolation(message)


WALK_STEPS = 12
"""length of a random walk: enough to change things, cheap in a slow engine"""

_SMALL_SET = 20
"""tasks of a set that the solver is tried on as a whole"""

JUNK = (
    "",
    " \n\t",
    "xyzzy is not an action",
    "x" * 100_000,
    "é 你好 🙂 \u200b \u202e \x00",
    "<|im_end|>\n<|im_start|>assistant",
    "<think></think><action>look</action>",
    "{instruction} %s \\ [SEP]",
)
"""strings that no environment may stumble over"""


_ABSENT = "(absent)"


class Moment(NamedTuple):
    """The values that ``reset`` or ``step`` returned."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]

    @property
    def over(self) -> bool:
        return self.terminated or self.truncated


@dataclass(frozen=True, slots=True)
class Script:
    """An episode to replay."""

    seed: int
    task_id: str
    actions: tuple[str, ...]


class Subject:
    """Makes the environment under test, bare or behind an ``AgentInterface``: see ``check_text_env``."""

    def __init__(
        self,
        env: str | Callable[..., Any],
        tasks: int | Sequence[str],
        seed: int,
        env_kwargs: Mapping[str, Any],
    ) -> None:
        self.env = env
        self.env_kwargs = dict(env_kwargs)
        self.seed = seed
        made = self.make()
        self.has_own_expert = type(made).expert is not TextEnv.expert
        task_set = made.tasks
        if isinstance(tasks, int):
            rng = random.Random(seed)
            picked = rng.sample(range(len(task_set)), min(tasks, len(task_set)))
            self.task_ids = [str(task_set.ids[i]) for i in picked]
        else:
            self.task_ids = [str(task_set[task_id].id) for task_id in tasks]
        small = isinstance(tasks, int) and len(task_set) <= _SMALL_SET
        self.solver_task_ids = list(task_set.ids) if small else self.task_ids

    def make_wrapped(self) -> Any:
        """A fresh environment as ``gymnasium.make`` (or the function) gives it."""
        make = partial(make_text_env, self.env) if isinstance(self.env, str) else self.env
        made = make(**self.env_kwargs)
        if not isinstance(made.unwrapped, TextEnv):
            raise ValueError(
                f"{self.env} makes a {type(made.unwrapped).__name__}; "
                "the contract is for subclasses of paw_gym.TextEnv."
            )
        return made

    def make(self) -> TextEnv:
        """A fresh environment without wrappers."""
        return self.make_wrapped().unwrapped  # type: ignore[no-any-return]

    def agent(self, mode: str = "window") -> AgentInterface:
        """A fresh environment behind an ``AgentInterface``."""
        return AgentInterface(self.make_wrapped(), mode=mode)

    @cached_property
    def scripts(self) -> list[Script]:
        """For each task a random walk (some junk in it), and its solution where there is one."""
        found = []
        for number, task_id in enumerate(self.task_ids):
            seed = self.seed + number
            found.append(Script(seed, task_id, tuple(self.walk(seed, task_id))))
            solution = self._solution(seed, task_id)
            if solution:
                found.append(Script(seed, task_id, tuple(solution)))
        return found

    def walk(self, seed: int, task_id: str) -> list[str]:
        env, rng = self.make(), random.Random(seed)
        moment = start(env, seed, task_id)
        actions: list[str] = []
        while len(actions) < WALK_STEPS and not moment.over:
            actions.append(choose(rng, env.list_actions()))
            moment = Moment(*env.step(actions[-1]))
        return actions

    def _solution(self, seed: int, task_id: str) -> list[str]:
        env = self.make()
        start(env, seed, task_id)
        try:
            return list(env.reference_solution())
        except NotImplementedError:
            return []


def choose(rng: random.Random, admissible: Sequence[str] | None) -> str:
    """A random action: mostly an admissible one if they are listed, now and then junk."""
    if not admissible or rng.random() < 0.15:
        return rng.choice(JUNK)
    return rng.choice(list(admissible))


def start(env: Any, seed: int, task_id: str | None = None) -> Moment:
    """``reset`` as a moment."""
    options = None if task_id is None else {"task_id": task_id}
    observation, info = env.reset(seed=seed, options=options)
    return Moment(observation, 0.0, False, False, info)


def continue_with(env: Any, actions: Sequence[str]) -> list[Moment]:
    """Steps through the actions, at most to the end of the episode."""
    moments: list[Moment] = []
    for action in actions:
        moments.append(Moment(*env.step(action)))
        if moments[-1].over:
            break
    return moments


def replay(env: Any, script: Script) -> list[Moment]:
    """Plays a script from its reset on."""
    first = start(env, script.seed, script.task_id)
    return [first, *continue_with(env, script.actions)]


def require_same(left: Sequence[Moment], right: Sequence[Moment], where: str) -> None:
    """Raises ``ContractViolation`` that names the first difference between two traces."""
    for number, moments in enumerate(zip(left, right, strict=False)):
        a, b = (
            moment._asdict() | {f"info[{key!r}]": value for key, value in moment.info.items()}
            for moment in moments
        )
        for name in a | b:
            one, other = a.get(name, _ABSENT), b.get(name, _ABSENT)
            require(
                one == other or name == "info",
                f"{where}: {name} differs at moment {number}: {one!r:.120} and {other!r:.120}.",
            )
    require(
        len(left) == len(right), f"{where}: one took {len(left)} moments, the other {len(right)}."
    )
