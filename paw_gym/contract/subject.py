"""The environment under test: how it is made, and scripted episodes to put it through."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from paw_gym.contract.report import ContractViolation, require
from paw_gym.core import TextEnv
from paw_gym.wrappers import AgentInterface

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
    """Makes the environment under test, bare or behind an ``AgentInterface``.

    Args:
        env: a registered id, or what makes the environment when called with ``env_kwargs``.
        tasks: how many tasks to sample, or their ids.
        seed: seeds everything.
        env_kwargs: arguments of the environment.
    """

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
        if isinstance(self.env, str):
            from paw_gym.registration import make_text_env

            made = make_text_env(self.env, **self.env_kwargs)
        else:
            made = self.env(**self.env_kwargs)
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


def require_positive(tasks: int) -> None:
    """Raises ``ValueError`` unless there is a task to sample."""
    if tasks < 1:
        raise ValueError(f"tasks: at least 1 must be sampled, got {tasks}.")


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
    for number, (a, b) in enumerate(zip(left, right, strict=False)):
        for name in Moment._fields[:-1]:
            if getattr(a, name) != getattr(b, name):
                raise ContractViolation(
                    f"{where}: {name} differs at moment {number}: "
                    f"{getattr(a, name)!r:.120} and {getattr(b, name)!r:.120}."
                )
        for key in sorted({*a.info, *b.info}):
            if key not in a.info or key not in b.info or a.info[key] != b.info[key]:
                raise ContractViolation(
                    f"{where}: info[{key!r}] differs at moment {number}: "
                    f"{a.info.get(key)!r:.120} and {b.info.get(key)!r:.120}."
                )
    require(
        len(left) == len(right), f"{where}: one took {len(left)} moments, the other {len(right)}."
    )
