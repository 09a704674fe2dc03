"""The inputs of one micro-batch's loss: token rows as tensors, and the mini-batch's divisors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor


@dataclass(slots=True)
class Batch:
    """B rows of T tokens, padded on the right; column t of every tensor belongs to token t."""

    ids: Tensor
    """[B, T]"""
    attention_mask: Tensor
    """[B, T] 1 on tokens, 0 on padding"""
    action: Tensor
    """[B, T] bool: sampled by the policy"""
    observation: Tensor
    """[B, T] bool: of a next observation whose likelihood is measured"""
    turn: Tensor
    """[B, T] number of the transition that a token belongs to, -1 for none"""
    share: Tensor
    """[B, T] 1 / number of the tokens that have a token's role in its transition"""
    logprob: Tensor
    """[B, T] log-probabilities of actions under the policy that the update started from (or that sampled), in
    nats; 0 elsewhere"""
    advantage: Tensor | None = None
    """[B, T] factor of each action token's surrogate"""
    wm_weight: Tensor | None = None
    """[B, T] factor of each token's world-model loss, for the whole update (Eq. 8, 10, 11)"""
    placebo_ids: Tensor | None = None
    """[B, T] ids with another transition's observations"""
    value_target: Tensor | None = None
    """[B, T] what a critic is to predict before an action token"""
    ref_logprob: Tensor | None = None
    """[B, T] log-probabilities of actions under the reference policy"""

    @property
    def scored(self) -> Tensor:
        """[B, T] bool: tokens whose log-probability is read."""
        used = self.action | self.observation
        return used if self.wm_weight is None else used | (self.wm_weight != 0)

    @property
    def supervised(self) -> Tensor:
        """[B, T] bool: observation tokens with a world-model weight other than 0."""
        if self.wm_weight is None:
            return torch.zeros_like(self.observation)
        return self.observation & (self.wm_weight != 0)

    def actions_only(self) -> Self:
        """The batch up to its last action, with nothing but actions to score."""
        last = self.action.any(0).nonzero()
        end = int(last.max()) + 1 if len(last) else 2
        short = self.each(lambda values: values[:, :end])
        short.observation, short.wm_weight = torch.zeros_like(short.observation), None
        return short

    def to(self, device: torch.device) -> Self:
        """The batch on another device."""
        return self.each(lambda values: values.to(device))

    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The batch with every tensor changed."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        changed: dict[str, Any] = {n: change(v) for n, v in given.items() if v is not None}
        return replace(self, **changed)


@dataclass(frozen=True)
class MiniBatchTotals:
    """The divisors of a mini-batch's sums; the same for each of its micro-batches."""

    minibatches: int
    """M, optimiser steps of the update"""
    sequences: int
    """transitions with an action in the mini-batch"""
    action_tokens: int
    observation_tokens: int
    supervised: int
    """transitions whose next observation has a world-model weight other than 0"""
    supervised_tokens: int
    """tokens of those observations"""

    @classmethod
    def count(cls, minibatches: int, batches: Sequence[Batch]) -> Self:
        """Counts over all batches that a mini-batch is split into; each transition is in one of them."""
        totals = [0] * 5
        for batch in batches:
            supervised = batch.supervised
            found = (
                round(float(batch.share[batch.action].sum())),  # those of a transition sum to 1
                int(batch.action.sum()),
                int(batch.observation.sum()),
                round(float(batch.share[supervised].sum())),
                int(supervised.sum()),
            )
            totals = [a + b for a, b in zip(totals, found, strict=True)]
        return cls(minibatches, *totals)
