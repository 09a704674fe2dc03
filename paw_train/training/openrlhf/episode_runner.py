"""Runs episodes against a vLLM engine of OpenRLHF, in the engine's own process or in workers beside it.

OpenRLHF's engine answers on an event loop, but environments and tokenizers block; so an episode runs in a
thread, by the same ``rollout`` as on one machine, and asks the loop for every response. In an engine's
own process they would still delay that loop, because Python has one interpreter lock; in a worker, a slow
environment delays its own episode alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from paw_gym.pool import EnvPool
from paw_gym.wrappers import AgentInterface
from paw_train.algorithms.update import update_seed
from paw_train.environments import agent_env_maker, training_env
from paw_train.policies.vllm.engine import VLLMSession
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.policy import Request, Response, Sampling
from paw_train.rollouts.rollout import Trajectory, rollout, timed_out
from paw_train.settings import Settings
from paw_train.training.openrlhf.episodes import GroupLabel, response
from paw_train.training.openrlhf.worker_settings import worker_settings

DEATHS = (
    "ActorDiedError",
    "ActorUnavailableError",
    "EngineDeadError",
    "NodeDiedError",
    "OwnerDiedError",
    "RayActorError",
    "WorkerCrashedError",
)
"""names of Ray's and vLLM's exceptions; neither is imported here"""

_CONSTRUCTOR = "error raised in its creation task"
"""in Ray's error of an actor that died because its constructor raised"""


def is_death(error: BaseException) -> bool:
    """True if a process died, here or in the remote task whose error this is.

    A constructor that raised would raise again: its actor's death does not count.
    """
    if _CONSTRUCTOR in str(error):
        return False
    if any(kind.__name__ in DEATHS for kind in type(error).__mro__):
        return True
    remote = any(kind.__name__ == "RayTaskError" for kind in type(error).__mro__)
    # Ray gives the errors of tasks that called tasks as text
    return remote and any(f"{name}:" in str(error) for name in DEATHS)


class EnginePolicy:
    """OpenRLHF's vLLM engine as a policy."""

    trainable = True

    def __init__(self, engine: Any, loop: asyncio.AbstractEventLoop, chat: ChatFormat) -> None:
        self.engine, self.loop, self.chat = engine, loop, chat

    def session(self, sampling: Sampling, growing: bool) -> EngineSession:
        """Opens a session (see ``rollouts.policy.Policy``); call it from a thread other than the loop's."""
        return EngineSession(self, sampling)


class EngineSession(VLLMSession):
    """The engine at work on one episode."""

    def __init__(self, policy: EnginePolicy, sampling: Sampling) -> None:
        super().__init__(policy, sampling)  # type: ignore[arg-type]
        self._engine, self._loop = policy.engine, policy.loop

    def respond(self, requests: Sequence[Request]) -> list[Response]:
        """See ``rollouts.policy.Session``. An engine that raises fails the episode, a dead one the run."""
        asked = [asyncio.run_coroutine_threadsafe(self._sample(r), self._loop) for r in requests]
        responses = []
        for future in asked:
            try:
                responses.append(self.finished(future.result()))
            except Exception as error:  # whatever the engine raises; the others go on
                if is_death(error):
                    raise
                responses.append(Response(error=traceback.format_exc()))
        return responses

    async def _sample(self, request: Request) -> Response:
        response = Response()
        goes_on = True
        while goes_on:
            ids = [*(request.ids or ()), *response.ids]
            parameters = self.parameters(request.seed, len(response.ids))
            output = await self._engine.generate(ids, parameters)
            goes_on = self.goes_on(response, output.outputs[0])
        return response


class EpisodeRunner:
    """Environments of one engine, and what runs episodes in them."""

    def __init__(self, settings: Settings) -> None:
        from transformers import AutoTokenizer

        self.settings = settings
        # loaded by each process: pickled with each episode, it would be megabytes a time
        tokenizer = AutoTokenizer.from_pretrained(settings.model.path, trust_remote_code=False)
        self._chat = ChatFormat(tokenizer)
        most = settings.rollout.groups * settings.rollout.group_size
        panel = settings.evaluation.selection_tasks if settings.evaluation.every else 0
        self._threads = ThreadPoolExecutor(
            max(most, panel, 1),
            thread_name_prefix="episode",
        )
        self._idle: dict[str, list[AgentInterface]] = defaultdict(list)

    async def run(self, label: GroupLabel, engine: Any) -> Trajectory:
        """Runs the episode that a label describes.

        An environment or engine that raises fails the episode (``episode.error``).
        """
        loop = asyncio.get_running_loop()
        policy = EnginePolicy(engine, loop, self._chat)
        return await loop.run_in_executor(self._threads, self._run, label, policy)

    def _run(self, label: GroupLabel, policy: EnginePolicy) -> Trajectory:
        assert label.member is not None
        env = self._take(label)
        pool = EnvPool(lambda: env, seeds={label.task_id: label.seeds[label.member]})
        if not label.validation:
            pool.set_progress(label.update / self.settings.updates)
        [trajectory] = rollout(
            policy,
            pool,
            self._rollout_settings(label),
            torch.Generator().manual_seed(self._seed(label)),
            [label.task_id],
        )
        trajectory.episode.group = label.group
        episode = trajectory.episode
        self._give_back(label, env, episode.error is not None or timed_out(episode))
        return trajectory

    def _rollout_settings(self, label: GroupLabel) -> Any:
        if not label.validation:
            return self.settings.rollout
        return self.settings.rollout.replace(temperature=self.settings.evaluation.temperature)

    def _seed(self, label: GroupLabel) -> int:
        if label.validation:
            return update_seed(self.settings.evaluation.seed)
        return update_seed(self.settings.seed, label.update)

    def _take(self, label: GroupLabel) -> AgentInterface:
        with contextlib.suppress(IndexError):
            return self._idle[self._kind(label)].pop()
        env = self.settings.only_env if label.validation else training_env(self.settings.only_env)
        return agent_env_maker(env, label.split)()

    def _give_back(self, label: GroupLabel, env: AgentInterface, broken: bool) -> None:
        if not broken:
            self._idle[self._kind(label)].append(env)
            return
        with contextlib.suppress(Exception):  # it is broken: closing it may fail as well
            env.close()

    @staticmethod
    def _kind(label: GroupLabel) -> str:
        return f"{label.split}/{label.validation}"


class RemoteEngine:
    """An engine in another process, for ``EpisodeRunner``."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    async def generate(self, ids: list[int], parameters: Any) -> Any:
        return await self.handle.generate.remote(ids, parameters)


class EpisodeWorker:
    """One process; a Ray actor on the cluster."""

    def __init__(self) -> None:
        self.runner = EpisodeRunner(worker_settings())

    async def run(self, prompt: str, label: str, engine: Any) -> list[Any]:
        """Runs an episode; returns a list of its one response, as an engine does."""
        episode = GroupLabel.from_json(label)
        trajectory = await self.runner.run(episode, RemoteEngine(engine))
        return [response(trajectory, prompt, episode)]


def start_workers(settings: Settings) -> list[list[Any]]:
    """Starts ``openrlhf.environment_workers`` processes for each engine, spread over the machines."""
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
