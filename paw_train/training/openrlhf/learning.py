"""What a rank computes in one pass: the loss of the local engine, on the logits of OpenRLHF's actor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from paw_train.algorithms.critic import value_loss, value_places
from paw_train.algorithms.update import TrainingDivergedError, loss_inputs
from paw_train.losses.lm_head_logprobs import TokenScores, logits_scores
from paw_train.losses.objective import LossOutput, ObjectiveSettings, combined_loss, merge_metrics
from paw_train.rollouts.scoring import batch_logprobs
from paw_train.rollouts.tokens import collate
from paw_train.settings import WorldModelSettings
from paw_train.training.openrlhf.update_cut import Pass, token_values

Forward = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(input ids [B, T], attention mask [B, T], places [S] in the flattened ids) -> logits [S, V] there, at
temperature 1"""


def pass_loss(
    part: Pass,
    forward: Forward,
    objective: ObjectiveSettings,
    world_model: WorldModelSettings,
    temperature: float,
    pad_id: int,
    device: torch.device,
) -> LossOutput:
    """The share of the mini-batch's loss that one pass has.

    Args:
        part: rows, what they are worth, and the totals of the mini-batch.
        forward: runs the actor.
        objective: settings of the loss.
        world_model: settings of the world-model term.
        temperature: of the rollout.
        pad_id: pads rows on the right.
        device: where the actor is.
    """
    batch = collate(part.experience.rows, pad_id).to(device)

    def score(ids: Tensor, tokens: Tensor, heat: Tensor, entropies: int) -> TokenScores:
        logits = forward(ids, batch.attention_mask, tokens - 1)
        return logits_scores(logits, ids.flatten()[tokens], heat, entropies)

    logprobs, entropy = batch_logprobs(score, batch, temperature, objective.entropy_coef > 0)
    reference = None
    if objective.kl_in == "loss" and part.ref_logprobs is not None:
        known = token_values(part.ref_logprobs, batch.input_ids.shape)
        reference = batch.gather(known.to(logprobs))
    inputs = loss_inputs(batch, part.experience, reference, entropy)
    return combined_loss(logprobs, inputs, part.totals, objective, world_model)


ValueForward = Callable[[Tensor, Tensor], Tensor]
"""(input ids [B, T], attention mask [B, T]) -> values [B, T - 1], that at t before token t + 1"""


def pass_value_loss(
    part: Pass,
    forward: ValueForward,
    level: str,
    clip: float | None,
    pad_id: int,
    device: torch.device,
) -> LossOutput:
    """The share of the mini-batch's value loss that one pass has.

    Args:
        part: rows, their value targets, and the number of values of the mini-batch.
        forward: runs the critic.
        level: ``turn`` or ``token``.
        clip: how far values may move before the loss is cut; ``None``: no limit.
        pad_id: pads rows on the right.
        device: where the critic is.
    """
    e = part.experience
    assert e.value_targets is not None and e.old_values is not None
    batch = collate(e.rows, pad_id).to(device)
    values = forward(batch.input_ids, batch.attention_mask)[value_places(batch, level)]
    loss, squares = value_loss(values.float(), batch, e.value_targets, e.old_values, clip)
    loss = loss / part.values
    metrics = {"value_loss": loss.detach(), "value_error": squares / part.values}
    return LossOutput(loss, loss, None, metrics)


def learn(
    passes: Sequence[Pass],
    loss_of: Callable[[Pass], LossOutput],
    backward: Callable[[Tensor], None],
    step: Callable[[], float],
    gathered: Callable[[list[dict[str, Tensor]]], list[dict[str, Tensor]]],
    ranks: int,
) -> list[dict[str, float]]:
    """All passes of one rank in one update.

    Args:
        passes: of this rank.
        loss_of: runs the actor on a pass.
        backward: adds the gradient of a loss; gradients are **averaged** over ranks when the
            optimiser steps.
        step: an optimiser step; returns the gradient's norm before clipping.
        gathered: (metrics of this rank) -> metrics of all ranks.
        ranks: that take part.

    Returns:
        The metrics of each optimiser step, of the whole mini-batch, equal on every rank.

    Raises:
        TrainingDivergedError: a loss or gradient is not finite.
    """
    steps: list[dict[str, float]] = []
    own: list[dict[str, Tensor]] = []
    for part in passes:
        output = loss_of(part)
        own.append({**output.metrics, "loss": output.loss.detach()})
        # the ranks' gradients are averaged, while their losses are shares of one sum
        backward(output.loss * ranks)
        if not part.last:
            continue
        metrics = merge_metrics(gathered(own))
        own = []
        if not math.isfinite(metrics["loss"]):
            raise TrainingDivergedError(_DIVERGED.format("loss", metrics["loss"]))
        norm = step()
        if not math.isfinite(norm):
            raise TrainingDivergedError(_DIVERGED.format("gradient norm", norm))
        steps.append({**metrics, "grad_norm": norm})
    return steps


_DIVERGED = (
    "The {} of an optimiser step is {}. The last checkpoint is from before; resume from it with a lower "
    "optimizer.lr."
)
