"""Trajectories made up from random tokens."""

from __future__ import annotations

from typing import Any

import torch

from paw_gym.transition import Episode, Transition
from paw_train.rollouts.rollout import Trajectory
from paw_train.rollouts.tokens import ACTION, OBSERVATION, TokenRow


def made_up(conversation: bool) -> list[Any]:
    """Two groups of two episodes of 1 to 3 steps, in conversation or window mode."""
    generator = torch.Generator().manual_seed(1)

    def some(n: int) -> list[int]:
        return torch.randint(5, 60, (n,), generator=generator).tolist()

    made = []
    for number, (group, steps, reward) in enumerate(
        [(0, 1, 10.0), (0, 3, 0.0), (1, 2, 0.0), (1, 2, 10.0)]
    ):
        episode = Episode("env", f"task{group}", f"e{number}", group=group)
        rows: list[TokenRow] = []
        for step in range(steps):
            if not conversation or not rows:
                rows.append(TokenRow(some(3 + number)))
            row = rows[-1]
            action, bridge, observation = some(2 + step), some(1), some(4 - step)
            logprobs = (-torch.rand(len(action), generator=generator) * 3).tolist()
            row.append(action, ACTION, step, logprobs)
            row.append(bridge)
            row.append(observation, OBSERVATION, step)
            last = step + 1 == steps
            episode.transitions.append(
                Transition(
                    "env",
                    f"task{group}",
                    f"e{number}",
                    step,
                    "",
                    f"place {step % 2}",
                    "",
                    "",
                    reward * last,
                    "",
                    last,
                    False,
                    True,
                )
            )
        made.append(Trajectory(episode, rows))
    return made
