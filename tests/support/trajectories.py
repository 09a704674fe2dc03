"""Trajectories made up from random tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from paw_gym.transition import Episode, Transition
from paw_train.rollouts.rollout import Trajectory
from paw_train.rollouts.tokens import ACTION, OBSERVATION, TokenRow

EPISODES = ((0, 1, 10.0), (0, 3, 0.0), (1, 2, 0.0), (1, 2, 10.0))


def made_up(
    conversation: bool,
    episodes: Sequence[tuple[int, int, float]] = EPISODES,
    tokens: range = range(5, 60),
) -> list[Any]:
    """Episodes of (group, steps, last reward), each one row of tokens in conversation mode."""
    generator = torch.Generator().manual_seed(1)

    def some(n: int) -> list[int]:
        return torch.randint(tokens.start, tokens.stop, (n,), generator=generator).tolist()

    made = []
    for number, (group, steps, reward) in enumerate(episodes):
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
            ids, said = (
                ("env", episode.task_id, episode.episode_id),
                ("", f"place {step % 2}", "", ""),
            )
            ended = (reward * last, "", last, False, True)
            episode.transitions.append(Transition(*ids, step, *said, *ended))
        made.append(Trajectory(episode, rows))
    return made
