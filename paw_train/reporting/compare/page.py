"""The results of a comparison as tables for the terminal and for Markdown, and as a page with curves."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from paw_gym.internals.files import write_text
from paw_gym.internals.printable import markdown_text
from paw_train.reporting.compare.analysis import Comparison, Difference, Secondary
from paw_train.reporting.compare.grid import Grid
from paw_train.reporting.compare.results import RunResult
from paw_train.reporting.pages import render

Interval = tuple[float, float] | None

EXPLANATION = (
    "Success at the end of a run in %, mean over seeds. 95 %: t interval over seeds, on this panel of tasks. "
    "Difference: in points, paired by seed, with its own t interval; p: paired t test, in brackets "
    "adjusted for the number of differences (Holm). Seeds and tasks: bootstrap over both, for what holds "
    "on other tasks too."
)
COLUMNS = (
    *("arm", "seeds", "before", "after", "95 %"),
    *("difference", "95 %", "p (Holm)", "seeds and tasks"),
)
SECONDARY_COLUMNS = ("arm", "mean", "95 %", "difference", "95 %", "p")
SECONDARY_EXPLANATION = (
    "Means over seeds with t intervals, differences paired by seed; p is not adjusted. The success "
    "above decides; these explain it."
)


def arm_rows(comparison: Comparison) -> list[list[str]]:
    return [
        [
            arm.arm,
            str(len(arm.seeds)),
            "–" if arm.before is None else percent(arm.before),
            percent(arm.mean),
            interval(arm.ci95),
            *_difference_cells(comparison.difference(arm.arm)),
        ]
        for arm in comparison.arms
    ]


def _difference_cells(difference: Difference | None) -> list[str]:
    if difference is None:
        return ["", "", "", ""]
    p, adjusted = difference.p_value, difference.p_holm
    return [
        f"{signed(difference.mean)} to {difference.to}",
        interval(difference.ci95, signed),
        "–" if p is None or adjusted is None else f"{_p(p)} ({_p(adjusted)})",
        interval(difference.ci95_tasks, signed),
    ]


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def signed(value: float) -> str:
    return f"{100 * value:+.1f}"


def interval(ends: Interval, text: Any = percent) -> str:
    return "–" if ends is None else f"{text(ends[0])} to {text(ends[1])}"


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


_WIDE = 118
"""width in characters that all columns need"""
_NARROW = (0, 1, 3, 5, 6, 7)
"""columns of a narrow terminal; table.md has them all"""


def rich_table(comparison: Comparison, width: int) -> Table:
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    chosen = _NARROW if width < _WIDE else range(len(COLUMNS))
    for i in chosen:
        table.add_column(COLUMNS[i], justify="left" if i == 0 else "right", no_wrap=True)
    for row in arm_rows(comparison):
        table.add_row(*(Text(row[i]) for i in chosen))
    return table


def markdown(comparison: Comparison) -> str:
    """The table with its explanation, for a document."""
    lines = [*_table(COLUMNS, arm_rows(comparison)), "", EXPLANATION, *comparison.notes]
    for name, rows in secondary_rows(comparison.secondary).items():
        lines += ["", f"**{heading(name)}**", "", *_table(SECONDARY_COLUMNS, rows)]
    if comparison.secondary:
        lines += ["", SECONDARY_EXPLANATION]
    return "\n".join(lines) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = [":---", *["---:"] * (len(head) - 1)]
    return [_line(head), "| " + " | ".join(rule) + " |", *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(markdown_text, cells)) + " |"


def secondary_rows(found: Sequence[Secondary]) -> dict[str, list[list[str]]]:
    """The rows of the further measurements, by the measurement's name."""
    rows: dict[str, list[list[str]]] = {}
    for s in found:
        share = s.measurement.endswith("%")
        plain, change = (percent, signed) if share else ("{:.3f}".format, "{:+.3f}".format)
        cells = [s.arm, plain(s.mean), interval(s.ci95, plain), "", "", ""]
        if s.difference is not None:
            cells[3] = f"{change(s.difference)} to {s.to}"
            cells[4] = interval(s.difference_ci95, change)
        if s.p_value is not None:
            cells[5] = _p(s.p_value)
        rows.setdefault(s.measurement, []).append(cells)
    return rows


def heading(text: str) -> str:
    return text[:1].upper() + text[1:]


# --- the page --------------------------------------------------------------------------------------

MEASUREMENTS = (
    ("validation", "Success on the selection panel", True),
    ("success_rate", "Success in training rollouts", True),
    ("obs_nll", "Observation NLL, nats per token", False),
    ("invalid_rate", "Invalid responses", True),
)
"""measurements shown as curves: key, title, and whether it is a share"""
RANGE_NOTE = (
    "Lines: mean over the seeds that both arms have; areas: from the lowest to the highest seed."
)


