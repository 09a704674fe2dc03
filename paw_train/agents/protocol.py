"""The interface of an agent: it attempts tasks, and returns the episode that counts for each.

A new agent is one file in this folder, or in another package, with a subclass of ``Agent``. Agents that
answer turn by turn subclass ``TurnAgent``: they see all running episodes at once, and answer each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from paw_gym.internals.registry import Registry
from paw_gym.pool import EnvPool, Slot
from paw_gym.prompts import PromptTemplate
from paw_gym.transition import Episode
from paw_gym.wrappers import AgentInterface
from paw_train.rollouts.policy import Policy
from paw_train.settings.base import Group
from paw_train.settings.rollout import RolloutSettings

if TYPE_CHECKING:
    from paw_train.agents.examples import ExampleSource

Done = Callable[[Episode], None]
"""takes the episode that counts for its task, as soon as it is over"""


class Agent(ABC):
    """Attempts tasks.

    Args:
        policy: answers; ``None`` for agents that need no model.
        rollout: sampling, and the limits of contexts and responses.
        settings: the agent's own; ``None``: as they are by default.
    """

    name: ClassVar[str]
    """what ``--agent`` calls it"""
    Settings: ClassVar[type[Group]] = Group
    """a ``settings.base.Group``, documented at its fields"""
    needs_policy: ClassVar[bool] = True
    """whether a model answers"""
    own_form: ClassVar[bool] = False
    """whether its model writes actions in a form of the agent's own, which tool calls cannot replace"""
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
        """The settings of ``make_agent_env`` that it needs and that differ from the user's."""
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
            seed: of everything that is random.
            done: called once for each task, in any order.
        """


# --- turn by turn ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Turn:
    """A past step."""

    observation: str
    """as a prompt shows it"""
    action: str
    response: str
    """the agent's own, raw"""


@dataclass(frozen=True, slots=True)
class View:
    """The agent's view of one running episode."""

    episode: str
    """names the episode; the same one turn after turn"""
    task_id: str
    task_type: str
    instruction: str
    observation: str
    """the current one, as a prompt shows it"""
    admissible: tuple[str, ...] | None
    """what would be accepted now; ``None`` where it cannot be listed"""
    prompt: str
    """the rendered prompt; in conversation mode the newest message"""
    history: tuple[Turn, ...]
    env: AgentInterface = field(repr=False)
    """the environment itself: for experts, which may look behind the text"""

    @property
    def template(self) -> PromptTemplate:
        """The prompt's template, which also reads responses."""
        return self.env.template

    def accepts(self, action: str) -> bool:
        """True if the environment would accept an action, judged by the listed ones."""
        return bool(action) and self.env.text_env.is_admissible(action)


@dataclass(slots=True)
class Answer:
    """An agent's answer in one episode."""

    text: str = ""
    """the response that the environment reads"""
    notes: dict[str, Any] = field(default_factory=dict)
    """JSON values for the transition's ``info["agent"]``"""
    error: str | None = None
    """why there is no answer; the episode then fails, the others go on"""
    stops: bool = False
    """the agent gives up: the episode is truncated after its last action, if there is one"""


Responder = Callable[[Sequence[View]], list[Answer]]
"""answers every running episode once; called again each turn with those that still run"""


class TurnAgent(Agent):
    """An agent that makes a ``Responder`` for each batch of tasks."""

    def run(self, pool: EnvPool, task_ids: Sequence[str], seed: int, done: Done) -> None:
        run_turns(pool, task_ids, self.responder(seed), done)

    @abstractmethod
    def responder(self, seed: int) -> Responder:
        """A responder for a batch of episodes, from the first to the last turn."""


def run_turns(pool: EnvPool, task_ids: Sequence[str], responder: Responder, done: Done) -> None:
    """Runs an episode of each task to its end, all together."""
    pool.reset(task_ids)
    for episode in pool.episodes:
        if episode.error is not None:
            done(episode)
    while pool.active:
        slots = list(pool.active)
        answers = responder([_view(pool, slot) for slot in slots])
        _take(pool, slots, answers)
        running = {slot.index for slot in pool.active}
        for slot in slots:
            if slot.index not in running:
                done(slot.episode)


def _take(pool: EnvPool, slots: Sequence[Slot], answers: Sequence[Answer]) -> None:
    """Steps the episodes whose answers are actions; the others end."""
    acting = []
    for slot, answer in zip(slots, answers, strict=True):
        if answer.error is not None:
            pool.fail(slot, answer.error)
        elif answer.stops:
            if slot.episode.transitions:
                pool.truncate(slot)
            note(slot.episode, **answer.notes)
        else:
            acting.append((slot, answer))
    pool.active = [slot for slot, _ in acting]
    pool.step([answer.text for _, answer in acting])
    for slot, answer in acting:
        if answer.notes and slot.episode.error is None:
            note(slot.episode, **answer.notes)


def _view(pool: EnvPool, slot: Slot) -> View:
    env, info = pool.env_of(slot), slot.info
    shown = env.text_env.prompt_observation
    past = slot.episode.transitions
    return View(
        episode=slot.episode.episode_id,
        task_id=slot.episode.task_id,
        task_type=slot.episode.task_type,
        instruction=info["instruction"],
        observation=shown(env.observation),
        admissible=None if info["admissible_actions"] is None else (*info["admissible_actions"],),
        prompt=slot.prompt,
        history=tuple(Turn(shown(t.observation or ""), t.action, t.response) for t in past),
        env=env,
    )


def note(episode: Episode, **values: Any) -> None:
    """Adds values to ``info["agent"]`` of an episode's last step."""
    if values and episode.transitions:
        last = episode.transitions[-1]
        noted = {**last.info.get("agent", {}), **values}
        episode.transitions[-1] = replace(last, info={**last.info, "agent": noted})


AGENTS: Registry[type[Agent]] = Registry("agent", "paw_train.agents")
"""the agents by name; add yours with ``AGENTS.register``"""
