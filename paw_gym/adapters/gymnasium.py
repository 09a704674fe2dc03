"""Gymnasium: an environment with discrete actions as one of ours, with a function that describes its view.

from paw_gym.adapters.gymnasium import FromGymnasium

env = FromGymnasium("Taxi-v4", describe, ["south", "north", "east", "west", "pick up", "drop off"],
                    "Bring the passenger to the destination.")
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from paw_gym.core import AgentDefaults, Outcome, Task
from paw_gym.generated import sampled_tasks
from paw_gym.internals.canonical import canonical, is_json
from paw_gym.internals.tabular import TransitionTable
from paw_gym.replayed import ReplayedEnv


class FromGymnasium(ReplayedEnv):
    """An environment of Gymnasium with discrete actions, as text.

    Saving and restoring takes the episode's actions again, so it is exact if the environment depends only on
    the seed of its reset and its actions. To register it under an id, make a subclass whose constructor
    calls this one.

    An environment with a table of transitions (``P``) and the number of its state (``s``), as Gymnasium's toy
    worlds have them, comes with an expert: the policy with the greatest expected reward.

    Args:
        describe: ``describe(env, observation)``, the text that the agent sees; ``env`` is unwrapped.
        actions: a name for each action, in the order of its action space.
        possible: ``possible(env)``, the numbers of the actions that make sense now; ``None``: those that can
            change something, if there is a table of transitions, else all.
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
        table = getattr(self._inner, "P", None)  # in other environments it may be anything
        self._transitions = TransitionTable(table) if isinstance(table, Mapping) else None
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
        return self._outcome(observation, float(reward), valid, **ends)

    def _admissible(self) -> list[str]:
        if self._possible is not None:
            return [self._names[number - self._first] for number in self._possible(self._inner)]
        if (table := self._table) is not None:
            return [self._names[number] for number in table.useful(int(self._inner.s))]
        return list(self._names)

    def expert(self) -> Callable[[], str]:
        """Acts by the table of transitions, which does not say what will be sampled, if there is one."""
        return super().expert() if self._table is None else self._advice

    def _advice(self) -> str:
        self.catch_up()
        return self._names[self._require_table().best(int(self._inner.s))]

    def reference_solution(self) -> list[str]:
        """Actions that succeed, found by looking ahead at what will be sampled: a proof, not an example.

        It assumes one number a step, as Gymnasium's toy worlds sample. If another environment does otherwise,
        it gives what the expert will do; empty if that fails, too.
        """
        self.catch_up()
        table, left = self._require_table(), self.max_steps - self._steps
        here, rng = int(self._inner.s), self._inner.np_random
        plan = table.foreseen(
            here, rng, left, lambda _, total, over: over and self._succeeded(total), self._total
        )
        names = [self._names[number] for number in plan]
        return names if self._succeeds(names) else self._played_on()

    def _played_on(self) -> list[str]:
        """The expert's actions from here, in a copy; empty if it fails."""
        twin, actions, over, success = copy.deepcopy(self), list[str](), False, False
        while not over:
            actions.append(twin._advice())
            _, _, terminated, truncated, info = twin.step(actions[-1])
            over, success = terminated or truncated, bool(info["success"])
        twin.close()
        return actions if success else []

    @property
    def _table(self) -> TransitionTable | None:
        """The table, if the environment also says which state it is in (since its first reset)."""
        return self._transitions if hasattr(self._inner, "s") else None

    def _require_table(self) -> TransitionTable:
        if (table := self._table) is None:
            raise NotImplementedError(
                f"{self.env_id} has no expert: the environment has no table of transitions "
                "(attributes P and s). Implement reference_solution()."
            )
        return table

    def _outcome(
        self,
        observation: Any,
        reward: float = 0.0,
        valid: bool = True,
        terminated: bool = False,
        truncated: bool = False,
    ) -> Outcome:
        over = terminated or truncated
        return Outcome(
            self._describe(self._inner, observation),
            reward=reward,
            terminated=terminated,
            success=over and bool(self._succeeded(self._total)),
            action_is_valid=valid,
            admissible_actions=[] if over else self._admissible(),
            truncated=truncated,
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
