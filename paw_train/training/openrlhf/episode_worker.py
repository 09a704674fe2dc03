"""Processes that run episodes beside the vLLM engines, and ask these for responses over Ray.

Environments, prompts and tokenizers are Python and hold its interpreter lock. In an engine's own process they
would delay the event loop that hands out responses and stops generation; here a slow environment delays
nothing but its own episode, and an engine's process does nothing else.
"""

from __future__ import annotations

from typing import Any

from paw_train.settings import Settings
from paw_train.training.openrlhf.episode_runner import EpisodeRunner
from paw_train.training.openrlhf.episodes import GroupLabel
from paw_train.training.openrlhf.responses import response
from paw_train.training.openrlhf.worker_settings import worker_settings


class RemoteEngine:
    """An engine in another process, for ``EpisodeRunner``.

    Args:
        handle: of its Ray actor.
    """

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    async def generate(self, ids: list[int], parameters: Any) -> Any:
        """vLLM's output for a context in tokens."""
        return await self.handle.generate.remote(ids, parameters)


class EpisodeWorker:
    """One process; a Ray actor on the cluster."""

    def __init__(self) -> None:
        self.runner = EpisodeRunner(worker_settings())

    async def run(self, prompt: str, label: str, tokenizer: Any, engine: Any) -> list[Any]:
        """Runs an episode; the list of its one response, as an engine returns it.

        Args:
            prompt: the name of its row in the data set.
            label: of the episode.
            tokenizer: of the model.
            engine: handle of the engine that samples.
        """
        episode = GroupLabel.from_json(label)
        trajectory = await self.runner.run(episode, RemoteEngine(engine), tokenizer)
        return [response(trajectory, prompt, episode)]


def start_workers(settings: Settings) -> list[list[Any]]:
    """Starts ``openrlhf.environment_workers`` processes for each engine, spread over the machines.

    Returns:
        Handles, by engine.
    """
    import ray

    o = settings.openrlhf
    panel = settings.evaluation.selection_tasks if settings.evaluation.every else 0
    episodes = settings.rollout.groups * settings.rollout.group_size
    # Ray answers so many calls of an asynchronous actor at a time
    kind = ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(EpisodeWorker)
    options = {"max_concurrency": max(episodes, panel, 1)}
    return [
        [kind.options(**options).remote() for _ in range(o.environment_workers)]
        for _ in range(o.vllm_engines)
    ]
