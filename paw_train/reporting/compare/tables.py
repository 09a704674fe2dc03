"""The tables of a comparison: for the terminal, as Markdown, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from paw_gym.internals.printable import markdown_text
from paw_train.reporting.compare.analysis import Comparison, Difference, Secondary

Interval = tuple[float, float] | None

EXPLANATION = (
    "Success at the end of a run in %, mean over seeds. 95 %: t interval over seeds, on this panel of tasks. "
    "Difference: in points, paired by seed, with its own t interval; p: paired t test, in brackets "
    "adjusted for the number of differences (Holm). Seeds and tasks: bootstrap over both, for what holds "
    "on other tasks too."
)


COLUMNS = (
    "arm",
    "seeds",
    "before",
    "after",
    "95 %",
    "difference",
    "95 %",
    "p (Holm)",
    "seeds and tasks",
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
    return [
        f"{signed(difference.mean)} to {difference.to}",
        interval(difference.ci95, signed),
        p_text(difference),
        interval(difference.ci95_tasks, signed),
    ]


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def signed(value: float) -> str:
    return f"{100 * value:+.1f}"


def interval(ends: Interval, text: Any = percent) -> str:
    return "–" if ends is None else f"{text(ends[0])} to {text(ends[1])}"


def p_text(difference: Difference) -> str:
    """The p-value, with the adjusted one in brackets; a dash if there is none."""
    if difference.p_value is None or difference.p_holm is None:
        return "–"
    return f"{_p(difference.p_value)} ({_p(difference.p_holm)})"


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


_WIDE = 118
"""width in characters that all columns need"""
_DIFFERENCE = COLUMNS.index("difference")
_NARROW = (0, 1, 3, _DIFFERENCE, 6, 7)
"""columns of a narrow terminal; table.md has them all"""


def rich_table(comparison: Comparison, width: int = _WIDE) -> Table:
    narrow = width < _WIDE
    chosen = _NARROW if narrow else range(len(COLUMNS))
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i in chosen:
        table.add_column(COLUMNS[i], justify="left" if i == 0 else "right", no_wrap=True)
    others = {difference.to for difference in comparison.differences}
    # said once below if there is no room to say it in every row
    everywhere = f" to {min(others)}" if narrow and len(others) == 1 else None
    for row in arm_rows(comparison):
        if everywhere:
            row[_DIFFERENCE] = row[_DIFFERENCE].removesuffix(everywhere)
        table.add_row(*(Text(row[i]) for i in chosen))
    if everywhere:
        table.caption, table.caption_justify = Text(f"Differences{everywhere}.", "dim"), "left"
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
