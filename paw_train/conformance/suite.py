"""Compares a trainer with the recording: as it is, and with every fault planted."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal

from paw_gym.internals.constructors import import_named
from paw_train.conformance.checks import (
    Deviation,
    expected_rows,
    outcome_deviations,
    row_deviations,
    value_deviations,
)
from paw_train.conformance.faults import FAULTS, Borders, Fault
from paw_train.conformance.protocol import Planting, Trainer
from paw_train.conformance.recording import OBJECTIVES, known_good, load

ENGINES = {
    "local": "paw_train.conformance.engines.local:LocalTrainer",
    "openrlhf": "paw_train.conformance.engines.openrlhf:OpenRLHFTrainer",
    "trl": "paw_train.conformance.engines.trl:TRLTrainer",
}
"""``module:Class`` by the name that the command line knows"""

State = Literal["caught", "refused", "missed", "cannot occur", "not planted"]
"""the result of a fault: a check failed; the trainer itself raised an error; nothing was noticed; the trainer
cannot have it; it has to be planted in the trainer's own code, and the trainer has no ``plant`` for it"""


@dataclass(frozen=True)
class Finding:
    """The result of one planted fault."""

    fault: str
    state: State
    reported: str = ""
    """the issue that reported such a fault (``Fault.reported``)"""
    checks: list[str] = field(default_factory=list)
    """the checks that failed"""
    planted_in: str = ""
    """``trainer``: in its own code; ``border``: between its methods"""
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
    packages = ("torch", "transformers", "trl", "openrlhf", "deepspeed")
    return {name: importlib.metadata.version(name) for name in packages if name in sys.modules}


def plant(trainer: Trainer, fault: Fault) -> Finding:
    found = partial(Finding, fault.name, reported=fault.reported)
    if fault.objective not in trainer.objectives:
        reason = f"the trainer does not train the objective {fault.objective!r}"
        return found("cannot occur", message=reason)
    own: Planting = getattr(trainer, "plant", lambda name: None)(fault.name)
    if isinstance(own, str):
        return found("cannot occur", message=own)
    if own is None and fault.borders is None:
        reason = "only the trainer's own code can have it, and the trainer has no plant() for it"
        return found("not planted", message=reason)
    where = "border" if own is None else "trainer"
    borders = fault.borders if own is None and fault.borders else Borders()
    try:
        with own or nullcontext():
            deviations = compare(trainer, fault.objective, borders)
    except ValueError as error:
        return found("refused", planted_in=where, message=str(error))
    if not deviations:
        return found("missed", planted_in=where)
    checks = list(dict.fromkeys(deviation.check for deviation in deviations))
    return found("caught", checks=checks, planted_in=where, message=deviations[0].message)


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
