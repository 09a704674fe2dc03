"""Early experience: what other actions would have done in the states that an expert came through.

Zhang et al. 2025, "Agent Learning via Early Experience" (arXiv 2510.08558), section 4: at each state s_i of
the expert's episodes K other actions a_i^j are carried out, and the states s_i^j that follow are kept. No
reward is read. The environment goes back to s_i exactly (``AgentInterface.save_state``), so that what an
action does is seen in the very state in which the expert took another one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from paw_gym.files import json_text, write_text
from paw_gym.pool import EnvPool, Slot, Snapshot, cannot_branch
from paw_gym.transition import Episode, Transition
from paw_gym.wrappers import AgentInterface
from paw_train.rollouts.rollout import demonstrations


@dataclass(frozen=True, slots=True)
class ExpertState:
    """A state on an expert's way, to which one can go back."""

    snapshot: Snapshot
    admissible: tuple[str, ...] | None
    """the actions that the environment lists there"""

    @property
    def step(self) -> int:
        """Number of the expert's step from here."""
        return self.snapshot.steps

    @property
    def expert(self) -> Transition:
        """What the expert did here."""
        return self.snapshot.episode.transitions[self.step]


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
        """Inverse of ``to_dict``."""
        rows = data["alternatives"]
        others = tuple(tuple(Transition.from_dict(t) for t in row) for row in rows)
        return cls(Episode.from_dict(data["episode"]), others)


class Proposals(Protocol):
    """Chooses what else to do in the expert's states."""

    def __call__(self, states: Sequence[ExpertState]) -> list[list[str]]:
        """[states][at most K] raw responses, none with the expert's action, no action twice."""
        ...


def lists_no_actions(env_id: str) -> ValueError:
    """The error of ``proposals: admissible`` in an environment without a list of actions."""
    return ValueError(
        f"{env_id} does not list its admissible actions, from which "
        "world_model_learning.early.proposals=admissible takes other ones: use proposals=policy."
    )


def admissible_proposals(
    env: AgentInterface, alternatives: int, rng: np.random.Generator
) -> Proposals:
    """Actions from the environment's own list, uniformly and without replacement.

    Args:
        env: writes the responses.
        alternatives: K.
        rng: chooses.

    Raises:
        ValueError: (when called) the environment lists no actions.
    """

    def propose(states: Sequence[ExpertState]) -> list[list[str]]:
        return [[env.response_for(action) for action in _others(state)] for state in states]

    def _others(state: ExpertState) -> list[str]:
        if state.admissible is None:
            raise lists_no_actions(env.env_id)
        others = [action for action in state.admissible if action != state.expert.action]
        chosen = rng.choice(len(others), min(alternatives, len(others)), replace=False)
        return [others[int(i)] for i in chosen]

    return propose


def early_experience(
    pool: EnvPool,
    env: AgentInterface,
    task_ids: Sequence[str],
    propose: Proposals,
    batch: int = 32,
    progress: Callable[[int], None] | None = None,
) -> list[ExpertExperience]:
    """Plays the expert, goes back to each of its states, and does other things there.

    Episodes that the expert does not solve are left out, and so is an alternative at which the environment
    fails.

    Args:
        pool: plays the expert's episodes.
        env: another environment of the same kind, in which the alternatives are carried out.
        task_ids: of the expert's episodes.
        propose: chooses the alternatives.
        batch: episodes played together: memory, not results.
        progress: called with the number of episodes done.

    Raises:
        ValueError: the environment cannot go back to a state; or as ``propose``.
    """
    found: list[ExpertExperience] = []
    for start in range(0, len(task_ids), batch):
        for states in _expert_states(pool, task_ids[start : start + batch]):
            answers = propose(states)
            others = [_carried_out(env, s, a) for s, a in zip(states, answers, strict=True)]
            found.append(ExpertExperience(states[0].snapshot.episode, tuple(others)))
        if progress:
            progress(min(start + batch, len(task_ids)))
    return found


def _expert_states(pool: EnvPool, task_ids: Sequence[str]) -> list[list[ExpertState]]:
    """The states of each episode that the expert solves."""
    states: dict[str, list[ExpertState]] = {}

    def keep(slot: Slot) -> None:
        listed = pool.env_of(slot).text_env.list_actions()
        state = ExpertState(pool.snapshot(slot), None if listed is None else tuple(listed))
        states.setdefault(slot.episode.episode_id, []).append(state)

    played = demonstrations(pool, None, task_ids, each_step=keep)
    return [states[t.episode.episode_id] for t in played if t.episode.success]


def _carried_out(
    env: AgentInterface, state: ExpertState, responses: Sequence[str]
) -> tuple[Transition, ...]:
    snapshot, found = state.snapshot, []
    for number, response in enumerate(responses):
        try:
            env.restore_state(snapshot.state)
        except Exception as error:  # whatever an environment raises means that it cannot
            raise cannot_branch(env, "restored", error) from error
        env.branch(f"{snapshot.episode.episode_id}/{state.step}.{number}")
        try:
            info = env.step(response)[-1]
        except Exception:  # fails this alternative only; the next one begins with a restored state
            continue
        found.append(info["transition"])
    return tuple(found)


def write_experience(path: Path, experience: Sequence[ExpertExperience]) -> None:
    """Writes one expert's episode a line, all or nothing."""
    write_text(path, "".join(json_text(e.to_dict()) + "\n" for e in experience))


def read_experience(path: Path) -> list[ExpertExperience]:
    """Inverse of ``write_experience``."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [ExpertExperience.from_dict(json.loads(line)) for line in lines]
