"""Episodes as a certificate holds them: the actions, and what is claimed that each of them led to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from paw_gym.transition import Episode, Transition


@dataclass(frozen=True, slots=True)
class CertifiedStep:
    """One action and its consequences. A claim that is ``None`` was not made, and is not compared."""

    action: str
    """what the environment was given"""
    observation: str
    """o_{t+1} as the environment printed it"""
    reward: float
    """what was reported, such as the agent's reward with its penalty"""
    env_reward: float | None = None
    """the environment's own reward"""
    valid: bool | None = None
    """whether the response counted as valid"""
    malformed: bool = False
    """whether the response was invalid for its form, which the action does not show"""
    success: bool | None = None
    score: float | None = None
    terminated: bool | None = None
    """whether the rules ended the episode; its step budget, and an agent that stops, are no claims"""


@dataclass(frozen=True, slots=True)
class CertifiedEpisode:
    """One episode, with all that is needed to run it again."""

    task_id: str
    seed: int
    """of the environment's ``reset``"""
    observation: str | None
    """the first one; ``None``: not recorded (an episode without a step)"""
    steps: tuple[CertifiedStep, ...]
    run: int = 0
    """which of several runs over the panel it belongs to, by the seed of that run"""
    task_type: str | None = None
    start: str | None = None
    """hash of the task and of the environment's generator after ``reset``: it depends on the seed even
    where the observations do not"""

    @property
    def name(self) -> str:
        """How messages name it."""
        return f"{self.task_id!r} (run {self.run}, seed {self.seed})"

    @property
    def complete(self) -> bool:
        """Whether it makes every claim that a replay can compare."""
        steps = all(None not in (s.success, s.score, s.terminated) for s in self.steps)
        return steps and None not in (self.observation, self.start, self.task_type)

    @property
    def digest(self) -> str:
        """SHA-256 of the record."""
        text = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values; claims that were not made are left out."""
        values = {k: v for k, v in asdict(self).items() if k != "steps" and v is not None}
        defaults = {f.name: f.default for f in fields(CertifiedStep)}
        steps = [{k: v for k, v in asdict(step).items() if v != defaults[k]} for step in self.steps]
        return {**values, "steps": steps}

    @classmethod
    def from_dict(cls, data: Any, where: str) -> CertifiedEpisode:
        """Inverse of ``to_dict``.

        Args:
            data: what was read.
            where: names its place, for messages.

        Raises:
            ValueError: a field is missing, unknown or of another type; names it.
        """
        checked = _checked(data, _EPISODE, where)
        if not isinstance(checked.get("steps"), list):
            raise ValueError(f"{where}: 'steps' is a list of steps.")
        steps = tuple(
            CertifiedStep(**_with_floats(_checked(step, _STEP, f"{where}, step {number}")))
            for number, step in enumerate(checked["steps"])
        )
        return cls(**{"observation": None, **checked, "steps": steps})

    def as_episode(self, env_id: str) -> Episode:
        """What the summary of a result reads: rewards, success and scores."""
        name = f"{self.task_id}#{self.run}"
        last = len(self.steps) - 1
        transitions = [
            Transition(
                env_id, self.task_id, name, number, "", None, "", step.action, step.reward,
                step.observation, bool(step.terminated), False, step.valid is not False,
                {"success": bool(step.success), "score": step.score or 0.0} if number == last else {},
            )
            for number, step in enumerate(self.steps)
        ]  # fmt: skip
        return Episode(env_id, self.task_id, name, self.task_type or "", transitions=transitions)


def recorded(episode: Episode, seed: int, run: int) -> CertifiedEpisode:
    """The record of an episode that this program ran.

    Args:
        episode: as in ``episodes.jsonl``.
        seed: of the environment.
        run: seed of the run over the panel.
    """
    steps = tuple(_recorded_step(t) for t in episode.transitions)
    first = episode.transitions[0].observation if episode.transitions else None
    return CertifiedEpisode(episode.task_id, seed, first, steps, run, episode.task_type)


def _recorded_step(t: Transition) -> CertifiedStep:
    return CertifiedStep(
        action=t.action,
        observation=t.next_observation,
        reward=float(t.reward),
        env_reward=float(t.info.get("env_reward", t.reward)),
        valid=t.action_is_valid,
        malformed=bool(t.info.get("malformed", False)),
        success=bool(t.info.get("success", False)),
        score=float(t.info.get("score", 0.0)),
        terminated=t.terminated,
    )


_TEXT, _NUMBER, _WHOLE, _TRUTH = (str,), (int, float), (int,), (bool,)
_EPISODE: Mapping[str, tuple[tuple[type, ...], bool]] = {
    "task_id": (_TEXT, True),
    "seed": (_WHOLE, True),
    "observation": (_TEXT, False),
    "steps": ((list,), True),
    "run": (_WHOLE, False),
    "task_type": (_TEXT, False),
    "start": (_TEXT, False),
}
"""fields of an episode: types, and whether it must be there"""
_STEP: Mapping[str, tuple[tuple[type, ...], bool]] = {
    "action": (_TEXT, True),
    "observation": (_TEXT, True),
    "reward": (_NUMBER, True),
    "env_reward": (_NUMBER, False),
    "valid": (_TRUTH, False),
    "malformed": (_TRUTH, False),
    "success": (_TRUTH, False),
    "score": (_NUMBER, False),
    "terminated": (_TRUTH, False),
}


def _checked(
    data: Any, known: Mapping[str, tuple[tuple[type, ...], bool]], where: str
) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ValueError(f"{where}: expected an object, got {type(data).__name__}.")
    for name, (kinds, needed) in known.items():
        if name not in data:
            if needed:
                raise ValueError(f"{where}: {name!r} is missing.")
        elif not isinstance(data[name], kinds) or (
            isinstance(data[name], bool) and bool not in kinds
        ):
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise ValueError(f"{where}: {name!r} is {data[name]!r:.40}; expected {expected}.")
    if unknown := sorted(set(data) - set(known)):
        raise ValueError(f"{where}: unknown field {unknown[0]!r}; there are {', '.join(known)}.")
    return data


def _with_floats(step: dict[str, Any]) -> dict[str, Any]:
    numbers = {k: float(v) for k, v in step.items() if k in ("reward", "env_reward", "score")}
    return {**step, **numbers}
