"""The interface of an agent: it attempts tasks, and returns the episode that counts for each.

A new agent is one file in this folder (or in another package: see ``registry``) with a subclass of
``Agent``. Agents that answer turn by turn subclass ``turns.TurnAgent``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from paw_gym.pool import EnvPool
from paw_gym.prompts import PromptTemplate
from paw_gym.transition import Episode
from paw_train.rollouts.policy import Policy
from paw_train.settings.base import Group
from paw_train.settings.rollout import RolloutSettings

if TYPE_CHECKING:
    from paw_train.baselines.examples import ExampleSource

Done = Callable[[Episode], None]
"""takes the episode that counts for its task, as soon as it is over"""


class NoSettings(Group):
    """Of an agent that has none."""


class Agent(ABC):
    """Attempts tasks.

    Args:
        policy: answers; ``None`` for agents that need no model.
        rollout: sampling, and the limits of contexts and responses.
        settings: the agent's own; ``None``: as they are by default.

    Raises:
        ValueError: the agent needs a model and got none, or settings that do not fit together.
    """

    name: ClassVar[str]
    """what ``--agent`` calls it"""
    Settings: ClassVar[type[Group]] = NoSettings
    """a ``settings.base.Group``, documented at its fields"""
    needs_policy: ClassVar[bool] = True
    """whether a model answers"""
    own_form: ClassVar[bool] = False
    """whether its model writes actions in a form of the agent's own, which tool calls cannot replace"""
    samples: ClassVar[bool] = True
    """whether its model writes responses, so that temperature and the longest response matter"""
    privileged: ClassVar[str] = ""
    """privileged information that it uses, which results report: ``success`` (of a trial), ``score`` (of
    an attempt), ``rules`` (it was written for the environment)"""

    def __init__(
        self, policy: Policy | None, rollout: RolloutSettings | None = None, settings: Any = None
    ) -> None:
        if policy is None and self.needs_policy:
            raise ValueError(f"The agent {self.name!r} needs a model to answer.")
        self._policy = policy
        self.rollout = rollout or RolloutSettings()
        self.settings: Any = self.Settings() if settings is None else settings
        self.check()

    @property
    def policy(self) -> Policy:
        """What answers."""
        assert self._policy is not None  # checked at construction
        return self._policy

    @property
    def group_size(self) -> int:
        """Episodes of a task that the pool must hold at a time."""
        return 1

    def check(self) -> None:
        """Raises ``ValueError`` for settings that make no sense."""
        return

    def interface(self, template: PromptTemplate) -> dict[str, Any]:
        """The settings of ``make_agent_env`` that it needs and that differ from the user's.

        Args:
            template: the prompt that the user (or the environment) has chosen.
        """
        return {}

    def prepare(self, source: ExampleSource) -> None:
        """Called once before the first episode; ``source`` has solved examples of other tasks."""
        return

    def prompts(self) -> list[str]:
        """The agent's own texts in its prompts, for the hash of the prompts."""
        return []

    @abstractmethod
    def run(self, pool: EnvPool, task_ids: Sequence[str], seed: int, done: Done) -> None:
        """Attempts each task.

        An episode depends on its task and the seed alone, not on which others run with it. An episode
        that fails (an error of the environment, no answer from the endpoint) keeps its ``error`` and
        counts as well.

        Args:
            pool: the environments, ``group_size`` for a task, made with ``interface``.
            task_ids: the tasks, all different.
            seed: of everything that is random.
            done: called once for each task, in any order.
        """
