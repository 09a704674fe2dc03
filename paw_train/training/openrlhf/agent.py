"""The file that ``--train.agent_func_path`` names: OpenRLHF loads it in each vLLM engine."""

from __future__ import annotations

from typing import Any

from openrlhf.utils.agent import AgentExecutorBase

from paw_train.training.openrlhf.episode_runner import EpisodeRunner
from paw_train.training.openrlhf.episodes import GroupLabel, response
from paw_train.training.openrlhf.worker_settings import worker_settings


class AgentExecutor(AgentExecutorBase):
    """Runs episodes in the engine's own process (``openrlhf.environment_workers=0``)."""

    def __init__(self) -> None:
        self.runner = EpisodeRunner(worker_settings())

    async def execute(
        self,
        prompt: str,
        label: str,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        llm_engine: Any,
        images: Any = None,
    ) -> dict[str, Any]:
        """Runs the episode that the label describes."""
        episode = GroupLabel.from_json(label)
        trajectory = await self.runner.run(episode, llm_engine)
        return response(trajectory, prompt, episode)
