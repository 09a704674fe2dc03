"""Compares a trainer with the recording: as it is, and with every fault planted."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from paw_gym.internals.constructors import import_named
from paw_train.conformance.faults import FAULTS, Borders, Fault
from paw_train.conformance.protocol import Trainer
from paw_train.conformance.recording import (
    OBJECTIVES,
    KnownGood,
    Objective,
    Outcome,
    Recording,
    known_good,
    load,
)
from paw_train.rollouts.tokens import ACTION, CONTEXT, OBSERVATION, TokenRow

ENGINES = {
    "local": "paw_train.conformance.engines.local:LocalTrainer",
    "openrlhf": "paw_train.conformance.engines.openrlhf:OpenRLHFTrainer",
}
"""``module:Class`` by the name that the command line knows"""
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

State = Literal["caught", "refused", "missed", "cannot occur", "not planted"]
"""the result of a fault: a check failed; the trainer itself raised an error; nothing was noticed; the trainer
does not train its objective; only the trainer's own code can have it, and its ``plant`` has no such fault"""


@dataclass(frozen=True)
class Deviation:
    """A check that failed."""

    check: str
    """one of ``CHECKS``"""
    message: str
    """what was expected and what was found"""


@dataclass(frozen=True)
class Finding:
    """The result of one planted fault."""

    fault: str
    state: State
    reported: str = ""
    """the issue that reported such a fault (``Fault.reported``)"""
    checks: list[str] = field(default_factory=list)
    """the checks that failed"""
    message: str = ""
    """the reason, the error, or the first deviation"""


@dataclass(frozen=True)
class Result:
    """The result of a trainer."""

    trainer: str
    deviations: dict[str, list[Deviation]]
    """by objective: where the trainer, without a fault, differs from the known-good values"""
    findings: list[Finding]
    seconds: float
    """of the whole run, on the clock"""
    versions: dict[str, str]
    """of the packages that do the computing"""

    @property
    def conforms(self) -> bool:
        return not any(self.deviations.values())

    def count(self, *states: State) -> int:
        """The number of faults that ended in one of these states."""
        return sum(finding.state in states for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "conforms": self.conforms}


def trainer_of(name: str) -> Trainer:
    """The trainer that the command line names: one of ``ENGINES``, or ``module:Class``."""
    path = ENGINES.get(name, name)
    module, _, attribute = path.partition(":")
    if not attribute:
        known = ", ".join(ENGINES)
        raise ValueError(
            f"There is no engine {name!r}: expected one of {known}, or module:Class for your own."
        )
    load = importlib.import_module if name in ENGINES else import_named
    found = getattr(load(module), attribute, None)
    if found is None:
        raise ValueError(f"The module {module} has no class {attribute!r}.")
    trainer = found()
    if not isinstance(trainer, Trainer):
        raise ValueError(
            f"{path} is not a trainer: it needs objectives, token_batch, advantages, world_model_weights "
            "and loss_and_gradients (paw_train.conformance.protocol.Trainer)."
        )
    return trainer


def run(
    trainer: Trainer,
    name: str,
    faults: Sequence[str] = tuple(FAULTS),
    progress: Callable[[str], None] = lambda text: None,
) -> Result:
    """Checks a trainer as it is, then with each fault."""
    started = time.perf_counter()
    deviations = {}
    for objective in trainer.objectives:
        progress(f"{name} as it is, objective {objective}")
        deviations[objective] = compare(trainer, objective, Borders())
    findings = []
    for fault in faults:
        progress(f"{name} with the fault {fault}")
        findings.append(plant(trainer, FAULTS[fault]))
    return Result(name, deviations, findings, round(time.perf_counter() - started, 1), _versions())


def _versions() -> dict[str, str]:
    """Versions of the packages that were imported."""
    packages = ("torch", "transformers", "openrlhf", "deepspeed")
    return {name: importlib.metadata.version(name) for name in packages if name in sys.modules}


def plant(trainer: Trainer, fault: Fault) -> Finding:
    found = partial(Finding, fault.name, reported=fault.reported)
    if fault.objective not in trainer.objectives:
        reason = f"the trainer does not train the objective {fault.objective!r}"
        return found("cannot occur", message=reason)
    own: AbstractContextManager[None] | None = getattr(trainer, "plant", lambda _: None)(fault.name)
    if own is None and fault.borders is None:
        reason = "only the trainer's own code can have it, and the trainer has no plant() for it"
        return found("not planted", message=reason)
    borders = fault.borders if own is None and fault.borders else Borders()
    try:
        with own or nullcontext():
            deviations = compare(trainer, fault.objective, borders)
    except ValueError as error:
        return found("refused", message=str(error))
    if not deviations:
        return found("missed")
    checks = list(dict.fromkeys(deviation.check for deviation in deviations))
    return found("caught", checks=checks, message=deviations[0].message)


def compare(trainer: Trainer, objective: str, borders: Borders) -> list[Deviation]:
    """Deviations from the known-good values, stage by stage."""
    recording, given, wanted = load(), OBJECTIVES[objective], known_good(objective)
    changed, asked = borders.recording(recording, given), borders.objective(given)
    rows = borders.rows(changed, trainer.token_batch(changed, asked))
    advantages = borders.advantages(changed, trainer.advantages(changed, asked))
    weights = borders.weights(changed, asked, trainer.world_model_weights(changed, asked))
    outcome = borders.compute(
        lambda part: trainer.loss_and_gradients(changed, part, advantages, weights, asked), rows
    )
    return [
        *row_deviations(rows, expected_rows(recording, given)),
        *value_deviations("advantages", advantages, wanted.advantages),
        *value_deviations("weights", weights, wanted.world_model_weights),
        *outcome_deviations(outcome, wanted),
    ]


# --- the checks ------------------------------------------------------------------------------------------


def expected_rows(recording: Recording, objective: Objective) -> list[TokenRow]:
    """One row for each episode, made from the recorded spans."""
    rows = []
    for episode in recording.episodes:
        row = TokenRow(list(episode.ids))
        for turn in episode.turns:
            marks = (ACTION, turn.action_tokens), (OBSERVATION, turn.observation_tokens)
            for role, (start, end) in marks:
                row.role[start:end] = [role] * (end - start)
                row.turn[start:end] = [turn.number] * (end - start)
            row.logprob[slice(*turn.action_tokens)] = turn.logprobs[objective.name]
        rows.append(row)
    return rows


def row_deviations(found: Sequence[TokenRow], expected: Sequence[TokenRow]) -> list[Deviation]:
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
    known = {ids: value for (role, _, ids), value in theirs if role == ACTION}
    gaps = [abs(v - known[ids]) for (role, _, ids), v in ours if role == ACTION and ids in known]
    if max(gaps, default=0.0) > TOLERANCE["log-probabilities"]:
        message = f"a token's log-probability at sampling differs by {max(gaps):.4g} nats"
        deviations.append(Deviation("log-probabilities", message))
    return deviations


_Place = tuple[int, int, tuple[int, ...]]
"""role, transition, all ids up to the token and the token itself"""


def _learned(rows: Sequence[TokenRow]) -> Iterator[tuple[_Place, float]]:
    """The tokens that have a role, and their log-probabilities."""
    for row in rows:
        marks = zip(row.role, row.turn, row.logprob, strict=True)
        for t, (role, transition, logprob) in enumerate(marks):
            if role != CONTEXT:
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
