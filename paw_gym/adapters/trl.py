"""TRL: our environments as tools of ``GRPOTrainer``, and tasks as rows of its data sets.

    from paw_gym.adapters.trl import environment_factory, task_rows

    trainer = GRPOTrainer(
        model,
        train_dataset=Dataset.from_list(task_rows("paw_gym/ALFWorld-v0", style="tools", tasks=100)),
        environment_factory=environment_factory("paw_gym/ALFWorld-v0"),
        args=config,
    )

Interface as of TRL 1.16 (``environment_factory``, which TRL calls experimental): an instance for each
rollout, whose ``reset`` gets the columns of the row, whose public methods are the tools, and whose
``get_reward`` scores the episode. The model needs a chat template with tool calls. For models without
one, ``paw_train.integrations.trl.TextRollouts`` runs the same rows as a dialogue. Needs neither TRL nor
torch to be imported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, Literal

from paw_gym.wrappers import AgentInterface, make_agent_env

__all__ = ["ToolEnvironment", "environment_factory", "task_rows"]

OVER = "The episode is over. Answer without calling a tool."


class ToolEnvironment:
    """One episode at a time of an environment, as ``GRPOTrainer`` uses it. Public methods are tools.

    Args:
        agent_kwargs: settings of ``make_agent_env``, including those of the environment.
    """

    def __init__(self, env_id: str, agent_kwargs: dict[str, Any]) -> None:
        self._agent: AgentInterface = make_agent_env(
            env_id, **{"mode": "conversation", **agent_kwargs}
        )
        self._reward, self._over = 0.0, True
        self._failure: Exception | None = None

    def reset(self, task_id: str | None = None, env_seed: int | None = 0, **columns: Any) -> str:
        """Starts an episode; TRL appends what it returns to the user's message.

        Args:
            task_id: the task; ``None``: the environment chooses one by the seed.
            env_seed: that of the episode; ``None``, with which a data set fills missing columns, is 0.

        Raises:
            KeyError: there is no such task.
        """
        options = {} if task_id is None else {"task_id": task_id}
        _, info = self._agent.reset(seed=int(env_seed or 0), options=options)
        self._reward, self._over, self._failure = 0.0, False, None
        return f"{info['instruction']}\n\n{self._shown(self._agent.observation, info)}"

    def act(self, action: str) -> str:
        """
        Carry out one action in the environment.

        Args:
            action: The action, as plain text.

        Returns:
            What the environment shows after the action.
        """
        if self._over:
            return OVER
        response = self._agent.response_for(str(action))  # a model may write a number
        try:
            _, reward, terminated, truncated, info = self._agent.step(response)
        except Exception as error:  # TRL shows it to the model as the tool's answer, and goes on
            self._failure = error
            raise
        self._reward += reward
        self._over = terminated or truncated
        return self._shown(info["transition"].next_observation, info)

    def get_reward(self) -> float:
        """The sum of the episode's rewards.

        Raises:
            RuntimeError: the environment raised during the episode; its error is the cause.
        """
        if self._failure is not None:
            task_id = self._agent.text_env.task.id
            raise RuntimeError(
                f"{self._agent.env_id} failed on task {task_id!r}: {self._failure}"
            ) from self._failure
        return self._reward

    def _shown(self, observation: str, info: Mapping[str, Any]) -> str:
        text = self._agent.text_env.prompt_observation(observation)
        offered = None if self._over else info["admissible_actions"]
        return f"{text}\nAdmissible actions: {', '.join(offered)}" if offered else text


def environment_factory(env_id: str, **agent_kwargs: Any) -> Callable[[], ToolEnvironment]:
    """The argument ``environment_factory`` of ``GRPOTrainer``.

    Args:
        agent_kwargs: settings of ``make_agent_env``, including those of the environment.
    """
    return functools.partial(ToolEnvironment, env_id, agent_kwargs)


def task_rows(
    env_id: str,
    style: Literal["tools", "text"],
    tasks: int | Sequence[str] | None = None,
    seed: int = 0,
    **agent_kwargs: Any,
) -> list[dict[str, Any]]:
    """Rows of a data set: ``prompt``, ``task_id`` and ``env_seed``.

    Args:
        style: ``tools`` for ``environment_factory``, which fills the prompt when an episode starts;
            ``text`` for ``TextRollouts``, which finds the task by the prompt.
        tasks: ids, or N for the first N, at least 1; ``None``: all.
        seed: that of every episode with tools, so that the episodes of a group start the same. TRL shows
            a ``rollout_func`` only the prompts: ``TextRollouts`` takes a seed of its own.
        agent_kwargs: settings of ``make_agent_env``, including those of the environment.

    Raises:
        ValueError: there is no such style, a task does not exist, or ``tasks`` is below 1.
    """
    if style not in ("tools", "text"):
        raise ValueError(f"`style` is 'tools' or 'text', got {style!r}.")
    if isinstance(tasks, int) and tasks < 1:
        raise ValueError(f"`tasks` is {tasks}; expected 1 or more, ids of tasks, or None for all.")
    with closing(make_agent_env(env_id, **agent_kwargs)) as agent:
        known = list(agent.tasks.ids)
    chosen = known[:tasks] if tasks is None or isinstance(tasks, int) else list(tasks)
    if missing := sorted(set(chosen) - set(known)):
        raise ValueError(f"{env_id} has no task {missing[0]!r}.")
    return [
        {
            "prompt": [{"role": "user", "content": task_id if style == "text" else ""}],
            "task_id": task_id,
            "env_seed": seed,
        }
        for task_id in chosen
    ]
