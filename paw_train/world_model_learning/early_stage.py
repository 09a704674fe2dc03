"""Collects early experience in a run's folder, once.

``world_model/early_experience.jsonl`` holds the expert's episodes with their alternatives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paw_gym.wrappers import AgentInterface
from paw_train.environments import agent_env_maker, make_pool
from paw_train.evaluation.terminal import Display
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.policy import Sampling
from paw_train.rollouts.rows import recorded_row
from paw_train.rollouts.tokens import TokenRow
from paw_train.settings import Settings
from paw_train.world_model_learning.early_experience import (
    ExpertExperience,
    Proposals,
    admissible_proposals,
    early_experience,
    read_experience,
    write_experience,
)
from paw_train.world_model_learning.proposals import policy_proposals

_TASKS, _PROPOSALS = 14, 15
"""parts of the seeds of these, so that they differ"""


@dataclass
class EarlyExperience:
    """The parts of world-model learning that begin in the expert's states.

    Args:
        settings: of the run.
        folder: of the run.
        policy: the start policy.
        display: shows progress.
    """

    settings: Settings
    folder: Path
    policy: LocalPolicy
    display: Display

    def __post_init__(self) -> None:
        self.own = self.settings.world_model_learning
        self.place = self.folder / "world_model"

    def collected(self) -> list[ExpertExperience]:
        """The expert's episodes and what else could have been done, from the file where they are already."""
        path = self.place / "early_experience.jsonl"
        if path.exists():
            return read_experience(path)
        # as in the warm start: the limit of steps of training is no limit for the expert
        env, count = self.settings.only_env, self.own.episodes
        pool = make_pool(env, env.train_split, 1, 1, self._seed(_TASKS))
        rng = np.random.default_rng([self.settings.seed, _TASKS])
        tasks = pool.tasks.ids
        ids = [tasks[int(i)] for i in rng.choice(len(tasks), count, count > len(tasks))]
        with self._env() as other, self.display.task("early experience", count) as advance:
            propose = self._proposals(other)
            found = early_experience(pool, other, ids, propose, progress=advance)
        pool.close()
        if not any(row for one in found for row in one.alternatives):
            raise ValueError(
                f"Early experience found nothing: of {count} tasks the expert solved {len(found)}, and in "
                "none of their states was another action tried (world_model_learning.early.proposals)."
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

    def _proposals(self, env: AgentInterface) -> Proposals:
        early, rollout = self.own.early, self.settings.rollout
        if early.proposals == "admissible":
            rng = np.random.default_rng([self.settings.seed, _PROPOSALS])
            return admissible_proposals(env, early.alternatives, rng)
        sampling = Sampling(
            early.temperature, rollout.max_response_tokens, tuple(env.template.closing_tags)
        )
        return policy_proposals(
            self.policy,
            env.template,
            early.alternatives,
            sampling,
            self._seed(_PROPOSALS),
            rollout.max_prompt_tokens,
            rollout.prefill_tokens,
        )

    @contextmanager
    def _env(self) -> Iterator[AgentInterface]:
        env = agent_env_maker(self.settings.only_env, self.settings.only_env.train_split)()
        try:
            yield env
        finally:
            env.close()

    def _seed(self, part: int) -> int:
        return int(np.random.SeedSequence([self.settings.seed, part]).generate_state(1)[0])
