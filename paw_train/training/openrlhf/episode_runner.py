"""Runs episodes against vLLM engines of OpenRLHF, in processes beside them.

Environments and tokenizers block, so an episode runs in a thread, by the same ``rollout`` as on one machine,
and asks the process's event loop for every response. A slow environment does not delay the engines.
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
from paw_train.policies.vllm import VLLMSession
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.policy import Request, Response, Sampling
from paw_train.rollouts.rollout import Trajectory, rollout
from paw_train.settings import Settings
from paw_train.training.openrlhf.episodes import GroupLabel, response

DEATHS = {"RayActorError", "EngineDeadError"}
"""names of Ray's and vLLM's exceptions of an engine that is gone; neither is imported here"""


class EnginePolicy:
    """OpenRLHF's vLLM engine, a Ray actor, as a policy."""

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
                if DEATHS & {kind.__name__ for kind in type(error).__mro__}:
                    raise  # or a validation would count its episodes as failures
                responses.append(Response(error=traceback.format_exc()))
        return responses

    async def _sample(self, request: Request) -> Response:
        response = Response()
        goes_on = True
        while goes_on:
            ids = [*(request.ids or ()), *response.ids]
            parameters = self.parameters(request.seed, len(response.ids))
            output = await self._engine.generate.remote(ids, parameters)
            goes_on = self.goes_on(response, output.outputs[0])
        return response


class EpisodeRunner:
    """One process with environments; a Ray actor on the cluster."""

    def __init__(self, settings: Settings) -> None:
        from transformers import AutoTokenizer

        self.settings = settings
        tokenizer = AutoTokenizer.from_pretrained(settings.model.path, trust_remote_code=False)
        self._chat = ChatFormat(tokenizer)
        self._threads = ThreadPoolExecutor(episodes_at_once(settings), "episode")
        self._idle: dict[str, list[AgentInterface]] = defaultdict(list)

    async def run(self, row: str, label: GroupLabel, engine: Any) -> dict[str, Any]:
        """Runs the episode that a label describes and returns OpenRLHF's form of it.

        An environment or engine that raises fails the episode (``episode.error``).
        """
        loop = asyncio.get_running_loop()
        policy = EnginePolicy(engine, loop, self._chat)
        trajectory = await loop.run_in_executor(self._threads, self._run, label, policy)
        return response(trajectory, row, label)

    def _run(self, label: GroupLabel, policy: EnginePolicy) -> Trajectory:
        assert label.member is not None
        env = self._take(label)
        pool = EnvPool(lambda: env, seeds={label.task_id: label.seeds[label.member]})
        if not label.validation:
            pool.set_progress(label.update / self.settings.updates)
        own, chosen = self.settings.rollout, self.settings.evaluation
        if label.validation:
            own = own.replace(temperature=chosen.temperature)
            seed = update_seed(chosen.seed)
        else:
            seed = update_seed(self.settings.seed, label.update)
        generator = torch.Generator().manual_seed(seed)
        [trajectory] = rollout(policy, pool, own, generator, [label.task_id])
        trajectory.episode.group = label.group
        episode = trajectory.episode
        self._give_back(label, env, episode.error is not None)
        return trajectory

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


def episodes_at_once(settings: Settings) -> int:
    """The most episodes of an update or a validation."""
    panel = settings.evaluation.selection_tasks if settings.evaluation.every else 0
    return max(settings.rollout.groups * settings.rollout.group_size, panel, 1)


def start_workers(settings: Settings) -> list[list[Any]]:
    """Starts ``openrlhf.environment_workers`` processes for each engine, spread over the machines."""
    import ray

    o = settings.openrlhf
    kind = ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(EpisodeRunner)
    # Ray answers so many calls of an asynchronous actor at a time
    options = {"max_concurrency": episodes_at_once(settings)}
    return [
        [kind.options(**options).remote(settings) for _ in range(o.environment_workers)]
        for _ in range(o.vllm_engines)
    ]
