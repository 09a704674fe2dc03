"""The recording in the engines' own types, and rows of the protocol as token rows of an update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import torch
from torch import Tensor

from paw_gym.transition import Episode, Transition
from paw_train.algorithms.experience import Experience
from paw_train.conformance.protocol import Outcome, Row
from paw_train.conformance.recording import Objective, Recording, Role
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.rollout import Trajectory
from paw_train.rollouts.rows import append_transition
from paw_train.rollouts.tokens import Span, StepSpans, TokenRow
from paw_train.settings import AlgorithmSettings, ObjectiveSettings, WorldModelSettings

ALGORITHM = AlgorithmSettings(name="grpo")


def objective_settings(objective: Objective) -> ObjectiveSettings:
    """The loss of an objective as settings of a run."""
    return ObjectiveSettings(
        clip_low=objective.clip,
        clip_high=objective.clip,
        kl_coef=objective.kl_coef,
        aggregation="token-mean",
    )


def world_model_settings(objective: Objective) -> WorldModelSettings:
    """The world-model term of an objective as settings of a run."""
    term = objective.world_model
    if term is None:
        return WorldModelSettings.preset("off")
    return WorldModelSettings(alpha=term.alpha, rho=term.rho, coef=term.coef)


def max_return(objective: Objective) -> float:
    """R_max, which has no effect without a world model but for a warning where it is too small."""
    return objective.world_model.max_return if objective.world_model else 10.0


def trajectories(recording: Recording, objective: Objective) -> list[Trajectory]:
    """The episodes with their records, and the token rows that the rollouts write of them."""
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


def protocol_rows(rows: Sequence[TokenRow]) -> list[Row]:
    """Token rows of whole episodes, whose steps are numbered through, as rows of the protocol."""
    found, number = [], 0
    for row in rows:
        size = len(row.ids)
        roles: list[Role] = ["prompt"] * size
        transitions, logprobs = [-1] * size, [0.0] * size
        for step in row.steps:
            marks: tuple[tuple[Role, Span], ...] = (
                ("action", step.action),
                ("env_output", step.observation),
            )
            for role, (start, end) in marks:
                roles[start:end] = [role] * (end - start)
                transitions[start:end] = [number] * (end - start)
            logprobs[slice(*step.action)] = step.logprobs
            number += 1
        found.append(Row(list(row.ids), roles, transitions, logprobs))
    return found


def experience_of(rows: Sequence[Row], advantages: Tensor, weights: Tensor) -> Experience:
    """Rows of the protocol as an update reads them.

    Every run of action tokens is a step of its own; the observation of a transition belongs to the last of
    its runs in the row.
    """
    token_rows: list[TokenRow] = []
    numbers: list[int] = []
    supervised: list[bool] = []
    for row in rows:
        steps = _steps(row)
        for (number, step), (following, _) in zip(steps, [*steps[1:], (-1, None)], strict=True):
            if following == number:
                step.observation = (step.action[1],) * 2
            step.index = len(numbers)
            numbers.append(number)
            supervised.append(step.observation[1] > step.observation[0])
        token_rows.append(TokenRow(list(row.ids), [step for _, step in steps]))
    steps_of = [step for row in token_rows for step in row.steps]
    lengths = torch.tensor([[b - a for a, b in (s.action, s.observation)] for s in steps_of])
    index = torch.tensor(numbers)
    kept = torch.where(
        torch.tensor(supervised), weights[index], torch.zeros((), dtype=weights.dtype)
    )
    return Experience(token_rows, advantages[index].float(), kept.float(), lengths, {})


def _steps(row: Row) -> list[tuple[int, StepSpans]]:
    """(transition, spans) of each run of action tokens, in order."""
    actions, observations = runs(row, "action"), dict(runs(row, "env_output"))
    return [
        (
            number,
            StepSpans(span, observations.get(number, (span[1],) * 2), row.logprobs[slice(*span)]),
        )
        for number, span in actions
    ]


def runs(row: Row, role: str) -> list[tuple[int, Span]]:
    """(transition, span) of each run of tokens with a role."""
    found, at = [], 0
    marks = zip(row.roles, row.transitions, strict=True)
    for (kind, number), members in groupby(marks):
        size = len(list(members))
        if kind == role:
            found.append((number, (at, at + size)))
        at += size
    return found


def outcome_of(
    metrics: Mapping[str, float], gradients: dict[str, Tensor], objective: Objective
) -> Outcome:
    """The outcome of an optimiser step, by its metrics (``paw_train.metrics``) and gradients."""
    policy_loss = metrics["policy_loss"] + objective.kl_coef * metrics["kl"]
    return Outcome(policy_loss, metrics.get("wm_term", 0.0), gradients)
