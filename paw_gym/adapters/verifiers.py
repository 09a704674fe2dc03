"""verifiers: our environments as a task set and an environment that its evaluators and trainers run.

    vf-eval paw_gym_verifiers --env.taskset.env-id paw_gym/ALFWorld-v0 --env.taskset.tasks 20 ...

Interface as of verifiers 0.4 (``verifiers.v1``): a ``Taskset`` yields typed tasks, and an ``Env`` plays
one with an agent. The environment here is the agent's user: it opens with the first prompt, answers
every reply with the next turn, and its rewards are the reward of the trace. verifiers finds a plug-in
by the name of a top-level module: an installed paw-gym has ``paw_gym_verifiers``, the file of that name here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from paw_gym.wrappers import AgentInterface, make_agent_env

try:
    import verifiers.v1 as vf
except ImportError as error:
    raise ImportError("This adapter needs verifiers 0.4: pip install verifiers") from error

__all__ = ["PawEnv", "PawEnvConfig", "PawTask", "PawTaskset", "PawTasksetConfig"]


class PawTasksetConfig(vf.TasksetConfig):
    """The environment and its tasks."""

    env_id: str = "paw_gym/ALFWorld-v0"
    """a registered id"""
    env_kwargs: dict[str, Any] = {}
    """settings of ``make_agent_env``, including those of the environment"""
    tasks: int | None = None
    """use the first N; ``None``: all"""
    seed: int = 0
    """seeds every episode"""


class PawData(vf.TaskData):
    """A task's fields, on the wire."""

    env_id: str
    env_kwargs: dict[str, Any]
    task_id: str
    seed: int


class PawTask(vf.Task[PawData, vf.State, vf.TaskConfig]):
    """One of our tasks. It has no prompt: the environment opens the exchange."""

    @property
    def key(self) -> str:
        return f"{self.data.env_id}#{self.data.task_id}"


class PawTaskset(vf.Taskset[PawTask, PawTasksetConfig]):
    """The tasks of one of our environments, in their order."""

    def load(self) -> Iterator[PawTask]:
        config = self.config
        with closing(make_agent_env(config.env_id, **config.env_kwargs)) as agent:
            ids = list(agent.tasks.ids)[: config.tasks]
        about = config.model_dump(include={"env_id", "env_kwargs", "seed"})
        for task_id in ids:
            data = PawData(id=task_id, name=task_id, task_id=task_id, **about)
            yield PawTask(data, config.task)


class PawEnvConfig(vf.EnvConfig):
    """The seats: one agent, under the name that the framework's examples use."""

    player: vf.AgentConfig = vf.AgentConfig()


class PawEnv(vf.Env[PawEnvConfig]):
    """Plays one of our episodes with an agent: the environment is its user.

    The sum of the rewards is the reward ``episode_reward``; ``success`` and ``score`` are metrics, and
    ``trace.info["transitions"]`` holds the episode as it is recorded elsewhere.
    """

    async def run(self, task: PawTask, agents: Any) -> None:
        data = task.data
        # an environment may compute for a while: other episodes go on in the meantime
        agent: AgentInterface = await asyncio.to_thread(
            make_agent_env, data.env_id, **{"mode": "conversation", **data.env_kwargs}
        )
        with closing(agent):
            prompt, _ = await asyncio.to_thread(
                lambda: agent.reset(seed=data.seed, options={"task_id": data.task_id})
            )
            episode = agent.new_episode()
            async with agents.player.interaction(task) as interaction:
                segment = await interaction.turn(prompt)
                while not segment.terminated:
                    prompt, _, terminated, truncated, info = await asyncio.to_thread(
                        agent.step, segment.last_reply
                    )
                    episode.transitions.append(info["transition"])
                    if terminated or truncated:
                        break
                    segment = await interaction.turn(prompt)
        trace = interaction.trace
        trace.record_reward("episode_reward", episode.total_reward)
        trace.record_metric("success", float(episode.success))
        trace.record_metric("score", episode.score)
        trace.info["transitions"] = [t.to_dict() for t in episode.transitions]
