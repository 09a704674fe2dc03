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
from typing import Any
from uuid import uuid4

from paw_gym.adapters import trl
from paw_gym.wrappers import AgentInterface, make_agent_env
from paw_train.rollouts.chat import ChatFormat

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
        try:
            prompt, _ = await asyncio.to_thread(
                lambda: agent.reset(seed=seed, options={"task_id": task_id})
            )
            record = _Record(self._chat, prompt, self._room)
            # verl pads prompts to the same length and stacks them; its filter sees the rows, not this prompt
            if len(record.ids) > self._longest_prompt:
                raise ValueError(
                    f"The first prompt of task {task_id!r} takes {len(record.ids)} tokens, and "
                    f"rollout.prompt_length is {self._longest_prompt}: raise data.max_prompt_length."
                )
            await self._run(agent, record, sampling_params)
        finally:
            agent.close()
        return record.output()

    async def _run(
        self, agent: AgentInterface, record: _Record, sampling_params: dict[str, Any]
    ) -> None:
        request, over = uuid4().hex, False
        while not over and record.room > 0:
            answer = await self.server_manager.generate(
                request_id=request,
                prompt_ids=record.ids,
                sampling_params={**sampling_params, "max_tokens": record.room},
            )
            response = record.answered(answer.token_ids, answer.log_probs)
            message, reward, terminated, truncated, info = await asyncio.to_thread(
                agent.step, response
            )
            record.rewarded(reward, info)
            over = terminated or truncated
            if not over:
                record.observed(message, agent.observation_span)


class _Record:
    """The dialogue as token ids with masks."""

    def __init__(self, chat: ChatFormat, prompt: str, limit: int) -> None:
        self._chat, self._limit = chat, limit
        self._prompt = chat.first(prompt)
        self._response: list[int] = []
        self._mask: list[int] = []
        self._observation: list[int] = []
        self._logprobs: list[float] | None = []
        self._last: list[int] = []
        self._rewards: list[float] = []
        self._info: Mapping[str, Any] = {}

    @property
    def ids(self) -> list[int]:
        return [*self._prompt, *self._response]

    @property
    def room(self) -> int:
        return self._limit - len(self._response)

    def answered(self, ids: Sequence[int], logprobs: Sequence[float] | None) -> str:
        """Takes the model's tokens and returns their text."""
        self._last = list(ids)[: self.room]
        self._add(self._last, 1, 0)
        if logprobs is None:
            self._logprobs = None  # verl computes them itself
        elif self._logprobs is not None:
            start = len(self._logprobs) - len(self._last)  # an answer may be empty
            self._logprobs[start:] = list(logprobs)[: len(self._last)]
        return self._chat.decode(self._last)

    def rewarded(self, reward: float, info: Mapping[str, Any]) -> None:
        self._rewards.append(float(reward))
        self._info = info

    def observed(self, message: str, span: tuple[int, int]) -> None:
        """Takes the environment's message; ``span`` is its observation, in characters."""
        start, end = span
        self._add(self._chat.closing(self._last), 0, 0)
        self._add(self._chat.content(message[:start]), 0, 0)
        self._add(self._chat.content(message[start:end]), 0, 1)
        self._add(self._chat.content(message[end:]), 0, 0)
        self._add(self._chat.ask, 0, 0)

    def _add(self, ids: Sequence[int], sampled: int, observation: int) -> None:
        self._response += ids
        self._mask += [sampled] * len(ids)
        self._observation += [observation] * len(ids)
        if self._logprobs is not None:
            self._logprobs += [0.0] * len(ids)

    def output(self) -> AgentLoopOutput:
        """The episode in verl's form; a last message that cannot be answered is cut off at the limit."""
        kept = slice(0, self._limit)
        return AgentLoopOutput(
            prompt_ids=self._prompt,
            response_ids=self._response[kept],
            response_mask=self._mask[kept],
            response_logprobs=None if self._logprobs is None else self._logprobs[kept],
            reward_score=sum(self._rewards),
            num_turns=2 * len(self._rewards),
            metrics=AgentLoopMetrics(),
            extra_fields={
                "observation_mask": self._observation[kept],
                "turn_scores": self._rewards,
                "tool_rewards": [],
                "reward_extra_info": {
                    "success": float(self._info.get("success", False)),
                    "score": float(self._info.get("score", 0.0)),
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
    """Rows of a data set for this loop, with ``prompt``, ``agent_name``, ``task_id`` and ``env_seed``.

    Args:
        tasks: ids, or a number for the first so many; ``None``: all.
        seed: of every episode, so that the episodes of a group start the same.
        agent_kwargs: settings of ``make_agent_env``, including those of the environment.

    Raises:
        ValueError: a task does not exist.
    """
    rows = trl.task_rows(env_id, "text", tasks, seed, **agent_kwargs)
    return [{**row, "agent_name": "paw", "data_source": env_id} for row in rows]
