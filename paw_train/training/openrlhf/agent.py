"""The file that ``--train.agent_func_path`` names: OpenRLHF loads it in each vLLM engine."""

from __future__ import annotations

from typing import Any

from openrlhf.utils.agent import AgentExecutorBase

from paw_train.rollouts.rollout import Trajectory
from paw_train.training.openrlhf.episode_runner import EpisodeRunner
from paw_train.training.openrlhf.episodes import GroupLabel
from paw_train.training.openrlhf.worker_settings import worker_settings


class AgentExecutor(AgentExecutorBase):
    """One episode of our environments for each sample that OpenRLHF asks for."""

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
        """Runs the next episode of the group that the label describes.

        Returns:
            What OpenRLHF expects of an executor, and the whole ``trajectory``.
        """
        group = GroupLabel.from_json(label)
        trajectory = await self.runner.run(group, llm_engine, hf_tokenizer)
        return {**_summary(trajectory, group.validation), "prompt": prompt, "label": label}


def _summary(trajectory: Trajectory, validation: bool) -> dict[str, Any]:
    episode, rows = trajectory.episode, trajectory.rows
    failed = episode.error is not None or not episode.transitions
    # validations are of success, training of return
    reward = float(episode.success) if validation else float(episode.total_reward)
    return {
        "images": None,
        "mm_train_inputs": None,
        "reward": 0.0 if failed else reward,
        "scores": 0.0 if failed else float(episode.success),
        "observation_tokens": list(rows[-1].ids) if rows else [0, 0],
        "action_ranges": [step.action for step in rows[-1].steps] if rows else [],
        "rollout_log_probs": None,
        "truncated": bool(episode.transitions and episode.transitions[-1].truncated),
        "extra_logs": {},
        "trajectory": trajectory,
    }
