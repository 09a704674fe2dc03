"""Worlds whose states and actions are numbers: what their table of transitions tells about them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np

Table = Mapping[int, Mapping[int, Sequence[tuple[float, int, float, bool]]]]
"""by state and action: (probability, next state, reward, whether the episode ends), as Gymnasium's toy
worlds have it in ``P``"""


def reward_alone(state: int, reward: float, over: bool) -> float:
    """The reward of a step."""
    return reward


class TransitionTable:
    """The dynamics of a finite world, and what follows from them: which actions do anything, which are best.

    Args:
        worth: ``worth(state, reward, over)``, what a step to a state is worth to the planner. By default its
            reward.
        discount: factor for what comes a step later, below 1.
    """

    def __init__(
        self,
        table: Table,
        worth: Callable[[int, float, bool], float] = reward_alone,
        discount: float = 0.99,
    ) -> None:
        self.table, self._worth, self._discount = table, worth, discount

    def useful(self, state: int) -> list[int]:
        """The actions that can change the state, or end the episode."""
        return [
            action
            for action, outcomes in self.table[state].items()
            if any(after != state or over for _, after, _, over in outcomes)
        ]

    def sample(self, state: int, action: int, uniform: float) -> tuple[int, float, bool]:
        """(next state, reward, whether the episode ends), for a number from [0, 1).

        Samples as Gymnasium's toy worlds do: the first outcome at which the summed probability is above it.
        """
        outcomes = self.table[state][action]
        bounds = np.cumsum([probability for probability, *_ in outcomes])
        _, after, reward, over = outcomes[int(np.argmax(bounds > uniform))]
        return int(after), float(reward), bool(over)

    def best(self, state: int) -> int:
        """The useful action of the greatest value; if none is useful, any of the greatest value."""
        choices = self.useful(state) or list(self.table[state])
        return max(choices, key=lambda action: self._value(state, action, self.values))

    def foreseen(
        self,
        state: int,
        rng: np.random.Generator,
        steps: int,
        reached: Callable[[int, float, bool], bool],
        gained: float = 0.0,
    ) -> list[int]:
        """The shortest series of actions to an end, given the numbers that will be sampled.

        Args:
            rng: gives one number a step; it is copied, not advanced.
            reached: ``reached(state, total, over)``, whether a step to a state is the end that is wanted;
                ``total`` sums the rewards of the path, which is the first one found to each state.
            gained: the rewards so far.

        Returns:
            The actions; empty if none lead there.
        """
        ahead = copy.deepcopy(rng)
        layer: dict[int, tuple[list[int], float]] = {state: ([], gained)}
        for _ in range(steps):
            uniform = float(ahead.random())
            following: dict[int, tuple[list[int], float]] = {}
            for now, (path, before) in layer.items():
                for action in self.useful(now):
                    after, reward, over = self.sample(now, action, uniform)
                    total = before + reward
                    if reached(after, total, over):
                        return [*path, action]
                    if not over:
                        following.setdefault(after, ([*path, action], total))
            layer = following
        return []

    @cached_property
    def values(self) -> list[float]:
        """For each state, the expected discounted worth of the best actions from there (value iteration)."""
        values, change = [0.0] * len(self.table), 1.0
        while change > 1e-6:
            new = [
                max(self._value(s, a, values) for a in self.table[s]) for s in range(len(values))
            ]
            change = max(abs(a - b) for a, b in zip(values, new, strict=True))
            values = new
        return values

    def _value(self, state: int, action: int, values: Sequence[float]) -> float:
        total = 0.0
        for probability, after, reward, over in self.table[state][action]:
            later = 0.0 if over else self._discount * values[after]
            total += probability * (self._worth(after, reward, over) + later)
        return total
