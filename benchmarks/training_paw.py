"""Measured process of ``training.py``: this project's rollout and update, as ``paw train`` runs them.

python training_paw.py JOB.json ANSWER.json
"""

from __future__ import annotations

import sys
from collections.abc import Generator

import numpy as np
import torch
import transformers
from training_job import Job, StepRecord, digest, measured, now, write_records

from paw_gym.core import Outcome, Task
from paw_gym.pool import EnvPool
from paw_gym.prompts import PromptTemplate
from paw_gym.registration import register_text_env
from paw_train.algorithms.experience import collect, prepare
from paw_train.algorithms.update import Updater
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.rollout import Trajectory, rollout
from paw_train.settings import AlgorithmSettings, OptimizerSettings
from paw_train.settings.objective import ObjectiveSettings
from paw_train.settings.rollout import RolloutSettings
from paw_train.settings.world_model import WorldModelSettings

ENV_ID = "bench/OneTurn-v0"


def play(task: Task, rng: np.random.Generator) -> Generator[Outcome, str, None]:
    """One turn, whose reward is a fair coin: what is measured is everything else."""
    yield Outcome("")
    yield Outcome("", reward=float(rng.integers(2)), terminated=True)


def make_pool(job: Job) -> EnvPool:
    """An environment whose prompts are the job's, word for word."""
    tasks = [Task(str(i), prompt) for i, prompt in enumerate(job.prompts)]
    register_text_env(ENV_ID, play, tasks=tasks, max_steps=1)
    template = PromptTemplate(
        first="{instruction}",
        step="{instruction}{history}{observation}",
        history_item="{action}",
        turn="{observation}",
        think_tag=None,
    )
    return EnvPool(ENV_ID, job.groups, job.group_size, template=template, invalid_penalty=0.0)


def rollout_settings(job: Job) -> RolloutSettings:
    return RolloutSettings(
        groups=job.groups, group_size=job.group_size, max_response_tokens=job.completion_tokens
    )


class Trainer:
    """The parts that one update of ``paw_train.training.local`` is made of."""

    def __init__(self, job: Job) -> None:
        self.job, self.pool = job, make_pool(job)
        self.policy = LocalPolicy.load(job.model)
        self.policy.chat.end_ids = frozenset()  # no token ends a response
        width = job.prompt_tokens + job.completion_tokens
        optimizer = OptimizerSettings(lr=job.lr, micro_batch_tokens=job.micro_rows * width)
        self.algorithm = AlgorithmSettings(name="grpo")
        self.objective = ObjectiveSettings(kl_coef=0.0)
        self.world_model = WorldModelSettings.preset("off")
        self.updater = Updater(
            self.policy, None, optimizer, self.objective, self.world_model, 1.0, job.steps
        )
        self.generator = torch.Generator().manual_seed(0)

    def step(self, number: int) -> StepRecord:
        job, record = self.job, StepRecord()
        ids = [str(i) for i in range(number * job.groups, (number + 1) * job.groups)]
        start = now()
        with measured(record.rollout):
            played = rollout(self.policy, self.pool, rollout_settings(job), self.generator, ids)
        with measured(record.update):
            self._update(played, number, record)
        record.step = now() - start
        steps = [(row, step) for t in played for row in t.rows for step in row.steps]
        record.prompts = digest(row.ids[: step.action[0]] for row, step in steps)
        record.sampled = sum(len(step.logprobs) for _, step in steps)
        return record

    def _update(self, played: list[Trajectory], number: int, record: StepRecord) -> None:
        pool = collect(played)
        experience = prepare(
            pool,
            self.algorithm,
            self.objective,
            self.world_model,
            1.0,
            self.updater.signals(pool),
            self.policy.chat.ask,
        )
        self.updater.step(experience, number, number)
        record.trained = sum(len(row.ids) for row in experience.rows)


def main() -> None:
    job = Job.read(sys.argv[1])
    torch.set_num_threads(job.threads)
    trainer = Trainer(job)
    records = [trainer.step(number) for number in range(job.steps)]
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    write_records(sys.argv[2], records, versions)


if __name__ == "__main__":
    main()
