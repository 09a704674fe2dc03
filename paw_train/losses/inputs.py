"""The inputs of one micro-batch's loss: settings, rows, and the mini-batch's divisors."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from paw_train.losses.tensor_inputs import FloatArray, as_mask


@dataclass(frozen=True)
class MicroBatch:
    """The rows of one forward pass, without the model's own output.

    Raises:
        ValueError: shapes differ, the two masks overlap, or a mask marks a row's first token.
    """

    action_mask: Tensor
    """[B, T] 1 on the response's tokens"""
    advantages: Tensor
    """[B], or [B, T] where each token has its own"""
    old_logprobs: Tensor
    """[B, T] log-probabilities under the policy that the update started from (or that sampled)"""
    observation_mask: Tensor | None = None
    """[B, T] 1 on the next observation's tokens; None when it was not appended"""
    ref_logprobs: Tensor | None = None
    """[B, T] under the reference policy; needed when kl_coef > 0 and the KL is in the loss"""
    wm_weights: Tensor | None = None
    """[B] `w_i` of `algorithms.paw.wm_weights`, for the whole update; needed when the world model is
    on"""
    horizon: Tensor | None = None
    """[B, T] j on the tokens of `o_{t+j}`, 0 elsewhere; needed for more than one step ahead"""
    entropy: Tensor | None = None
    """[B, T] full-vocabulary entropy at the action tokens, with gradient; needed when
    entropy_coef > 0"""
    importance: Tensor | None = None
    """[B, T] weights of the action tokens' surrogate, `truncated_importance`; None: 1, where the policy of
    `old_logprobs` is the one that sampled"""

    def __post_init__(self) -> None:
        action = as_mask(self.action_mask, "action_mask", like=self.old_logprobs)
        object.__setattr__(self, "action_mask", action)
        masks = action
        if self.observation_mask is not None:
            observation = as_mask(self.observation_mask, "observation_mask", like=action)
            object.__setattr__(self, "observation_mask", observation)
            if (action & observation).any():
                raise ValueError(
                    "`action_mask` and `observation_mask` share a token: build them apart."
                )
            masks = action | observation
        if masks[:, :1].any():
            raise ValueError("a mask marks the first token of a row, which nothing predicts.")
        by_token = self.advantages.shape == action.shape
        per_row = () if by_token else (("advantages", self.advantages),)
        for name, values in (*per_row, ("wm_weights", self.wm_weights)):
            if values is not None and values.shape != action.shape[:1]:
                raise ValueError(
                    f"`{name}` must have one entry for each of the {len(action)} rows, "
                    f"got shape {tuple(values.shape)}."
                )


@dataclass(frozen=True)
class MiniBatchTotals:
    """The divisors of a mini-batch's sums; the same for each of its micro-batches."""

    minibatches: int
    """M, optimiser steps of the update"""
    sequences: int
    """B, rows of the mini-batch"""
    action_tokens: int
    observation_tokens: int = 0
    supervised: int = 0
    """rows with a world-model weight other than 0"""
    supervised_tokens: int = 0
    """observation tokens in those rows"""

    @classmethod
    def count(
        cls,
        minibatches: int,
        action_lengths: FloatArray,
        observation_lengths: FloatArray | None = None,
        wm_weights: FloatArray | None = None,
    ) -> Self:
        """From the lengths, in tokens, of the mini-batch's B responses and next observations.

        Args:
            minibatches: M.
            action_lengths: [B].
            observation_lengths: [B], or None when observations are not appended.
            wm_weights: [B], or None when the world model is off.
        """
        actions = torch.as_tensor(action_lengths)
        none = torch.zeros(len(actions), dtype=torch.long)
        observations = none if observation_lengths is None else torch.as_tensor(observation_lengths)
        supervised = (none if wm_weights is None else torch.as_tensor(wm_weights)).cpu() != 0
        return cls(
            minibatches=minibatches,
            sequences=len(actions),
            action_tokens=int(actions.sum()),
            observation_tokens=int(observations.sum()),
            supervised=int(supervised.sum()),
            supervised_tokens=int(observations.cpu()[supervised].sum()),
        )
