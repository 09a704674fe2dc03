"""Gymnasium: an environment with discrete actions as one of ours, with a function that describes its view.

from paw_gym.adapters.gymnasium import FromGymnasium

env = FromGymnasium("Taxi-v4", describe, ["south", "north", "east", "west", "pick up", "drop off"],
                    "Bring the passenger to the destination.")
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from paw_gym.core import AgentDefaults, Outcome, Task
from paw_gym.generated import sampled_tasks
from paw_gym.internals.canonical import canonical, is_json
from paw_gym.replayed import ReplayedEnv


class FromGymnasium(ReplayedEnv):
    """An environment of Gymnasium with discrete actions, as text.

    Saving and restoring takes the episode's actions again, so it is exact if the environment depends only on
    the seed of its reset and its actions. To register it under an id, make a subclass whose constructor
    calls this one.

    Args:
        describe: ``describe(env, observation)``, the text that the agent sees; ``env`` is unwrapped.
        actions: a name for each action, in the order of its action space.
        possible: ``possible(env)``, the numbers of the actions that make sense now; ``None``: all.
        succeeded: ``succeeded(total_reward)``, asked when the environment itself ends an episode.
        split: ``train``, ``valid`` or ``test``; no seed of one is in another.
        env_kwargs: arguments of the environment; a part of the tasks' ids.

    Raises:
        ValueError: the action space is not discrete, there is not one name for each action, or an argument
            is known only by its address in memory.
    """

    agent = AgentDefaults(template="generic", history_length=2)
    held_out_splits = ("valid", "test")

    def __init__(
        self,
        env: str,
        describe: Callable[[Any, Any], str],
        actions: Sequence[str],
        instruction: str,
        possible: Callable[[Any], Sequence[int]] | None = None,
        succeeded: Callable[[float], bool] = lambda total_reward: total_reward > 0,
        split: str = "train",
        num_tasks: int | None = None,
        max_steps: int = 50,
        render_mode: str | None = None,
        **env_kwargs: Any,
    ) -> None:
        self._inner: Any = gym.make(env, disable_env_checker=True, **env_kwargs).unwrapped
        self._names, self._first = list(actions), _first_action(env, self._inner, actions)
        self._describe, self._possible, self._succeeded = describe, possible, succeeded
        self._total = 0.0
        named = "".join(f",{k}={_shown(env, k, env_kwargs[k])}" for k in sorted(env_kwargs))
        tasks = sampled_tasks(
            f"gymnasium/{env}{named}",
            split,
            lambda rng: rng.getrandbits(31),
            str,
            lambda task_id, seed: Task(task_id, instruction, env, seed),
            num_tasks,
        )
        super().__init__(tasks, max_steps, render_mode)

    def _open(self, task: Task, seed: int) -> Outcome:
        self._total = 0.0
        observation, _ = self._inner.reset(seed=task.data)
        return self._outcome(observation)

    def _apply(self, action: str) -> Outcome:
        if action not in self._names:
            text = f"There is no action {action[:40]!r} here."
            return Outcome(text, action_is_valid=False, admissible_actions=self._admissible())
        valid = action in self._admissible()
        number = self._first + self._names.index(action)
        observation, reward, terminated, truncated, _ = self._inner.step(number)
        self._total += float(reward)
        ends = {"terminated": bool(terminated), "truncated": bool(truncated)}
        return self._outcome(observation, reward=float(reward), action_is_valid=valid, **ends)

    def _admissible(self) -> list[str]:
        if self._possible is None:
            return list(self._names)
        return [self._names[number - self._first] for number in self._possible(self._inner)]

    def _outcome(self, observation: Any, **told: Any) -> Outcome:
        over = told.get("terminated", False) or told.get("truncated", False)
        return Outcome(
            self._describe(self._inner, observation),
            success=over and bool(self._succeeded(self._total)),
            admissible_actions=[] if over else self._admissible(),
            **told,
        )

    def close(self) -> None:
        self._inner.close()


def _first_action(env: str, inner: Any, actions: Sequence[str]) -> int:
    space = inner.action_space
    if not isinstance(space, gym.spaces.Discrete):
        raise ValueError(f"{env} has the action space {space}; expected a discrete one.")
    if len(set(actions)) != len(actions) or len(actions) != int(space.n):
        raise ValueError(
            f"{env} has {int(space.n)} actions; expected a different name for each, got {list(actions)}."
        )
    return int(np.asarray(space.start))


def _shown(env: str, name: str, value: Any) -> str:
    """A value as it is if JSON can hold it and an id can show it, else a hash of what it holds."""
    try:
        text = canonical(value)
        if is_json(value) and str(value).isprintable() and ".." not in str(value):
            return str(value)
    except TypeError as error:
        raise ValueError(
            f"The argument {name} of {env} cannot be part of a task's id: {error}."
        ) from error
    return hashlib.sha256(text.encode()).hexdigest()[:12]
