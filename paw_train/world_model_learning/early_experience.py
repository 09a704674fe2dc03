"""Early experience: outcomes of other actions in the states that an expert passed through.

Zhang et al. 2025, "Agent Learning via Early Experience" (arXiv 2510.08558), section 4: at each state s_i of
the expert's episodes K other actions a_i^j are carried out, and the states s_i^j that follow are kept. No
reward is read. The environment goes back to s_i exactly (``AgentInterface.save_state``), so that what an
action does is seen in the very state in which the expert took another one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paw_gym.internals.files import json_text, write_text
from paw_gym.pool import EnvPool, Slot
from paw_gym.transition import Episode, Transition
from paw_gym.wrappers import AgentInterface
from paw_train.rollouts.rollout import demonstrations

_TOGETHER = 32
"""episodes that the expert plays together"""


@dataclass(frozen=True, slots=True)
class ExpertExperience:
    """An expert's episode of T steps, and other ways to go on from each of its states."""

    episode: Episode
    alternatives: tuple[tuple[Transition, ...], ...]
    """[T][at most K]"""

    def branches(self) -> Iterator[Episode]:
        """Each alternative as an episode that shares the expert's steps before it."""
        for step, others in enumerate(self.alternatives):
            shared = self.episode.transitions[:step]
            for own in others:
                yield replace(self.episode, episode_id=own.episode_id, transitions=[*shared, own])

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values; what branches share is in it once."""
        others = [[t.to_dict() for t in row] for row in self.alternatives]
        return {"episode": self.episode.to_dict(), "alternatives": others}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ExpertExperience:
        rows = data["alternatives"]
        others = tuple(tuple(Transition.from_dict(t) for t in row) for row in rows)
        return cls(Episode.from_dict(data["episode"]), others)


def lists_no_actions(env_id: str) -> ValueError:
    """The error for an environment without a list of actions."""
    return ValueError(
        f"{env_id} does not list its admissible actions, from which world_model_learning.method=iwm takes "
        "other ones than the expert's."
    )


def early_experience(
    pool: EnvPool,
    env: AgentInterface,
    task_ids: Sequence[str],
    alternatives: int,
    rng: np.random.Generator,
    progress: Callable[[int], None] | None = None,
) -> list[ExpertExperience]:
    """Plays the expert, goes back to each of its states, and takes other actions there.

    These are drawn from the environment's own list, uniformly and without replacement. Episodes that the
    expert does not solve are left out, and so is an alternative at which the environment fails.
    """
    found: list[ExpertExperience] = []
    for start in range(0, len(task_ids), _TOGETHER):
        for states in _expert_states(pool, task_ids[start : start + _TOGETHER]):
            others = [
                _carried_out(env, state, _others(env, state, alternatives, rng)) for state in states
            ]
            found.append(ExpertExperience(states[0].episode, tuple(others)))
        if progress:
            progress(min(start + _TOGETHER, len(task_ids)))
    return found


@dataclass(frozen=True, slots=True)
class _State:
    """The state of an environment before a step of the expert's episode."""

    episode: Episode
    step: int
    saved: Mapping[str, Any]
    """from ``AgentInterface.save_state``"""
    listed: tuple[str, ...]
    """actions that the environment lists there"""


def _expert_states(pool: EnvPool, task_ids: Sequence[str]) -> list[list[_State]]:
    """For each episode that the expert solves: its states."""
    states: dict[str, list[_State]] = {}

    def keep(slot: Slot) -> None:
        env, episode = pool.env_of(slot), slot.episode
        with _branching(env, "saved"):
            saved = env.save_state()
        if (listed := env.text_env.list_actions()) is None:
            raise lists_no_actions(env.env_id)
        state = _State(episode, len(episode.transitions), saved, tuple(listed))
        states.setdefault(episode.episode_id, []).append(state)

    played = demonstrations(pool, None, task_ids, each_step=keep)
    return [states[t.episode.episode_id] for t in played if t.episode.success]


@contextmanager
def _branching(env: AgentInterface, done: str) -> Iterator[None]:
    """Names the environment whose state could not be saved or restored (``done``)."""
    try:
        yield
    except Exception as error:  # whatever an environment raises means that it cannot
        raise ValueError(
            f"{env.env_id} cannot be branched: its state cannot be {done} "
            f"({type(error).__name__}: {error}). Its save_state and restore_state must be exact; "
            "`paw check` tests them."
        ) from error


def _others(
    env: AgentInterface, state: _State, alternatives: int, rng: np.random.Generator
) -> list[str]:
    """Responses with other actions than the expert's, no action twice."""
    expert = state.episode.transitions[state.step].action
    others = [action for action in state.listed if action != expert]
    chosen = rng.choice(len(others), min(alternatives, len(others)), replace=False)
    return [env.response_for(others[int(i)]) for i in chosen]


def _carried_out(
    env: AgentInterface, state: _State, responses: Sequence[str]
) -> tuple[Transition, ...]:
    found = []
    for number, response in enumerate(responses):
        with _branching(env, "restored"):
            env.restore_state(state.saved)
        env.branch(f"{state.episode.episode_id}/{state.step}.{number}")
        try:
            info = env.step(response)[-1]
        except Exception:  # fails this alternative only; the next one begins with a restored state
            continue
        found.append(info["transition"])
    return tuple(found)


def write_experience(path: Path, experience: Sequence[ExpertExperience]) -> None:
    write_text(path, "".join(json_text(e.to_dict()) + "\n" for e in experience))


def read_experience(path: Path) -> list[ExpertExperience]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [ExpertExperience.from_dict(json.loads(line)) for line in lines]
