"""Early experience in a run's folder: what is collected and reflected on, each kept in a file.

``world_model/early_experience.jsonl`` holds the expert's episodes with their alternatives,
``world_model/reflections.jsonl`` what the policy said of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from paw_gym.files import write_text
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
from paw_train.world_model_learning.reflection import Reflection, reflect, reflected_rows

_TASKS, _PROPOSALS, _REFLECTIONS = 14, 15, 16
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
        """What imitation learns beside the episodes of the warm start.

        The expert's episodes of the experience, where there was no warm start; with ``method: reflection``
        the responses with reflections.
        """
        rows = [] if self.settings.cloning.episodes else self._expert_rows(experience)
        return rows + (self._reflected_rows(experience) if self.own.method == "reflection" else [])

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

    def _expert_rows(self, experience: Sequence[ExpertExperience]) -> list[TokenRow]:
        with self._env() as env:
            shown, limit = env.text_env.prompt_observation, self.settings.rollout.max_prompt_tokens
            return [
                recorded_row(self.policy.chat, one.episode, step, shown, env.template, limit)
                for one in experience
                for step in range(len(one.episode.transitions))
            ]

    def _reflected_rows(self, experience: Sequence[ExpertExperience]) -> list[TokenRow]:
        with self._env() as env:
            return reflected_rows(
                experience,
                self._reflections(experience),
                self.policy,
                env.text_env.prompt_observation,
                env.template,
                self.settings.rollout.max_prompt_tokens,
            )

    def _reflections(self, experience: Sequence[ExpertExperience]) -> list[Reflection]:
        """What the start policy says, from the file where it is already."""
        path = self.place / "reflections.jsonl"
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines()
            return [Reflection(**json.loads(line)) for line in lines]
        rollout = self.settings.rollout
        states = sum(bool(row) for one in experience for row in one.alternatives)
        with self.display.task("reflections", states) as advance:
            found = reflect(
                self.policy,
                experience,
                Sampling(self.own.early.temperature, self.own.early.max_tokens),
                self._seed(_REFLECTIONS),
                rollout.max_context_tokens - self.own.early.max_tokens,
                self.own.batch,
                rollout.prefill_tokens,
                advance,
            )
        if not found:
            raise ValueError(
                f"The policy wrote no reflection in any of {states} states: it answered with actions alone, "
                "or the contexts are longer than rollout.max_context_tokens."
            )
        write_text(path, "".join(json.dumps(asdict(r)) + "\n" for r in found))
        self.display.say(f"{len(found)} reflections on {states} states.")
        return found

    @contextmanager
    def _env(self) -> Iterator[AgentInterface]:
        env = agent_env_maker(self.settings.only_env, self.settings.only_env.train_split)()
        try:
            yield env
        finally:
            env.close()

    def _seed(self, part: int) -> int:
        return int(np.random.SeedSequence([self.settings.seed, part]).generate_state(1)[0])
