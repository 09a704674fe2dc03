"""The catalogue of metrics: what engines write is in it, and everything that shows metrics reads it."""

from __future__ import annotations

import pytest
import torch

from paw_train.losses.objective import merge_metrics
from paw_train.metrics import METRICS
from paw_train.reporting.run.curves import SECTIONS


def test_every_metric_has_a_chart_and_a_meaning() -> None:
    drawn = {key for section in SECTIONS for curve in section.curves for key, _ in curve.keys}
    assert drawn == set(METRICS)
    assert [m.name for m in METRICS.values() if not m.meaning or not m.title] == []


def test_metrics_merge_as_the_catalogue_says() -> None:
    parts = [
        {"ratio_max": torch.tensor(1.5), "ratio_min": torch.tensor(0.5), "kl": torch.tensor(0.1)},
        {"ratio_max": torch.tensor(1.2), "ratio_min": torch.tensor(0.9), "kl": torch.tensor(0.2)},
    ]
    merged = merge_metrics(parts)
    assert merged == pytest.approx({"ratio_max": 1.5, "ratio_min": 0.5, "kl": 0.3})