def charts_of(
    baselines: Mapping[str, str], runs: Sequence[RunResult], key: str, share: bool
) -> list[dict[str, Any]]:
    """Charts on one y axis: an arm's curve and its baseline's over common seeds, or its own alone."""
    seeds = {arm: {c.seed for c in runs if c.arm == arm} for arm in baselines}
    found: dict[str, list[dict[str, Any]]] = {}
    for arm, other in baselines.items():
        common = seeds[arm] & seeds[other] or seeds[arm]
        shared = [c for c in runs if c.seed in common]
        own = _series(arm, shared, key, 0)
        if own and arm != other:
            found[arm] = [*_series(other, shared, key, 1), *own]
    bands = [
        end for lines in found.values() for line in lines for ends in line["band"] for end in ends
    ]
    holds = [min(bands), max(bands)] if bands else []
    unit = "share" if share else ""
    return [
        {"name": key, "title": arm, "unit": unit, "holds": holds, "series": lines}
        for arm, lines in found.items()
    ]


def _series(arm: str, runs: Sequence[RunResult], key: str, colour: int) -> list[dict[str, Any]]:
    """The mean of a measurement over an arm's seeds, with their range; empty if there is none."""
    lines = [points for c in runs if c.arm == arm and (points := _points(c, key))]
    xs = sorted({x for line in lines for x in line})
    known = [[line[x] for line in lines if x in line] for x in xs]
    series = {
        "label": arm,
        "colour": colour,
        "updates": xs,
        "values": [float(np.mean(values)) for values in known],
        "band": [[min(values), max(values)] for values in known],
    }
    return [series] if lines else []


def _points(run: RunResult, key: str) -> dict[float, float]:
    """Values by number of finished updates."""
    if key == "validation":
        return {float(update): rate for update, rate, *_ in run.validation}
    values = run.metrics.get(key, [])
    return {float(i): v for i, v in enumerate(values, 1) if v is not None}


_ROW = 24.0


class _Axis:
    """A horizontal axis of the picture, from ``low`` at pixel ``start`` to ``high`` at ``end``."""

    def __init__(self, low: float, high: float, start: float, end: float, sign: str) -> None:
        self.low, self.high, self.start, self.end = low, high, start, end
        self.middle = (start + end) / 2
        # about five round numbers
        raw = (high - low) / 5
        power = 10.0 ** np.floor(np.log10(raw))
        step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
        counts = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
        values = [round(float(count * step), 6) for count in counts]
        self.ticks = [(self.at(v), f"{100 * v:{sign if v else ''}g}") for v in values]

    def at(self, value: float) -> float:
        """The pixel of a value; a value beyond an end is placed at that end."""
        return float(np.interp(value, (self.low, self.high), (self.start, self.end)))


def forest_picture(comparison: Comparison) -> str:
    """Each arm's success with its interval, and its difference with its interval, one row for each arm."""
    height = 92 + _ROW * len(comparison.arms)
    rates = [r for a in comparison.arms for r in (*a.rates, *(a.ci95 or ()))]
    ends = [v for d in comparison.differences for v in (*d.differences, *(d.ci95 or ()))]
    reach = min(1.0, 1.08 * max(0.02, *map(abs, ends or [0.1])))
    return render(
        "differences.svg",
        comparison=comparison,
        height=height,
        base=height - 34,
        row=_ROW,
        left=_Axis(max(0.0, min(rates) - 0.03), min(1.0, max(rates) + 0.03), 190, 500, ""),
        right=_Axis(-reach, reach, 560, 880, "+"),
    )


def write_page(folder: Path, grid: Grid, comparison: Comparison, runs: Sequence[RunResult]) -> None:
    forest = forest_picture(comparison)
    write_text(folder / "differences.svg", forest + "\n")
    arms = grid.baselines()
    curves = [
        {"title": title, "across": "update", "charts": charts_of(arms, runs, key, share)}
        for key, title, share in MEASUREMENTS
    ]
    page = render(
        "compare.html",
        title=grid.name,
        description=grid.description,
        tiles=[
            ("recipe", Path(grid.recipe).stem),
            ("arms", str(len(comparison.arms))),
            ("seeds", str(max(len(arm.seeds) for arm in comparison.arms))),
            ("runs", str(sum(len(arm.seeds) for arm in comparison.arms))),
            ("tasks of the panel", str(comparison.arms[0].tasks)),
        ],
        columns=COLUMNS,
        rows=arm_rows(comparison),
        explanation=EXPLANATION,
        comparison=comparison,
        forest=forest,
        range_note=RANGE_NOTE,
        sections=[section for section in curves if section["charts"]],
        secondary={heading(k): v for k, v in secondary_rows(comparison.secondary).items()},
        secondary_columns=SECONDARY_COLUMNS,
        secondary_explanation=SECONDARY_EXPLANATION,
        types=_types(comparison),
        settings=[(k, _text(v)) for k, v in [("all arms", grid.overrides), *grid.arms.items()]],
    )
    write_text(folder / "compare.html", page)


def _types(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    names = sorted({name for arm in comparison.arms for name in arm.by_type})
    rows = [
        [arm.arm, *(percent(arm.by_type[n]) if n in arm.by_type else "–" for n in names)]
        for arm in comparison.arms
    ]
    return names, rows


def _text(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
