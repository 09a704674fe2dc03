"""Summaries of episodes and turns, for lists and filters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paw_gym.transition import Episode
from paw_train.metrics import number
from paw_train.viewer.folders import EpisodeFile, Place

_EXCERPT = 160
"""characters of an observation in a list"""


@dataclass(eq=False, slots=True)
class TurnSummary:
    """One transition in a list."""

    episode: EpisodeSummary
    step: int
    action: str
    observation: str
    reward: float
    valid: bool
    words: str
    """the text that a search looks through, in lower case"""
    entropy: float | None = None
    """of the action, Eq. 4"""
    advantage: float | None = None
    selected: bool | None = None
    """by the world model"""
    surprise: float | None = None
    """mean -log p of the next observation's tokens, nats"""

    def to_dict(self) -> dict[str, Any]:
        own = ("step", "action", "observation", "reward", "valid", *_MEASURED)
        return _row(self, own) | _episode_row(self.episode, ("task_type", "outcome"))


@dataclass(eq=False, slots=True)
class EpisodeSummary:
    """One episode in a list."""

    key: str
    """``file.number``: its name in addresses"""
    file: EpisodeFile
    record: Place
    tokens: Place | None
    """the place of what was recorded about its tokens"""
    group: str
    """the same for the episodes of a rollout group, or of an evaluation's task"""
    env_id: str
    task_id: str
    task_type: str
    episode_id: str
    instruction: str
    outcome: str
    """``solved``, ``failed``, ``unfinished`` or ``error``"""
    total_reward: float | None
    lam: float | None
    """lambda of the group, Eq. 10"""
    turns: list[TurnSummary] = field(default_factory=list)

    @property
    def place(self) -> int:
        return self.file.place

    @property
    def steps(self) -> int:
        return len(self.turns)

    @property
    def words(self) -> str:
        return f"{self.instruction}\n{self.task_id}".lower()

    @property
    def invalid(self) -> int:
        """Turns with an invalid action."""
        return sum(not t.valid for t in self.turns)

    @property
    def entropy(self) -> float | None:
        """The largest entropy of its turns."""
        return max((t.entropy for t in self.turns if t.entropy is not None), default=None)

    @property
    def advantage(self) -> float | None:
        return mean(t.advantage for t in self.turns)

    @property
    def surprise(self) -> float | None:
        return mean(t.surprise for t in self.turns)

    @property
    def selected(self) -> int | None:
        """Turns that the world model selected."""
        flags = [t.selected for t in self.turns if t.selected is not None]
        return sum(flags) if flags else None

    def to_dict(self) -> dict[str, Any]:
        own = (*_TASK, "outcome", "steps", "invalid", *_MEASURED, "lam")
        return _episode_row(self, own) | {"grp": self.group, "ret": self.total_reward}


@dataclass(eq=False, slots=True)
class Group:
    """The episodes of a group in a list, named by the first of them."""

    members: list[EpisodeSummary]

    @property
    def place(self) -> int:
        return self.members[0].place

    @property
    def total_reward(self) -> float | None:
        return mean(e.total_reward for e in self.members)

    @property
    def steps(self) -> float | None:
        return mean(e.steps for e in self.members)

    @property
    def entropy(self) -> float | None:
        return max((e.entropy for e in self.members if e.entropy is not None), default=None)

    @property
    def advantage(self) -> float | None:
        return mean(e.advantage for e in self.members)

    @property
    def surprise(self) -> float | None:
        return mean(e.surprise for e in self.members)

    def to_dict(self) -> dict[str, Any]:
        first = self.members[0]
        return _episode_row(first, _TASK) | {
            "grp": first.group,
            "lam": max((e.lam for e in self.members if e.lam is not None), default=None),
            "n": len(self.members),
            "mean_return": self.total_reward,
            "outcomes": ",".join(e.outcome for e in self.members),
            "steps": self.steps,
        }


_TASK = ("task_id", "task_type", "instruction")
_MEASURED = ("entropy", "advantage", "surprise", "selected")


def _row(of: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(of, name) for name in names}


def _episode_row(of: EpisodeSummary, names: Sequence[str]) -> dict[str, Any]:
    return _row(of, ("key", *names)) | _row(of.file, ("phase", "update"))


def mean(values: Iterable[Any]) -> float | None:
    """The mean of the finite numbers among some values; ``None`` if there are none."""
    known = [v for v in map(number, values) if v is not None]
    return math.fsum(known) / len(known) if known else None


def summarise(
    episode: Episode,
    key: str,
    file: EpisodeFile,
    record: Place,
    where: Place | None,
    tokens: Mapping[str, Any] | None,
) -> EpisodeSummary:
    """The summary of an episode and of what was recorded about its tokens, if anything."""
    group = f"{file.key}:{episode.group}" if file.phase == "training" else f"eval:{episode.task_id}"
    summary = EpisodeSummary(
        key,
        file,
        record,
        where,
        f"{group}:{episode.env_id}",
        str(episode.env_id),
        str(episode.task_id),
        str(episode.task_type),
        str(episode.episode_id),
        str(episode.instruction),
        outcome(episode),
        number(float(episode.total_reward)),
        number((tokens or {}).get("lambda")),
    )
    steps = _steps(tokens)
    for t in episode.transitions:
        seen = str(t.next_observation)
        turn = TurnSummary(
            summary,
            int(t.step),
            str(t.action),
            " ".join(seen[: 2 * _EXCERPT].split())[:_EXCERPT],
            float(t.reward),
            bool(t.action_is_valid),
            f"{t.response}\n{t.action}\n{seen}".lower(),
        )
        _add_tokens(turn, steps.get(turn.step))
        summary.turns.append(turn)
    return summary


def outcome(episode: Episode) -> str:
    """The outcome of an episode: ``solved``, ``failed``, ``unfinished`` or ``error``."""
    if episode.error is not None:
        return "error"
    if episode.success:
        return "solved"
    return "failed" if episode.finished else "unfinished"


def _steps(tokens: Mapping[str, Any] | None) -> dict[int, Mapping[str, Any]]:
    listed = (tokens or {}).get("steps")
    if not isinstance(listed, list):
        return {}
    return {step["step"]: step for step in listed if isinstance(step, dict) and "step" in step}


def _add_tokens(turn: TurnSummary, step: Mapping[str, Any] | None) -> None:
    if step is None:
        return
    value, part = step.get("advantage"), step.get("observation")
    turn.entropy = number(step.get("entropy"))
    turn.advantage = mean(value if isinstance(value, list) else [value])  # or one per action token
    turn.selected = bool(step.get("selected"))
    logprobs = part.get("logprobs") if isinstance(part, dict) else None
    likelihood = mean(logprobs if isinstance(logprobs, list) else ())
    turn.surprise = None if likelihood is None else -likelihood
