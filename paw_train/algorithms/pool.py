"""The pool of an update: the transitions of its trajectories, numbered, beside their token rows.

A vector [A] has an entry for each action token of the pool, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paw_gym.transition import Transition
from paw_train.rollouts.rollout import Trajectory
from paw_train.rollouts.tokens import ACTION, OBSERVATION, TokenRow


@dataclass(slots=True)
class Pool:
    """The pool P of one update: N transitions of E episodes in G rollout groups, numbered in order.

    Episodes that failed with an error of their environment are not in it.
    """

    episodes: list[Trajectory]
    """[E] as they were rolled out"""
    episode: Tensor
    """[N] episode of each transition, 0..E-1"""
    group: Tensor
    """[E] rollout group of each episode, 0..G-1"""
    rewards: Tensor
    """[N] float64, as the environment's agent interface gave them"""
    rows: list[TokenRow]
    """token rows of the transitions, in order; ``turn`` is the number of the transition"""
    token_role: Tensor
    """[M] role of each of the rows' tokens"""
    token_turn: Tensor
    """[M] transition of each of these tokens, -1 for none"""

    @property
    def turn(self) -> Tensor:
        """[A] transition of each action token."""
        return self.token_turn[self.token_role == ACTION]

    def at_actions(self, values: Sequence[Sequence[float] | Tensor]) -> Tensor:
        """[A] values at the action tokens, from each row's [T] values, or those up to its last action."""
        whole = np.zeros(len(self.token_role), np.float32)
        start = 0
        for row, own in zip(self.rows, values, strict=True):
            whole[start : start + len(own)] = own
            start += len(row.ids)
        return torch.from_numpy(whole)[self.token_role == ACTION]

    def by_row(self, values: Tensor, role: int = ACTION) -> Iterator[list[float]]:
        """For each row [T], values of the tokens with a role, in order; 0 elsewhere."""
        whole = torch.zeros(len(self.token_role), dtype=values.dtype)
        whole[self.token_role == role] = values
        yield from map(Tensor.tolist, whole.split([len(row.ids) for row in self.rows]))

    @property
    def logprob(self) -> Tensor:
        """[A] log-probabilities that the rows hold."""
        return self.at_actions([row.logprob for row in self.rows])

    @property
    def lengths(self) -> Tensor:
        """[N] tokens of each action."""
        return torch.bincount(self.turn, minlength=len(self.rewards))

    @property
    def first_tokens(self) -> Tensor:
        """[N] number of the first token of each action, or of what follows an empty one, among theirs."""
        return (self.lengths.cumsum(0) - self.lengths).clamp(max=len(self.turn) - 1)

    @property
    def observation_lengths(self) -> Tensor:
        """[N] tokens of each next observation that a loss may read."""
        turns = self.token_turn[self.token_role == OBSERVATION]
        return torch.bincount(turns, minlength=len(self.rewards))

    def action_means(self, values: Tensor) -> Tensor:
        """[N] means of [A] values over each action; 0 for an empty one."""
        sums = torch.zeros(len(self.rewards), dtype=values.dtype)
        return sums.index_add_(0, self.turn, values) / self.lengths.clamp(min=1)

    @property
    def starts(self) -> Tensor:
        """[E] number of the first transition of each episode."""
        return torch.searchsorted(self.episode, torch.arange(len(self.episodes)))

    @property
    def anchors(self) -> list[str]:
        """[N] the raw observation that each action answered: GiGPO's anchor states.

        Raises:
            ValueError: a transition lacks its observation.
        """
        for t in self.transitions:
            if t.observation is None:
                raise ValueError(
                    f"GiGPO groups steps by their observation, and step {t.step} of episode "
                    f"{t.episode_id!r} was recorded without one (Transition.observation is None). Run the "
                    "episodes through AgentInterface, which records it, or train with another algorithm."
                )
        return [t.observation or "" for t in self.transitions]

    @property
    def penalties(self) -> Tensor:
        """[N] float64, the part of each reward that is the penalty of an invalid response."""
        found = [t.info.get("penalty", 0.0) for t in self.transitions]
        return torch.tensor(found, dtype=torch.float64)

    @property
    def malformed(self) -> Tensor:
        """[N] bool: the response could not be read, so what follows is a complaint about its form."""
        found = [bool(t.info.get("malformed")) for t in self.transitions]
        return torch.tensor(found, dtype=torch.bool)

    @property
    def transitions(self) -> list[Transition]:
        """[N] the records."""
        return [t for e in self.episodes for t in e.episode.transitions]

    @property
    def returns(self) -> Tensor:
        """[E] float64."""
        return self.per_episode(self.rewards)

    @property
    def earned(self) -> Tensor:
        """[E] float64, returns without the penalties of invalid responses."""
        paths = [e.episode.transitions for e in self.episodes]
        sums = [sum(t.reward - t.info.get("penalty", 0.0) for t in path) for path in paths]
        # adding a penalty and taking it off again leaves rounding errors: equal returns stay equal
        return torch.tensor(sums, dtype=torch.float64).round(decimals=9)

    def per_episode(self, values: Tensor) -> Tensor:
        """[E] sums of the [N] values."""
        return torch.zeros(len(self.episodes), dtype=values.dtype).index_add_(
            0, self.episode, values
        )


def collect(trajectories: Sequence[Trajectory]) -> Pool:
    """The pool of an update's trajectories, all groups; failed episodes are left out.

    Raises:
        ValueError: no episode is left; the first traceback is in the message.
    """
    good = [t for t in trajectories if t.episode.error is None and t.episode.transitions]
    if not good:
        raise ValueError(
            "Every episode of the rollout failed in its environment; the first traceback:\n"
            + str(trajectories[0].episode.error if trajectories else "no episodes")
        )
    numbers = {g: i for i, g in enumerate(sorted({t.episode.group for t in good}))}
    rewards = [t.reward for e in good for t in e.episode.transitions]
    rows: list[TokenRow] = []
    first = 0
    for e in good:
        rows += [row.numbered(first) for row in e.rows]
        first += len(e.episode.transitions)
    return Pool(
        good,
        torch.tensor([i for i, e in enumerate(good) for _ in e.episode.transitions]),
        torch.tensor([numbers[t.episode.group] for t in good]),
        torch.tensor(rewards, dtype=torch.float64),
        rows,
        torch.from_numpy(np.array([role for row in rows for role in row.role])),
        torch.from_numpy(np.array([turn for row in rows for turn in row.turn])),
    )


def informative_groups(trajectories: Sequence[Trajectory]) -> set[int]:
    """Groups whose episodes differ in return: the ones that move a group-relative policy (DAPO)."""
    good = [t.episode for t in trajectories if t.episode.error is None]
    return differing((e.group, e.total_reward) for e in good)


def differing(values: Iterable[tuple[int, float]]) -> set[int]:
    """The groups in which values differ, of pairs (group, value)."""
    found: dict[int, set[float]] = {}
    for group, value in values:
        found.setdefault(group, set()).add(value)
    return {group for group, own in found.items() if len(own) > 1}
