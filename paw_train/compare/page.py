"""The page of a comparison: table, learning curves with bands, settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paw_train.compare.analysis import Comparison
from paw_train.compare.grid import Grid
from paw_train.compare.results import CellResult


def write_page(
    page: Path, curves: Path, grid: Grid, comparison: Comparison, cells: Sequence[CellResult]
) -> None:
    """Writes the page and the picture."""
