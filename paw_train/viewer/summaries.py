"""Summaries of episodes and turns, for lists and filters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paw_gym.transition import Episode
from paw_train.metrics import number
from paw_train.viewer.folders import EpisodeFile

_EXCERPT = 160
"""characters of an observation in a list"""


@dataclass(slots=True)
class TurnSummary:
    """One transition in a list."""

    step: int
    action: str
    observation: str
    reward: float
    valid: bool
    words: str
    """lower case: what a search looks through"""
    entropy: float | None = None
    """of the action, Eq. 4"""
    advantage: float | None = None
    selected: bool | None = None
    """by the world model"""
    surprise: float | None = None
    """mean -log p of the next observation's tokens, nats"""


@dataclass(slots=True)
class EpisodeSummary:
    """One episode in a list."""

    group: str
    """equal for the episodes of a rollout group, or of an evaluation's task"""
    env_id: str
    task_id: str
    task_type: str
    episode_id: str
    instruction: str
    outcome: str
    """``solved``, ``failed``, ``unfinished`` or ``error``"""
    total_reward: float
    invalid: int
    """turns with an invalid action"""
    turns: list[TurnSummary]
    lam: float | None = None
    """lambda of the group, Eq. 10"""

    def largest_entropy(self) -> float | None:
        return max((t.entropy for t in self.turns if t.entropy is not None), default=None)

    def mean(self, name: str) -> float | None:
        """Of ``advantage`` or ``surprise`` over the turns that have it."""
        values = [v for t in self.turns if (v := getattr(t, name)) is not None]
        return sum(values) / len(values) if values else None

    def selected(self) -> int | None:
        """Turns that the world model selected."""
        flags = [t.selected for t in self.turns if t.selected is not None]
        return sum(flags) if flags else None


def summarise(
    episode: Episode, file: EpisodeFile, tokens: Mapping[str, Any] | None
) -> EpisodeSummary:
    """The summary of an episode and of what was recorded of its tokens, if anything."""
    steps = _steps(tokens)
    turns = []
    for t in episode.transitions:
        seen = str(t.next_observation)
        turn = TurnSummary(
            int(t.step),
            str(t.action),
            " ".join(seen[: 2 * _EXCERPT].split())[:_EXCERPT],
            float(t.reward),
            bool(t.action_is_valid),
            f"{t.response}\n{t.action}\n{seen}".lower(),
        )
        turns.append(_with_tokens(turn, steps.get(turn.step)))
    training = file.phase == "training"
    return EpisodeSummary(
        f"{file.key}:{int(episode.group)}" if training else f"eval:{episode.task_id}",
        str(episode.env_id),
        str(episode.task_id),
        str(episode.task_type),
        str(episode.episode_id),
        str(episode.instruction),
        outcome(episode),
        float(episode.total_reward),
        sum(not t.valid for t in turns),
        turns,
        number((tokens or {}).get("lambda")),
    )


def outcome(episode: Episode) -> str:
    """The outcome of an episode: ``solved``, ``failed``, ``unfinished`` or ``error``."""
    if episode.error is not None:
        return "error"
    if episode.success:
        return "solved"
    return "failed" if episode.finished else "unfinished"


def mean_advantage(value: Any) -> float | None:
    """A turn's advantage; of one by action token the mean."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        numbers = [v for v in map(number, value) if v is not None]
        return sum(numbers) / len(numbers) if numbers else None
    return number(value)


def _steps(tokens: Mapping[str, Any] | None) -> dict[int, Mapping[str, Any]]:
    listed = (tokens or {}).get("steps")
    if not isinstance(listed, list):
        return {}
    return {step["step"]: step for step in listed if isinstance(step, dict) and "step" in step}


def _with_tokens(turn: TurnSummary, step: Mapping[str, Any] | None) -> TurnSummary:
    if step is None:
        return turn
    turn.entropy = number(step.get("entropy"))
    turn.advantage = mean_advantage(step.get("advantage"))
    turn.selected = bool(step.get("selected"))
    logprobs = list(_logprobs(step.get("observation")))
    turn.surprise = -math.fsum(logprobs) / len(logprobs) if logprobs else None
    return turn


def _logprobs(part: Any) -> Iterator[float]:
    values = part.get("logprobs") if isinstance(part, dict) else None
    for value in values if isinstance(values, list) else ():
        found = number(value)
        if found is not None:
            yield found
