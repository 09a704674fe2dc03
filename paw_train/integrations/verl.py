"""verl: an agent loop that runs our environments inside its rollouts.

In a file that ``actor_rollout_ref.rollout.agent.agent_loop_config_path`` names:

    - name: paw
      _target_: paw_train.integrations.verl.EnvironmentLoop
      env_id: paw_gym/ALFWorld-v0
      env_kwargs: {split: train, max_steps: 30}

and data set rows with ``agent_name: paw``, ``task_id`` and ``env_seed`` (``task_rows`` makes them).
Interface of verl 0.9 (``AgentLoopBase``, ``AgentLoopOutput``). Token ids of responses stay as they were
sampled: nothing is tokenised again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any
from uuid import uuid4

from paw_gym.adapters import trl
from paw_gym.wrappers import AgentInterface, make_agent_env
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.rows import append_transition
from paw_train.rollouts.tokens import ACTION, OBSERVATION, TokenRow

try:
    from verl.experimental.agent_loop.agent_loop import (
        AgentLoopBase,
        AgentLoopMetrics,
        AgentLoopOutput,
    )
except ImportError as error:
    raise ImportError("This integration needs verl 0.9: pip install verl") from error

__all__ = ["EnvironmentLoop", "task_rows"]


class EnvironmentLoop(AgentLoopBase):
    """One episode of an environment as one multi-turn rollout of verl.

    Takes the arguments of ``AgentLoopBase`` and:

    Args:
        env_kwargs: settings of ``make_agent_env``, including those of the environment.

    Raises:
        ValueError: a mode other than ``conversation``.
    """

    def __init__(
        self, *args: Any, env_id: str, env_kwargs: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._env_id = env_id
        self._env_kwargs = {"mode": "conversation", **(env_kwargs or {})}
        if self._env_kwargs["mode"] != "conversation":
            raise ValueError("verl trains one sequence an episode: `mode` is 'conversation'.")
        self._chat = ChatFormat(self.tokenizer)
        self._room = int(self.rollout_config.response_length)
        self._longest_prompt = int(self.rollout_config.prompt_length)

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """Runs an episode.

        Args:
            kwargs: the row's columns; ``task_id`` and ``env_seed`` choose the episode, given as columns or
                in ``extra_info``.

        Returns:
            Token ids with ``response_mask`` 1 where the model wrote, ``reward_score`` (the sum of the
            episode's rewards) and in ``extra_fields`` ``observation_mask`` (1 on the environment's own text,
            for a world-model loss), ``turn_scores`` and ``reward_extra_info``.

        Raises:
            KeyError: the environment has no such task.
            ValueError: the row names no task, or the environment's first prompt is too long.
        """
        task_id, seed = _episode_of(kwargs)
        agent = await asyncio.to_thread(make_agent_env, self._env_id, **self._env_kwargs)
        with closing(agent):
            prompt, _ = await asyncio.to_thread(
                lambda: agent.reset(seed=seed, options={"task_id": task_id})
            )
            row = TokenRow(self._chat.first(prompt))
            # verl pads prompts to the same length and stacks them; its filter sees the rows, not this prompt
            if len(row.ids) > self._longest_prompt:
                raise ValueError(
                    f"The first prompt of task {task_id!r} takes {len(row.ids)} tokens, and "
                    f"rollout.prompt_length is {self._longest_prompt}: raise data.max_prompt_length."
                )
            return await self._run(agent, row, sampling_params)

    async def _run(
        self, agent: AgentInterface, row: TokenRow, sampling_params: dict[str, Any]
    ) -> AgentLoopOutput:
        """Continues a row, which holds the first prompt, until the episode or the room for it ends."""
        request, prompt, limit = uuid4().hex, list(row.ids), len(row.ids) + self._room
        rewards: list[float] = []
        info: Mapping[str, Any] = {}
        over = unscored = False
        while not over and len(row.ids) < limit:
            room = limit - len(row.ids)
            answer = await self.server_manager.generate(
                request_id=request,
                prompt_ids=list(row.ids),
                sampling_params={**sampling_params, "max_tokens": room},
            )
            ids = list(answer.token_ids)[:room]
            unscored = unscored or answer.log_probs is None
            logprobs = [0.0] * len(ids) if unscored else list(answer.log_probs)[:room]
            message, reward, terminated, truncated, info = await asyncio.to_thread(
                agent.step, self._chat.decode(ids)
            )
            turn, over = len(rewards), terminated or truncated
            rewards.append(float(reward))
            if over:
                row.append(ids, ACTION, turn, logprobs)
            else:
                start, end = agent.observation_span
                before, shown, after = message[:start], message[start:end], message[end:]
                append_transition(row, self._chat, ids, logprobs, shown, turn, before, after)
        kept = slice(len(prompt), limit)  # a last message that cannot be answered is cut off
        return AgentLoopOutput(
            prompt_ids=prompt,
            response_ids=row.ids[kept],
            response_mask=[int(role == ACTION) for role in row.role[kept]],
            response_logprobs=None if unscored else row.logprob[kept],  # verl computes them itself
            reward_score=sum(rewards),
            num_turns=2 * len(rewards),
            metrics=AgentLoopMetrics(),
            extra_fields={
                "observation_mask": [int(role == OBSERVATION) for role in row.role[kept]],
                "turn_scores": rewards,
                "tool_rewards": [],
                "reward_extra_info": {
                    "success": float(info.get("success", False)),
                    "score": float(info.get("score", 0.0)),
                },
            },
        )


def _episode_of(columns: Mapping[str, Any]) -> tuple[str, int]:
    # a data set fills rows that lack a column with nulls
    given = {name: value for name, value in columns.items() if value is not None}
    named = {**(columns.get("extra_info") or {}), **given}
    if named.get("task_id") is None:
        raise ValueError(
            "A row names no task: give the data set a column task_id, as task_rows of "
            "paw_train.integrations.verl does."
        )
    return str(named["task_id"]), int(named.get("env_seed") or 0)


def task_rows(
    env_id: str, tasks: int | Sequence[str] | None = None, seed: int = 0, **agent_kwargs: Any
) -> list[dict[str, Any]]:
    """Rows of a data set for this loop: those of ``paw_gym.adapters.trl.task_rows`` with ``agent_name``."""
    rows = trl.task_rows(env_id, "text", tasks, seed, **agent_kwargs)
    return [{**row, "agent_name": "paw", "data_source": env_id} for row in rows]
