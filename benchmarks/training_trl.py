"""Measured process of ``training.py``: TRL's ``GRPOTrainer``, in an environment of its own.

    python training_trl.py JOB.json ANSWER.json

The trainer is left as it is; two of its methods are wrapped to read clocks. Set away from its
defaults: ``bf16`` and gradient checkpointing, which the other side does not use here either.
"""

from __future__ import annotations

import random
import sys
import tempfile
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from training_job import Job, Seconds, StepRecord, digest, measured, now, write_records
from transformers import TrainerCallback

NEVER = 2**30
"""an end token that no model samples"""


class Clock(TrainerCallback):
    """Times a step from its beginning to behind the optimiser."""

    def __init__(self) -> None:
        self.records: list[StepRecord] = []
        self.scoring = Seconds()
        self.start = Seconds()

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.records.append(StepRecord())
        self.scoring = Seconds()
        self.start = now()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        record = self.records[-1]
        record.step = now() - self.start
        record.update = record.step - self.scoring


def coin(completions: list[Any], **kwargs: Any) -> list[float]:
    """A reward that says nothing, as on the other side."""
    rng = random.Random(str(completions[0])[:64])
    return [float(rng.random() < 0.5) for _ in completions]


def config(job: Job, folder: str) -> Any:
    return trl.GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=job.micro_rows,
        gradient_accumulation_steps=job.rows // job.micro_rows,
        num_generations=job.group_size,
        max_completion_length=job.completion_tokens,
        generation_kwargs={"eos_token_id": NEVER},
        temperature=1.0,
        beta=0.0,
        learning_rate=job.lr,
        lr_scheduler_type="constant",
        max_steps=job.steps,
        shuffle_dataset=False,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        seed=0,
    )


def watch(trainer: Any, clock: Clock) -> None:
    """Wraps the trainer's rollout: generation alone, and with rewards and advantages."""
    generate, score = trainer._generate, trainer._generate_and_score_completions

    def timed_generate(prompts: list[Any]) -> Any:
        record = clock.records[-1]
        with measured(record.rollout):
            result = generate(prompts)
        prompt_ids, completion_ids = result[0], result[1]
        record.prompts = digest(prompt_ids)
        record.sampled = sum(map(len, completion_ids))
        record.trained = sum(map(len, prompt_ids)) + record.sampled
        return result

    def timed_score(inputs: Any) -> Any:
        with measured(clock.scoring):
            return score(inputs)

    trainer._generate, trainer._generate_and_score_completions = timed_generate, timed_score


def main() -> None:
    job = Job.read(sys.argv[1])
    torch.set_num_threads(job.threads)
    clock = Clock()
    prompts = [[{"role": "user", "content": prompt}] for prompt in job.prompts]
    with tempfile.TemporaryDirectory(prefix="paw-bench-trl-") as folder:
        trainer = trl.GRPOTrainer(
            job.model,
            reward_funcs=coin,
            args=config(job, folder),
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            callbacks=[clock],
        )
        trainer.eos_token_ids = [NEVER]
        watch(trainer, clock)
        trainer.train()
    versions = (
        f"trl {trl.__version__}, torch {torch.__version__}, transformers {transformers.__version__}"
    )
    write_records(sys.argv[2], clock.records, versions)


if __name__ == "__main__":
    main()
