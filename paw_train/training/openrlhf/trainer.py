"""The controller: OpenRLHF's training loop with our samples, experience and guards."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import ray
from openrlhf.trainer import ppo_trainer
from torchdata.stateful_dataloader import StatefulDataLoader

from paw_gym.internals.printable import printable
from paw_train.environments import max_return
from paw_train.reporting.run.alarms import loss_name
from paw_train.training.cluster_options import worker_settings
from paw_train.training.environments import outcome_metrics
from paw_train.training.openrlhf.episode_runner import start_workers
from paw_train.training.openrlhf.experience_maker import PaWExperienceMaker
from paw_train.training.openrlhf.run_records import RunRecords, cluster_tracking
from paw_train.training.openrlhf.samples import TurnSamplesGenerator
from paw_train.training.openrlhf.weights import Sums, require_agreement, require_equal

_Upstream: Any = ppo_trainer.PPOTrainer.__ray_metadata__.modified_class


class PaWTrainer(_Upstream):
    """One update after another; every number that a run leaves goes to ``metrics.jsonl``."""

    prompts_dataloader: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.run = worker_settings()
        self.tracking = cluster_tracking(self.run)
        self.records = RunRecords(Path(self.run.out) / self.run.name, self.tracking)
        # the rows are in the order of the updates
        given = self.prompts_dataloader
        self.prompts_dataloader = StatefulDataLoader(
            given.dataset, batch_size=1, shuffle=False, drop_last=True, collate_fn=given.collate_fn
        )
        self.samples_generator = TurnSamplesGenerator(
            self.strategy,
            self.prompts_dataloader,
            self.eval_dataloader,
            self.tokenizer,
            self.vllm_engines,
        )
        self.samples_generator.run = self.run
        self.samples_generator.workers = start_workers(self.run)
        self.experience_maker = PaWExperienceMaker(
            self.actor_model_group,
            self.critic_model_group,
            self.reward_model_group,
            self.reference_model_group,
            self.kl_ctl,
            self.strategy,
            self.tokenizer,
        )
        self.experience_maker.run = self.run
        self.experience_maker.max_return = max_return(self.run.only_env)
        self._outcome: dict[str, float] = {}

    def fit(self, global_step: int = 0) -> None:
        self.records.resume(int(self.init_checkpoint_states()["global_step"]))
        with self.tracking:
            super().fit(global_step)

    def train_step(self, rollout_samples: Any, global_step: int) -> tuple[dict[str, Any], int]:
        """One update; the engines' weights are compared with the trained ones after it.

        Raises:
            StaleWeightsError: they differ.
            LogprobGapError: what the engines sampled is not what the trained weights would sample.
        """
        trajectories = self.samples_generator.sampled
        self._outcome = outcome_metrics(trajectories)
        self._report_failures(global_step + 1, "training", trajectories)
        self.experience_maker.update = global_step
        started = time.perf_counter()
        status, after = super().train_step(rollout_samples, global_step)
        self._check_weights(global_step)
        seconds = {
            "seconds_rollout": self.samples_generator.seconds,
            "seconds_train": time.perf_counter() - started,
        }
        self.records.update(global_step + 1, {**status, **seconds})
        for alarm in self.records.raised(global_step + 1, loss_name(self.run.to_dict())):
            print(f"Alarm: {alarm.title}: {alarm.text}", flush=True)
        return status, after

    def _report_failures(self, update: int, during: str, trajectories: Any) -> None:
        for episode in self.records.failures(update, during, trajectories):
            said = f"episode {episode.episode_id} failed:\n{episode.error}"
            print(printable(said), flush=True)

    def _compute_rollout_stats(self, experiences: Any) -> dict[str, float]:
        # upstream asks for them before the first optimiser step
        maker = self.experience_maker
        require_agreement(maker.metrics["logprob_gap"], maker.update + 1)
        return {**self._outcome, **maker.metrics}

    def _check_weights(self, update: int) -> None:
        every = self.run.openrlhf.updates_between_checksums
        if not every or update % every or not self.vllm_engines:
            return
        trained = ray.get(self.actor_model_group.async_run_method(method_name="weight_sums"))[0]
        engines = ray.get([engine.weight_sums.remote() for engine in self.vllm_engines])
        require_equal(trained, [Sums(*workers[0]) for workers in engines], update)

    def evaluate(self, global_step: int, **generate_kwargs: Any) -> dict[str, float]:
        logs: dict[str, float] = super().evaluate(global_step, **generate_kwargs)
        trajectories = self.samples_generator.validated
        self._report_failures(global_step, "validation", trajectories)
        self.records.validation(global_step, trajectories)
        return logs
