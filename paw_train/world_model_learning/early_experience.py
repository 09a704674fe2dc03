"""Early experience: outcomes of other actions in the states that an expert passed through.

Zhang et al. 2025, "Agent Learning via Early Experience" (arXiv 2510.08558), section 4: at each state s_i of
the expert's episodes K other actions a_i^j are carried out, and the states s_i^j that follow are kept. No
reward is read. The environment goes back to s_i exactly (``AgentInterface.save_state``), so that what an
action does is seen in the very state in which the expert took another one. In a run's folder,
``world_model/early_experience.jsonl`` holds the expert's episodes with their alternatives.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paw_gym.internals.files import json_text, write_text
from paw_gym.pool import EnvPool, Slot, Snapshot, cannot_branch
from paw_gym.transition import Episode, Transition
from paw_gym.wrappers import AgentInterface
from paw_train.environments import agent_env_maker, make_pool
from paw_train.evaluation.terminal import Display
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.rollout import demonstrations
from paw_train.rollouts.rows import recorded_row
from paw_train.rollouts.tokens import TokenRow
from paw_train.settings import Settings

_TASKS, _PROPOSALS = 14, 15
"""parts of the seeds of these, so that they differ"""
_TOGETHER = 32
"""episodes that the expert plays together"""


@dataclass(frozen=True, slots=True)
class ExpertState:
    """A state on an expert's path, to which the environment can go back."""

    snapshot: Snapshot
    admissible: tuple[str, ...] | None
    """the actions that the environment lists there"""

    @property
    def step(self) -> int:
        return self.snapshot.steps

    @property
    def expert(self) -> Transition:
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

    Raises:
        ValueError: the environment cannot go back to a state, or lists no actions.
    """
    found: list[ExpertExperience] = []
    for start in range(0, len(task_ids), _TOGETHER):
        for states in _expert_states(pool, task_ids[start : start + _TOGETHER]):
            others = [_carried_out(env, s, _others(env, s, alternatives, rng)) for s in states]
            found.append(ExpertExperience(states[0].snapshot.episode, tuple(others)))
        if progress:
            progress(min(start + _TOGETHER, len(task_ids)))
    return found


def _others(
    env: AgentInterface, state: ExpertState, alternatives: int, rng: np.random.Generator
) -> list[str]:
    """Responses with other actions than the expert's, no action twice."""
    if state.admissible is None:
        raise lists_no_actions(env.env_id)
    others = [action for action in state.admissible if action != state.expert.action]
    chosen = rng.choice(len(others), min(alternatives, len(others)), replace=False)
    return [env.response_for(others[int(i)]) for i in chosen]


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
    write_text(path, "".join(json_text(e.to_dict()) + "\n" for e in experience))


def read_experience(path: Path) -> list[ExpertExperience]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [ExpertExperience.from_dict(json.loads(line)) for line in lines]


@dataclass
class EarlyExperience:
    """The parts of world-model learning that begin in the expert's states."""

    settings: Settings
    folder: Path
    policy: LocalPolicy
    display: Display

    def __post_init__(self) -> None:
        self.own = self.settings.world_model_learning
        self.place = self.folder / "world_model"

    def collected(self) -> list[ExpertExperience]:
        """The expert's episodes and what else could have been done, from the file if it exists already."""
        path = self.place / "early_experience.jsonl"
        if path.exists():
            return read_experience(path)
        # as in the warm start: training's limit of steps does not apply to the expert
        env, count = self.settings.only_env, self.own.episodes
        pool = make_pool(env, env.train_split, 1, 1, self._seed(_TASKS))
        chosen = np.random.default_rng([self.settings.seed, _TASKS])
        tasks = pool.tasks.ids
        ids = [tasks[int(i)] for i in chosen.choice(len(tasks), count, count > len(tasks))]
        with self._env() as other, self.display.task("early experience", count) as advance:
            rng = np.random.default_rng([self.settings.seed, _PROPOSALS])
            found = early_experience(pool, other, ids, self.own.early.alternatives, rng, advance)
        pool.close()
        if not any(row for one in found for row in one.alternatives):
            raise ValueError(
                f"Early experience found nothing: of {count} tasks the expert solved {len(found)}, and in "
                "none of their states was another action tried."
            )
        self.place.mkdir(parents=True, exist_ok=True)
        write_experience(path, found)
        tried = sum(len(row) for one in found for row in one.alternatives)
        states = sum(len(one.alternatives) for one in found)
        self.display.say(
            f"{tried} other actions tried in {states} states of {len(found)} episodes."
        )
        return found

    def rows(self, experience: Sequence[ExpertExperience]) -> list[TokenRow]:
        """The expert's episodes of the experience for imitation, if there was no warm start."""
        if self.settings.cloning.episodes:
            return []
        with self._env() as env:
            shown, limit = env.text_env.prompt_observation, self.settings.rollout.max_prompt_tokens
            return [
                recorded_row(self.policy.chat, one.episode, step, shown, env.template, limit)
                for one in experience
                for step in range(len(one.episode.transitions))
            ]

    # --- parts ---------------------------------------------------------------------------------------

    @contextmanager
    def _env(self) -> Iterator[AgentInterface]:
        env = agent_env_maker(self.settings.only_env, self.settings.only_env.train_split)()
        try:
            yield env
        finally:
            env.close()

    def _seed(self, part: int) -> int:
        return int(np.random.SeedSequence([self.settings.seed, part]).generate_state(1)[0])
