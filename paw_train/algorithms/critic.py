"""PPO's value function: what return the policy's decision context promises.

A value stands *before* an action token: it is read from the hidden state that the token is sampled
from. At turn level a transition has one, before its first action token; at token level one before
each.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from paw_train.policies.local.guarded_step import GuardedStep, MasterWeights
from paw_train.policies.local.policy import LocalPolicy, recomputed
from paw_train.rollouts.scoring import batches
from paw_train.rollouts.tokens import TokenBatch, TokenRow
from paw_train.settings import CriticSettings


def value_count(rows: Sequence[TokenRow], level: str) -> int:
    """How many values the rows have: one a transition (``turn``), or one an action token."""
    lengths = [s.action[1] - s.action[0] for row in rows for s in row.steps]
    return sum(lengths) if level == "token" else len(lengths)


def value_places(batch: TokenBatch, level: str) -> tuple[Tensor, Tensor]:
    """(row, column), both [S, A]: the tokens whose hidden states the values are read from."""
    width = int(batch.action_mask.sum(-1).max()) if level == "token" else 1
    row, column = batch.row[:, 1 : 1 + width], batch.column[:, 1 : 1 + width]
    return row, (column - 1).clamp(min=0)


def value_loss(
    values: Tensor, batch: TokenBatch, targets: Tensor, old: Tensor, clip: float | None
) -> tuple[Tensor, Tensor]:
    """`0.5 (V - target)^2`, or the larger of it and the same with V held within ``clip`` of ``old``.

    Args:
        values: [S, A] at ``value_places(batch, ...)``.
        batch: whose ``index`` numbers its transitions.
        targets: [N, A'] of all transitions, A' >= A.
        old: [N, A'] values before the update.
        clip: how far values may move before the loss is clipped; ``None``: no limit.

    Returns:
        (sum of the loss, sum of the squared errors, without a gradient) over the batch's values.
    """
    index, width = batch.index.cpu(), values.shape[1]
    target, before = targets[index, :width].to(values), old[index, :width].to(values)
    mask = batch.action_mask[:, 1 : 1 + width]
    loss = 0.5 * (values - target) ** 2
    if clip is not None:
        held = before + (values - before).clamp(-clip, clip)
        loss = torch.maximum(loss, 0.5 * (held - target) ** 2)
    squares = (values.detach() - target) ** 2
    return torch.where(mask, loss, 0.0).sum(), torch.where(mask, squares, 0.0).sum()


class Critic:
    """A copy of the policy's decoder with a scalar value head that starts at 0, and its optimiser.

    Precision and recomputation of activations are the policy's.

    Args:
        policy: gives the decoder; not changed.
        settings: learning rate, clipping.
        level: ``turn`` or ``token``.
        micro_batch_tokens: padded tokens of one forward pass.
        max_skipped: as ``optimizer.max_skipped``.
    """

    def __init__(
        self,
        policy: LocalPolicy,
        settings: CriticSettings,
        level: str,
        micro_batch_tokens: int,
        max_skipped: int = 0,
    ) -> None:
        self.settings, self.level, self.budget = settings, level, micro_batch_tokens
        self.device, self.pad_id = policy.device, policy.pad_id
        self.decoder: Any = copy.deepcopy(policy.model.get_decoder())
        # the decoder may be frozen in the policy (LoRA); a critic learns in all of it
        self.decoder.requires_grad_(True)
        self.head = torch.nn.Linear(policy.model.config.hidden_size, 1).to(self.device)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        # the decoder keeps the policy's precision, the optimiser steps float32 copies
        self.weights = MasterWeights([*self.decoder.parameters(), *self.head.parameters()])
        self.parameters = self.weights.masters
        self.adamw = torch.optim.AdamW(
            self.parameters, lr=settings.lr, weight_decay=0.0, fused=True
        )
        self.guarded_step = GuardedStep(
            self.weights, [self.adamw], settings.max_grad_norm, max_skipped, "algorithm.critic.lr"
        )

    @torch.no_grad()
    def values(self, rows: Sequence[TokenRow], count: int) -> Tensor:
        """Values before the action tokens of ``count`` transitions.

        Args:
            rows: those of the whole update, with numbered steps.
            count: N.

        Returns:
            [N, A] on the CPU, padded on the right with 0; A is 1 at turn level.
        """
        width = max(s.action[1] - s.action[0] for row in rows for s in row.steps)
        result = torch.zeros(count, width if self.level == "token" else 1)
        for batch in map(TokenBatch.actions_only, batches(self, rows, self.budget)):
            values = self._forward(batch)
            width = values.shape[1]
            known = torch.where(batch.action_mask[:, 1 : 1 + width], values, 0.0)
            result[batch.index.cpu(), :width] = known.float().cpu()
        return result

    def step(self, rows: Sequence[TokenRow], targets: Tensor, old: Tensor) -> dict[str, float]:
        """One optimiser step on a mini-batch; returns the loss and the gradient norm.

        The loss is `0.5 * mean (V - target)^2`; with ``value_clip`` the larger of it and the same
        with V held near ``old`` (Schulman et al.'s PPO code).

        Args:
            rows: of the mini-batch.
            targets: [N, A] of the whole update.
            old: [N, A] values before the update.
        """
        total = value_count(rows, self.level)
        self.adamw.zero_grad(set_to_none=True)
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        for batch in map(TokenBatch.actions_only, batches(self, rows, self.budget)):
            loss, squares = value_loss(
                self._forward(batch), batch, targets, old, self.settings.value_clip
            )
            (loss / total).backward()
            sums += torch.stack([loss.detach(), squares])
        norm = self.guarded_step()
        loss_mean, error = (sums / total).tolist()
        return {"value_loss": loss_mean, "value_error": error, "grad_norm_value": norm}

    def _forward(self, batch: TokenBatch) -> Tensor:
        """[S, A] values before the action tokens of the batch's transitions (A = 1 at turn level)."""
        with recomputed(self.decoder):
            hidden = self.decoder(input_ids=batch.input_ids, use_cache=False).last_hidden_state
        before = hidden[value_places(batch, self.level)]
        values: Tensor = self.head(before.to(self.head.weight.dtype)).squeeze(-1)
        return values

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
