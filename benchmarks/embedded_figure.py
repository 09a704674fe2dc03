"""The picture on the front page: several seeds of one recipe, their mean, and the range between them.

python benchmarks/embedded_figure.py benchmarks/embedded.json docs/assets/training.svg
python benchmarks/embedded_figure.py benchmarks/embedded.json picture.svg --runs runs/a runs/b runs/c

``--runs`` first writes the file of curves from the folders of the runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from paw_gym.internals.files import write_json
from paw_train.reporting.run.data import load_run

BLUE, GREY, ORANGE = "#1f5fbf", "#98a2ae", "#bf5413"
_NEIGHBOURS = 1
"""updates on either side that a point of the training curve averages: one update has 48 tasks"""


def curves(run: Path) -> dict[str, Any]:
    """The points of a finished run that the picture shows."""
    found = load_run(run)
    if found.before is None or found.after is None:
        raise SystemExit(f"{run} is not finished: it has no evaluation before and after RL.")
    return {
        "seed": found.config["seed"],
        "tasks": found.after.overall.n,
        "training": _rates(found.metrics),
        "validation": _rates(found.validation),
        "before": found.before.overall.rate,
        "after": found.after.overall.rate,
    }


def _rates(lines: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    return [[line["update"], line["success_rate"]] for line in lines]


def figure(seeds: Sequence[dict[str, Any]]) -> Figure:
    """Success during RL, and on held-out games before and after; lines are means of the seeds."""
    mpl.rcParams.update(
        {"svg.hashsalt": "paw", "font.family": "sans-serif", "svg.fonttype": "none"}
    )
    drawn = Figure(figsize=(9.0, 3.6), layout="constrained", facecolor="white")
    left, right = drawn.subplots(1, 2, width_ratios=[5, 2], sharey=True)
    training = [_smooth(seed["training"]) for seed in seeds]
    _band(left, training, GREY, "training rollouts (temperature 1, 30 steps)", 1.0)
    _band(left, [s["validation"] for s in seeds], ORANGE, "validation games (temperature 0.7)", 2.2)
    left.set_title(f"Success during RL, mean and range of {len(seeds)} seeds", loc="left")
    left.set_xlabel("RL updates")
    left.set_ylim(0, 1)
    left.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    left.legend(frameon=False, loc="lower right")
    right.set_title(f"{seeds[0]['tasks']} held-out games", loc="left")
    for at, (when, color) in enumerate((("before", GREY), ("after", BLUE))):
        values = [seed[when] for seed in seeds]
        mean = statistics.fmean(values)
        right.bar(at, mean, width=0.6, color=color)
        right.plot([at] * len(values), values, "o", color="#1a2430", markersize=4)
        right.text(at, max(values) + 0.03, f"{100 * mean:.0f} %", ha="center", weight="bold")
    right.set_xticks([0, 1], ["before RL", "after RL"])
    for chart in (left, right):
        chart.spines[["top", "right"]].set_visible(False)
        chart.grid(axis="y", alpha=0.25, linewidth=0.6)
        chart.set_axisbelow(True)
    return drawn


def _smooth(points: Sequence[Sequence[float]]) -> list[list[float]]:
    values = [value for _, value in points]
    return [
        [update, statistics.fmean(values[max(0, i - _NEIGHBOURS) : i + _NEIGHBOURS + 1])]
        for i, (update, _) in enumerate(points)
    ]


def _band(
    chart: Axes, lines: Sequence[Sequence[Sequence[float]]], color: str, label: str, width: float
) -> None:
    """The mean of lines over the same updates, and the range between the lowest and the highest."""
    updates = [update for update, _ in lines[0]]
    values = [[point[1] for point in points] for points in zip(*lines, strict=True)]
    chart.plot(updates, [statistics.fmean(v) for v in values], color=color, label=label, lw=width)
    chart.fill_between(
        updates, [min(v) for v in values], [max(v) for v in values], color=color, alpha=0.18, lw=0
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("curves", type=Path, help="file with the curves of the seeds (JSON)")
    parser.add_argument("picture", type=Path, help="the picture to write (SVG)")
    parser.add_argument("--runs", type=Path, nargs="+", help="folders of runs, one a seed")
    given = parser.parse_args()
    if given.runs:
        write_json(given.curves, sorted((curves(r) for r in given.runs), key=lambda c: c["seed"]))
    seeds = json.loads(given.curves.read_text(encoding="utf-8"))
    figure(seeds).savefig(given.picture, metadata={"Date": None})


if __name__ == "__main__":
    main()
