"""The argument and the result of a part of ``gpu_evidence.py``."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

Values = dict[str, Any]
"""measurements by name; JSON"""


@dataclass(frozen=True)
class Task:
    """One part of a run of ``gpu_evidence.py``."""

    device: str
    """``cuda`` or ``cpu``"""
    small: bool
    """sizes with which a CPU finishes in seconds: the code is exercised, the figures mean nothing"""
    folder: Path
    """the only folder that the part may write to; it is kept when the part is run again"""
    seconds: float = 600.0
    """time that the part may take; what it has by then is its result"""
    starts: Path | None = None
    """folder of warm starts that were made before"""

    @property
    def on_gpu(self) -> bool:
        """True if GPU memory and GPU time can be measured."""
        return self.device.startswith("cuda")

    def wait(self) -> None:
        """Waits until the device has finished what it was given."""
        if self.on_gpu:
            torch.cuda.synchronize()


@dataclass(frozen=True)
class Check:
    """A measurement that must lie within bounds."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None

    @property
    def passed(self) -> bool:
        """True if the value lies within its bounds; NaN never does."""
        above = self.low is None or self.value >= self.low
        below = self.high is None or self.value <= self.high
        return self.value == self.value and above and below


@dataclass
class Findings:
    """The result of a part."""

    values: Values = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """True if every check passed."""
        return all(check.passed for check in self.checks)

    def to_dict(self) -> Values:
        """The findings as JSON."""
        checks = [{**asdict(check), "passed": check.passed} for check in self.checks]
        return {"values": self.values, "checks": checks}
