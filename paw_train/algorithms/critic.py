"""PPO's value function: what return the policy's decision context promises.

A value stands *before* an action token: it is read from the hidden state that the token is sampled
from. At turn level a transition has one, before its first action token; at token level one before
each.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paw_train.losses.batch import Batch, MiniBatchTotals
from paw_train.policies.local.guarded_step import GuardedStep, MasterWeights
from paw_train.policies.local.loading import recomputed
from paw_train.rollouts.scoring import collated, read_rows
from paw_train.rollouts.tokens import TokenRow
from paw_train.settings import CriticSettings

if TYPE_CHECKING:  # see update.py
    from paw_train.policies.local.policy import LocalPolicy


def value_count(totals: MiniBatchTotals, level: str) -> int:
    """How many values a mini-batch has: one per transition (``turn``), or per action token."""
    return totals.action_tokens if level == "token" else totals.sequences


def value_places(batch: Batch, level: str) -> Tensor:
    """[B, T] bool: tokens before which there is a value: all of an action, or its first."""
    if level == "token":
        return batch.action
    first = batch.action.clone()
    first[:, 1:] &= ~(batch.action[:, :-1] & (batch.turn[:, :-1] == batch.turn[:, 1:]))
    return first


def value_loss(values: Tensor, batch: Batch, level: str) -> Tensor:
    """The sum of `0.5 (V - target)^2` over the batch's values, of [B, T] before each token."""
    assert batch.value_target is not None
    places = value_places(batch, level).nonzero(as_tuple=True)
    value = values[places]
    return 0.5 * ((value - batch.value_target[places].to(value)) ** 2).sum()


class Critic:
    """A copy of the policy's decoder with a scalar value head that starts at 0, and its optimiser.

    Precision and recomputation of activations are the policy's.

    Args:
        policy: gives the decoder; not changed.
        level: ``turn`` or ``token``.
        micro_batch_tokens: padded tokens of one forward pass.
    """

    def __init__(
        self,
        policy: LocalPolicy,
        settings: CriticSettings,
        level: str,
        micro_batch_tokens: int,
        max_grad_norm: float = 1.0,
    ) -> None:
        self.settings, self.level, self.budget = settings, level, micro_batch_tokens
        self.device, self.pad_id = policy.device, policy.pad_id
        self.decoder: Any = copy.deepcopy(policy.model.get_decoder()).eval()
        # the decoder may be frozen in the policy (LoRA); a critic trains all of it
        self.decoder.requires_grad_(True)
        self.head = torch.nn.Linear(self.decoder.config.hidden_size, 1).to(self.device)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        # the decoder keeps the policy's precision, the optimiser steps float32 copies
        self.weights = MasterWeights([*self.decoder.parameters(), *self.head.parameters()])
        self.parameters = self.weights.masters
        self.adamw = torch.optim.AdamW(
            self.parameters, lr=settings.lr, weight_decay=0.0, fused=True
        )
        self.guarded_step = GuardedStep(
            self.weights, [self.adamw], max_grad_norm, "algorithm.critic.lr"
        )

    def values(self, rows: Sequence[TokenRow]) -> list[Tensor]:
        """Values before the action tokens of rows: for each row [T] or shorter, on the CPU.

        At turn level those before the first token of each action; 0 elsewhere.
        """
        return read_rows(self, rows, self.budget, lambda batch: self._forward(batch.actions_only()))

    def step(self, rows: Sequence[TokenRow]) -> dict[str, float]:
        """One optimiser step on a mini-batch with value targets; returns the loss and the gradient norm."""
        batches = [batch.actions_only() for batch in collated(rows, self.pad_id, self.budget)]
        total = value_count(MiniBatchTotals.count(1, batches), self.level)
        self.adamw.zero_grad(set_to_none=True)
        mean = torch.zeros((), dtype=torch.float64, device=self.device)
        for batch in (batch.to(self.device) for batch in batches):
            loss = value_loss(self._forward(batch), batch, self.level) / total
            loss.backward()
            mean += loss.detach()
        norm = self.guarded_step()
        return {"value_loss": mean.item(), "grad_norm_value": norm}

    def _forward(self, batch: Batch) -> Tensor:
        """[B, T] values before the batch's actions; 0 at tokens without a value."""
        places = value_places(batch, self.level)
        with recomputed(self.decoder):
            hidden = self.decoder(input_ids=batch.ids, use_cache=False).last_hidden_state
        before = hidden[:, :-1][places[:, 1:]]
        values: Tensor = self.head(before.to(self.head.weight.dtype)).squeeze(-1)
        return values.new_zeros(places.shape).masked_scatter(places, values)

    def state_dict(self) -> dict[str, Any]:
        """Weights, their float32 copies, and the optimiser; references to them, as in PyTorch."""
        return {
            "decoder": self.decoder.state_dict(),
            "head": self.head.state_dict(),
            "masters": self.weights.state_dict(),
            "optimizer": self.adamw.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        self.decoder.load_state_dict(state["decoder"])
        self.head.load_state_dict(state["head"])
        self.weights.load_state_dict(state["masters"])
        self.adamw.load_state_dict(state["optimizer"])
        self.adamw.param_groups[0]["lr"] = self.settings.lr  # it may change
