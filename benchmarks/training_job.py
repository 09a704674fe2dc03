"""The job of one measured training process and its answer; read by both environments.

Only the standard library: the other trainer's environment has none of this project's packages.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

PHASES = ("rollout", "update", "step")


@dataclass(frozen=True)
class Job:
    """One run: the same for either trainer."""

    model: str
    """folder of model and tokenizer"""
    prompts: list[str]
    """``groups`` different user messages a step, step after step, each ``prompt_tokens`` long in the
    model's chat format"""
    groups: int
    group_size: int
    prompt_tokens: int
    completion_tokens: int
    """of every completion: nothing ends one early"""
    micro_rows: int
    """rows of one forward pass of the update"""
    threads: int
    lr: float = 1e-4
    warm_up: int = 1
    """first steps, not measured"""

    @property
    def rows(self) -> int:
        """Completions a step."""
        return self.groups * self.group_size

    @property
    def sampled(self) -> int:
        """Tokens that a rollout samples."""
        return self.rows * self.completion_tokens

    @property
    def trained(self) -> int:
        """Tokens of prompts and completions that an update reads."""
        return self.rows * (self.prompt_tokens + self.completion_tokens)

    @property
    def steps(self) -> int:
        """Optimiser steps, those of the warm-up included."""
        return len(self.prompts) // self.groups

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: str | Path) -> Job:
        return cls(**json.loads(Path(path).read_text(encoding="utf-8")))


@dataclass
class Seconds:
    """Time on the clock, and CPU time of the process with all its threads."""

    wall: float = 0.0
    cpu: float = 0.0

    def __sub__(self, other: Seconds) -> Seconds:
        return Seconds(self.wall - other.wall, self.cpu - other.cpu)

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.wall + other.wall, self.cpu + other.cpu)


def now() -> Seconds:
    """Readings of both clocks."""
    return Seconds(time.perf_counter(), time.process_time())


@contextmanager
def measured(total: Seconds) -> Iterator[None]:
    """Adds what the block took to ``total``."""
    start = now()
    yield
    taken = now() - start
    total.wall += taken.wall
    total.cpu += taken.cpu


@dataclass
class StepRecord:
    """One training step."""

    rollout: Seconds = field(default_factory=Seconds)
    update: Seconds = field(default_factory=Seconds)
    step: Seconds = field(default_factory=Seconds)
    """rollout, update, and what lies between"""
    prompts: str = ""
    """digest of the step's different prompts in tokens"""
    sampled: int = 0
    """tokens"""
    trained: int = 0
    """tokens of prompts and completions that the update read"""


def write_records(path: str | Path, records: Sequence[StepRecord], versions: str) -> None:
    """Writes a process's answer."""
    answer = {"versions": versions, "steps": [dataclasses.asdict(r) for r in records]}
    Path(path).write_text(json.dumps(answer), encoding="utf-8")


def read_records(path: Path) -> tuple[list[StepRecord], str]:
    """Inverse of ``write_records``."""
    answer = json.loads(path.read_text(encoding="utf-8"))
    records = [
        StepRecord(**{**step, **{phase: Seconds(**step[phase]) for phase in PHASES}})
        for step in answer["steps"]
    ]
    return records, answer["versions"]


def digest(prompts: Iterable[Sequence[int]]) -> str:
    """Names a set of prompts in tokens, whatever their order and number of copies."""
    different = sorted({tuple(int(i) for i in ids) for ids in prompts})
    return hashlib.blake2b(json.dumps(different).encode(), digest_size=8).hexdigest()
