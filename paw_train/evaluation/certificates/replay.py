"""Recorded actions in the environment again: the first thing in which an episode differs from its record."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from paw_gym.wrappers import AgentInterface
from paw_train.evaluation.certificates.episodes import CertifiedEpisode, CertifiedStep

_TOLERANCE = 1e-9
"""of rewards and scores: other machines may round the last bits differently"""
_SHOWN = 60
"""characters of a text that a message shows, around the first that differs"""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a record and the environment part."""

    episode: str
    step: int | None
    """0-based; ``None``: at the episode's start or end"""
    field: str
    claimed: Any
    found: Any

    def __str__(self) -> str:
        place = "" if self.step is None else f", step {self.step}"
        claimed, found = _excerpts(self.claimed, self.found)
        return (
            f"Episode {self.episode}{place}: {self.field} differs: claimed {claimed}, "
            f"the environment gives {found}."
        )


class _Differs(Exception):
    def __init__(self, step: int | None, field: str, claimed: Any, found: Any) -> None:
        super().__init__(field)
        self.difference = (step, field, claimed, found)


def replay(
    agent: AgentInterface, episode: CertifiedEpisode
) -> tuple[CertifiedEpisode, Difference | None]:
    """Runs the actions of an episode.

    Args:
        agent: the environment, as the episode had it.
        episode: the record.

    Returns:
        (the record with the claims that it lacked, the first difference, if there is one)
    """
    try:
        return _replayed(agent, episode), None
    except _Differs as found:
        return episode, Difference(episode.name, *found.difference)


def _replayed(agent: AgentInterface, episode: CertifiedEpisode) -> CertifiedEpisode:
    try:
        agent.tasks[episode.task_id]
    except KeyError:
        raise _Differs(None, "the task", episode.task_id, "no such task") from None
    _, info = agent.reset(seed=episode.seed, options={"task_id": episode.task_id})
    _compare(None, "the first observation", episode.observation, agent.observation)
    _compare(None, "the task's type", episode.task_type, info["task_type"])
    start = str(info["episode_id"]).rpartition("#")[2]
    _compare(None, "the generator's state after reset (the seed)", episode.start, start)
    steps: list[CertifiedStep] = []
    over = False
    for number, step in enumerate(episode.steps):
        if over:
            raise _Differs(number, "the end", f"{len(episode.steps)} steps", f"{number} steps")
        found, over = _step(agent, number, step)
        steps.append(found)
    return replace(
        episode,
        observation=agent.observation if episode.observation is None else episode.observation,
        task_type=info["task_type"],
        start=start,
        steps=tuple(steps),
    )


def _step(agent: AgentInterface, number: int, claimed: CertifiedStep) -> tuple[CertifiedStep, bool]:
    """The step as the environment takes it, and whether the episode is over."""
    listed = not agent.require_admissible or agent.text_env.is_admissible(claimed.action)
    observation, env_reward, terminated, truncated, info = agent.text_env.step(claimed.action)
    accepted = bool(info["action_is_valid"]) and listed
    malformed = claimed.malformed
    valid = not malformed and (accepted or agent.invalid_when == "malformed")
    own = claimed.env_reward is not None
    found = CertifiedStep(
        action=claimed.action,
        observation=observation,
        reward=agent.reward_of(env_reward, info["success"], valid) if own else env_reward,
        env_reward=env_reward,
        valid=valid,
        malformed=malformed,
        success=bool(info["success"]),
        score=float(info["score"]),
        terminated=terminated,
    )
    for field, name in _COMPARED.items():
        _compare(number, name, getattr(claimed, field), getattr(found, field))
    kept = found if own else replace(found, env_reward=None, valid=None)
    return kept, terminated or truncated


_COMPARED = {
    "observation": "the observation",
    "env_reward": "the environment's reward",
    "valid": "whether the action was valid",
    "reward": "the reward",
    "success": "success",
    "score": "the score",
    "terminated": "whether the episode ended by the rules",
}
"""claims of a step, and how messages name them"""


def _compare(step: int | None, field: str, claimed: Any, found: Any) -> None:
    if claimed is None:
        return
    if isinstance(claimed, float) or isinstance(found, float):
        same = math.isclose(claimed, found, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    else:
        same = claimed == found
    if not same:
        raise _Differs(step, field, claimed, found)


def _excerpts(claimed: Any, found: Any) -> tuple[str, str]:
    """Two values for a message: of long texts the part around the first character that differs."""
    if not (isinstance(claimed, str) and isinstance(found, str)):
        return repr(claimed), repr(found)
    pairs = zip(claimed, found, strict=False)
    first = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(claimed), len(found)))
    begin = max(0, first - _SHOWN // 2)
    return _excerpt(claimed, begin), _excerpt(found, begin)


def _excerpt(text: str, begin: int) -> str:
    part = text[begin : begin + _SHOWN]
    return f"{'...' if begin else ''}{part!r}{'...' if len(text) > begin + _SHOWN else ''}"
