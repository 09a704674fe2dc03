"""The recording in the engines' own types, rows with what they are worth, and faults in shared code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from paw_gym.transition import Episode, Transition
from paw_train.algorithms import group_statistics
from paw_train.algorithms.estimator import UpdateView
from paw_train.algorithms.group_statistics import deviation
from paw_train.conformance.recording import TRACE_DECAY, Objective, Outcome, Recording
from paw_train.losses import objective as losses
from paw_train.losses.batch import Batch, MiniBatchTotals
from paw_train.losses.objective import Surrogate
from paw_train.rollouts import scoring
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.rollout import Trajectory
from paw_train.rollouts.rows import append_transition
from paw_train.rollouts.tokens import ACTION, OBSERVATION, TokenRow
from paw_train.settings import (
    AlgorithmSettings,
    ObjectiveSettings,
    RolloutSettings,
    Settings,
    WorldModelSettings,
)


def settings_of(recording: Recording, objective: Objective, **more: Any) -> Settings:
    """An objective as settings of a run."""
    term = objective.world_model
    return Settings(
        algorithm=AlgorithmSettings(
            name=objective.algorithm, normalize=True, group_baseline=False, lam=TRACE_DECAY
        ),
        objective=ObjectiveSettings(
            clip_low=objective.clip,
            clip_high=objective.clip,
            kl_coef=objective.kl_coef,
            aggregation=objective.aggregation,
        ),
        world_model=WorldModelSettings.preset("off")
        if term is None
        else WorldModelSettings(alpha=term.alpha, rho=term.rho, coef=term.coef),
        rollout=RolloutSettings(temperature=objective.temperature, group_size=recording.group_size),
        **more,
    )


def max_return(objective: Objective) -> float:
    """R_max; without a world model its only effect is a warning if it is too small."""
    return objective.world_model.max_return if objective.world_model else 10.0


def trajectories(recording: Recording, objective: Objective) -> list[Trajectory]:
    """The episodes with their records, and the token rows that rollouts make from them."""
    chat = ChatFormat(recording.tokenizer)
    found = []
    for number, recorded in enumerate(recording.episodes):
        row = TokenRow(chat.first(recorded.turns[0].prompt))
        episode = Episode(
            recording.environment,
            recorded.task,
            f"episode-{number}",
            instruction=recorded.instruction,
            group=recorded.group,
            context_mode="conversation",
        )
        for step, turn in enumerate(recorded.turns):
            start, end = turn.observation
            append_transition(
                row,
                chat,
                turn.response_ids,
                turn.logprobs[objective.name],
                turn.message[start:end],
                step,
                turn.message[:start],
                turn.message[end:],
            )
            episode.transitions.append(
                Transition(
                    env_id=recording.environment,
                    task_id=recorded.task,
                    episode_id=episode.episode_id,
                    step=step,
                    prompt=turn.prompt,
                    observation=None,
                    response=turn.response,
                    action=turn.response,
                    reward=turn.reward,
                    next_observation=turn.message[start:end],
                    terminated=turn.terminated,
                    truncated=turn.truncated,
                    action_is_valid=turn.penalty == 0,
                    info={"success": turn.success, "malformed": turn.malformed},
                )
            )
        found.append(Trajectory(episode, [row]))
    return found


def weighed(rows: Sequence[TokenRow], advantages: Tensor, weights: Tensor) -> list[TokenRow]:
    """Rows with the advantage and the world-model weight of each token, as an update reads them."""
    worth, factors = advantages.tolist(), weights.tolist()
    found = []
    for row in rows:
        tokens = list(zip(row.role, row.turn, strict=True))
        lengths = Counter(number for role, number in tokens if role == OBSERVATION)
        advantage = [worth[n] if role == ACTION else 0.0 for role, n in tokens]
        weight = [factors[n] / lengths[n] if role == OBSERVATION else 0.0 for role, n in tokens]
        found.append(replace(row, advantage=advantage, wm_weight=weight))
    return found


def outcome_of(
    metrics: Mapping[str, float], gradients: dict[str, Tensor], objective: Objective
) -> Outcome:
    """The outcome of an optimiser step, from its metrics (``paw_train.metrics``) and gradients."""
    policy_loss = metrics["policy_loss"] + objective.kl_coef * metrics["kl"]
    return Outcome(policy_loss, metrics.get("wm_term", 0.0), gradients)


# --- faults in the code that the local engine and the OpenRLHF engine share -------------------------------


def planted(fault: str) -> Any:
    """A context in which the shared code has a fault of ``faults.FAULTS``; ``None`` if it cannot have it."""
    places: dict[str, tuple[Any, str, Any]] = {
        "clip_on_wrong_side": (losses, "clipped_surrogate", _larger_of_both),
        "k1_for_k3": (
            losses,
            "k3_divergence",
            lambda logp, ref, mask: torch.where(mask, logp - ref, 0.0),
        ),
        "return_reset_at_observation": (UpdateView, "scores", property(lambda v: v.rewards)),
        "population_deviation": (
            group_statistics,
            "deviation",
            lambda values, counts, *rest: deviation(values, counts + 1, *rest),
        ),
        "padding_in_mean": (MiniBatchTotals, "count", _counting_padding(MiniBatchTotals.count)),
        "attention_over_padding": (scoring, "collate", _padded_left(scoring.collate)),
    }
    return patch.object(*places[fault]) if fault in places else None


def _larger_of_both(
    logp: Tensor, old: Tensor, values: Tensor, mask: Tensor, low: float, high: float
) -> Surrogate:
    ratio = torch.where(mask, logp - old, 0.0).exp()
    free, held = -ratio * values, -ratio.clamp(1 - low, 1 + high) * values
    loss = torch.where(mask, torch.minimum(free, held), 0.0)
    return Surrogate(loss, ratio, (held < free) & mask)


def _counting_padding(count: Callable[..., MiniBatchTotals]) -> Any:
    def changed(minibatches: int, batches: Sequence[Batch]) -> MiniBatchTotals:
        totals = count(minibatches, batches)
        return replace(totals, action_tokens=sum(batch.action.numel() for batch in batches))

    return changed


def _padded_left(collate: Callable[[Sequence[TokenRow], int], Batch]) -> Any:
    """Rows padded on the left, with a mask that does not exclude the padding."""

    def changed(rows: Sequence[TokenRow], pad_id: int) -> Batch:
        batch = collate(rows, pad_id)
        padding = [batch.ids.shape[1] - len(row.ids) for row in rows]

        def rolled(values: Tensor) -> Tensor:
            return torch.stack([own.roll(by) for own, by in zip(values, padding, strict=True)])

        moved = batch.each(rolled)
        return replace(moved, attention_mask=torch.ones_like(batch.attention_mask))

    return changed
