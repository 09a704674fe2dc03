"""The checks: what a trainer computed from the recording is compared with known-good values by stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paw_train.conformance.protocol import Outcome, Row
from paw_train.conformance.recording import KnownGood, Objective, Recording, Role

CHECKS = ("tokens", "log-probabilities", "advantages", "weights", "loss", "gradients")
"""in the order of the data flow"""
TOLERANCE = {
    "log-probabilities": 1e-4,
    "advantages": 2e-4,
    "weights": 1e-5,
    "loss": 2e-4,
    "gradients": 1e-3,
}
"""largest difference, relative to the known-good value; for advantages and gradients in norm. The gap between
float32 and float64 is below a tenth of each"""


@dataclass(frozen=True)
class Deviation:
    """A check that failed."""

    check: str
    """one of ``CHECKS``"""
    message: str
    """what was expected and what was found"""


def expected_rows(recording: Recording, objective: Objective) -> list[Row]:
    """One row for each episode, made from the recorded spans."""
    rows = []
    for episode in recording.episodes:
        size = len(episode.ids)
        roles: list[Role] = ["prompt"] * size
        transitions, logprobs = [-1] * size, [0.0] * size
        for turn in episode.turns:
            marks: tuple[tuple[Role, tuple[int, int]], ...] = (
                ("action", turn.action_tokens),
                ("env_output", turn.observation_tokens),
            )
            for role, (start, end) in marks:
                roles[start:end] = [role] * (end - start)
                transitions[start:end] = [turn.number] * (end - start)
            logprobs[slice(*turn.action_tokens)] = turn.logprobs[objective.name]
        rows.append(Row(list(episode.ids), roles, transitions, logprobs))
    return rows


def row_deviations(found: Sequence[Row], expected: Sequence[Row]) -> list[Deviation]:
    """Differences in tokens with a role, each with all that precedes it, and in log-probabilities."""
    ours, theirs = list(_learned(found)), list(_learned(expected))
    have, wanted = (Counter(place for place, _ in side) for side in (ours, theirs))
    deviations = []
    missing, extra = wanted - have, have - wanted
    if missing or extra:
        message = (
            f"{missing.total()} of {wanted.total()} tokens are missing, and {extra.total()} are there that "
            "should not be, or follow another context"
        )
        deviations.append(Deviation("tokens", message))
    known = {ids: value for (role, _, ids), value in theirs if role == "action"}
    gaps = [abs(v - known[ids]) for (role, _, ids), v in ours if role == "action" and ids in known]
    if max(gaps, default=0.0) > TOLERANCE["log-probabilities"]:
        message = f"a token's log-probability at sampling differs by {max(gaps):.4g} nats"
        deviations.append(Deviation("log-probabilities", message))
    return deviations


_Place = tuple[str, int, tuple[int, ...]]
"""role, transition, all ids up to the token and the token itself"""


def _learned(rows: Sequence[Row]) -> Iterator[tuple[_Place, float]]:
    """The tokens that have a role, and their log-probabilities."""
    for row in rows:
        marks = zip(row.roles, row.transitions, row.logprobs, strict=True)
        for t, (role, transition, logprob) in enumerate(marks):
            if role != "prompt":
                yield (role, transition, tuple(row.ids[: t + 1])), logprob


def value_deviations(check: str, found: Tensor, expected: Tensor) -> list[Deviation]:
    """The difference of two vectors, as a Euclidean norm relative to that of the expected one."""
    if found.shape != expected.shape:
        message = f"expected {len(expected)} values, got shape {tuple(found.shape)}"
        return [Deviation(check, message)]
    size = float(expected.double().norm())
    gap = float((found.detach().double().cpu() - expected.double()).norm())
    if gap <= TOLERANCE[check] * max(size, 1e-12):
        return []
    return [Deviation(check, f"differ by {gap / max(size, 1e-12):.3g} of their norm")]


def outcome_deviations(found: Outcome, expected: KnownGood) -> list[Deviation]:
    deviations = []
    scale = abs(expected.policy_loss) + abs(expected.world_model_loss)
    for name in ("policy_loss", "world_model_loss"):
        ours, theirs = getattr(found, name), getattr(expected, name)
        if not abs(ours - theirs) <= TOLERANCE["loss"] * scale:
            message = f"{name.replace('_', ' ')}: expected {theirs:.6g}, got {ours:.6g}"
            deviations.append(Deviation("loss", message))
    missing = expected.gradients.keys() ^ found.gradients.keys()
    if missing:
        message = f"parameters with a gradient on one side only: {', '.join(sorted(missing)[:3])}"
        return [*deviations, Deviation("gradients", message)]
    names = sorted(expected.gradients)
    ours, theirs = (
        torch.cat([side.gradients[name].detach().double().cpu().flatten() for name in names])
        for side in (found, expected)
    )
    return deviations + value_deviations("gradients", ours, theirs)
