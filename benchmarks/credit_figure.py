"""The picture of ``credit.py``: how well each estimator recovers the true advantage, by what it samples.

python benchmarks/credit_figure.py credit/result.json docs/assets/credit.svg
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

PANELS = (
    ("correlation", "Correlation with the true advantage"),
    ("sign_errors", "Wrong sign, share of clear steps"),
    ("bias", "Bias, root mean square"),
    ("variance", "Variance of the estimate"),
)
TICKS = (100, 200, 300, 600, 1000, 1500, 2000, 3000, 6000, 10_000, 20_000, 50_000)
"""tokens a task that are labelled"""
STYLES = {
    "GRPO": ("#4269d0", "o"),
    "RLOO": ("#97bbf5", "s"),
    "REINFORCE++": ("#9498a0", "D"),
    "GiGPO": ("#3ca951", "^"),
    "GAE (lambda 1)": ("#a463f2", "P"),
    "GAE (lambda 0.95)": ("#9c6b4e", "X"),
    "tree_grpo": ("#ff725c", "v"),
    "vineppo": ("#efb118", "*"),
}
"""colour and marker, so that it can be read without colours"""


def figure(rows: Sequence[dict[str, Any]]) -> Figure:
    """Four charts over sampled tokens a task; bars are 95 % intervals.

    Args:
        rows: the methods of ``result.json``.
    """
    mpl.rcParams.update(
        {"svg.hashsalt": "paw", "font.family": "sans-serif", "svg.fonttype": "none"}
    )
    drawn = Figure(figsize=(9.6, 7.2), layout="constrained", facecolor="white")
    charts = drawn.subplots(2, 2, sharex=True).ravel()
    for chart, (name, title) in zip(charts, PANELS, strict=True):
        for estimator in STYLES:
            _series(
                chart, [r for r in rows if r["method"].split(",")[0] == estimator], name, estimator
            )
        chart.set_title(title, fontsize=10, loc="left")
        chart.set_xscale("log")
        chart.grid(alpha=0.25, linewidth=0.6)
        chart.spines[["top", "right"]].set_visible(False)
    charts[3].set_yscale("log")
    for axis, ticks in ((charts[3].yaxis, (2, 5, 10, 20, 50)), (charts[3].xaxis, TICKS)):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    for chart in charts[2:]:
        chart.set_xlabel("sampled tokens a task (points of one size stand side by side)")
    handles, names = charts[0].get_legend_handles_labels()
    drawn.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return drawn


def _series(chart: Axes, rows: Sequence[dict[str, Any]], name: str, estimator: str) -> None:
    known = sorted((r for r in rows if r[name][0] is not None), key=lambda r: r["group_tokens"])
    values = [r[name] for r in known]
    bars = [[v - (v if low is None else low) for v, low, _ in values]]
    bars += [[(v if high is None else high) - v for v, _, high in values]]
    color, marker = STYLES[estimator]
    aside = 1.018 ** (list(STYLES).index(estimator) - (len(STYLES) - 1) / 2)
    chart.errorbar(
        [aside * r["group_tokens"] for r in known],
        [v for v, _, _ in values],
        yerr=[[max(0.0, b) for b in side] for side in bars],
        color=color, marker=marker, markersize=6, linewidth=1.2, elinewidth=0.8, label=estimator,
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    """Draws."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path, help="result.json of credit.py")
    parser.add_argument("picture", type=Path, help="the SVG or PNG file to write")
    options = parser.parse_args(argv)
    rows = json.loads(options.result.read_text(encoding="utf-8"))["methods"]
    form: dict[str, Any] = {"metadata": {"Date": None}} if options.picture.suffix == ".svg" else {}
    figure(rows).savefig(options.picture, dpi=150, **form)


if __name__ == "__main__":
    main()
