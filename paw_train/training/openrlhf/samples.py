"""The episodes of an update or a validation, sampled by the vLLM engines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import ray
from openrlhf.trainer.ppo_utils.experience import Experience as OpenRLHFExperience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator, _collect_prompt_batch
from tqdm import tqdm

from paw_gym.core import TaskSet
from paw_train.algorithms.pool import informative_groups
from paw_train.environments import agent_env_maker
from paw_train.rollouts.rollout import Trajectory
from paw_train.settings import Settings
from paw_train.training.openrlhf.episodes import GroupLabel, engines_of, further_groups


class TurnSamplesGenerator(SamplesGenerator):
    """Samples that bring their whole trajectory, in the place of their label.

    ``run`` has to be set before use.
    """

    run: Settings
    sampled: Sequence[Trajectory] = ()
    """all episodes of the rollout that was sampled last; with dynamic sampling more than are learned from"""
    seconds: float
    """that it took"""
    validated: Sequence[Trajectory] = ()
    """the episodes of the last validation"""
    workers: Sequence[Sequence[Any]] = ()
    """handles of the processes that run an engine's episodes, by engine"""
    _begun: int = 0

    def generate_samples(self, **kwargs: Any) -> Any:
        started = time.perf_counter()
        answer = super().generate_samples(**kwargs)
        self.seconds = time.perf_counter() - started
        return answer

    def generate_eval_samples(self, **kwargs: Any) -> Any:
        samples = super().generate_eval_samples(**kwargs)
        self.validated = [sample.labels[0] for sample in samples]
        return samples

    def _generate_vllm(
        self, dataloader_iter: Any, num_prompts: int, dynamic_filtering: bool, **kwargs: Any
    ) -> tuple[list[OpenRLHFExperience], int, bool]:
        """As upstream, an episode at a time in place of a group, and in the order of the data set.

        Upstream sends a whole group to one engine: with more engines than groups, the others idle.
        """
        prompts, labels, _, exhausted = _collect_prompt_batch(dataloader_iter, num_prompts)
        if not labels:
            return [], 0, True
        groups = [GroupLabel.from_json(label) for label in labels]
        found = self._episodes(groups, prompts)
        if not groups[0].validation:
            found = self._informative(found, groups[0].update)
        samples = [self._process_response_into_experience(one, **kwargs) for one in found]
        return samples, len(labels), exhausted

    def _informative(self, found: list[Any], update: int) -> list[Any]:
        """The episodes of an update to learn from: all, or with dynamic sampling those of groups whose
        returns differ, with further groups in place of the others (as in the local engine)."""
        most, wanted = self.run.algorithm.dynamic_sampling, self.run.rollout.groups
        for extra in range(1, most + 1):
            if len(_differing(found)) >= wanted:
                break
            further = list(further_groups(self._training_tasks, self.run, update, extra))
            found = found + self._episodes(further, [f"further/{g.group}" for g in further])
        self.sampled = [one["trajectory"] for one in found]
        if not most:
            return found
        chosen = set(sorted(_differing(found))[:wanted])
        kept = [one for one in found if one["trajectory"].episode.group in chosen]
        # nothing to learn from: an update's worth of episodes, so that none is left over for the next
        return kept or found[: wanted * self.run.rollout.group_size]

    @cached_property
    def _training_tasks(self) -> TaskSet:
        env = agent_env_maker(self.run.only_env, self.run.only_env.train_split)()
        tasks = env.tasks
        env.close()
        return tasks

    def _episodes(self, groups: Sequence[GroupLabel], rows: Sequence[str]) -> list[Any]:
        """Runs all episodes of some groups at once, each with its engine."""
        episodes = [
            (row, episode)
            for row, group in zip(rows, groups, strict=True)
            for episode in group.episodes()
        ]
        found: list[Any] = [None] * len(episodes)
        engines = engines_of(len(episodes), len(self.vllm_engines))
        under_way = {
            self._begin(*episode, engine): number
            for number, (episode, engine) in enumerate(zip(episodes, engines, strict=True))
        }
        with tqdm(total=len(found), desc="episodes") as bar:
            while under_way:
                [ended], _ = ray.wait(list(under_way), num_returns=1)
                found[under_way.pop(ended)] = ray.get(ended)
                bar.update()
        return found

    def _begin(self, row: str, episode: GroupLabel, engine: int) -> Any:
        """Starts an episode with an engine, by its workers in turn; returns Ray's promise of it."""
        workers = self.workers[engine]
        self._begun += 1
        worker = workers[self._begun % len(workers)]
        return worker.run.remote(row, episode, self.vllm_engines[engine])

    def _process_response_into_experience(self, response: Any, **kwargs: Any) -> OpenRLHFExperience:
        sample = super()._process_response_into_experience(response, **kwargs)
        sample.labels = [response["trajectory"]]
        return sample


def _differing(found: Sequence[Any]) -> set[int]:
    return informative_groups([one["trajectory"] for one in found])
