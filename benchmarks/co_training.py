"""The evidence on world-model co-training: one table and three pictures, from the committed comparisons.

    python benchmarks/co_training.py                         # the table of docs/results.md
    python benchmarks/co_training.py --pictures docs/assets  # and co-training-{differences,curves,dose}.svg

Nothing is run: the numbers come from ``benchmarks/comparisons``. A study whose file is not there is left out.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from scipy import optimize, stats

from paw_train.evaluation.statistics import mean_interval
from paw_train.reporting.compare.results import RunResult, read_results

COMPARISONS = Path(__file__).parent / "comparisons"
BASELINE = "grpo"
METHODS = {"grpo+paw": "PaW", "grpo+echo": "ECHO"}
COLORS = {BASELINE: "#98a2ae", "grpo+paw": "#1f5fbf", "grpo+echo": "#bf5413"}
POWER = 0.8
ENDS = 4
"""updates at either end of training that a mean is taken over"""
WINDOW = 4
"""updates that a point of a learning curve is the mean of"""


@dataclass(frozen=True)
class Study:
    """One comparison: a policy, where it started, and how it was trained."""

    policy: str
    regime: str
    marker: str
    """of its seeds in the picture of doses"""
    runs: Mapping[tuple[str, int], RunResult]
    """finished runs by arm and seed"""

    @property
    def seeds(self) -> list[int]:
        """Complete seeds, in order."""
        return sorted({seed for _, seed in self.runs})

    @property
    def measures_observations(self) -> bool:
        """Whether every run logged its observation NLL."""
        return all("obs_nll" in run.metrics for run in self.runs.values())

    def success(self, arm: str) -> list[float]:
        """[seeds] success on held-out games after RL, in points."""
        return [100 * self.runs[arm, seed].success_rate for seed in self.seeds]

    def success_before(self) -> float:
        """Mean success of the warm starts, in points."""
        found = [self.runs[BASELINE, seed].before for seed in self.seeds]
        return 100 * statistics.fmean(before["success_rate"] for before in found if before)

    def gain(self, arm: str) -> list[float]:
        """[seeds] success of an arm minus that of GRPO, in points."""
        return _minus(self.success(arm), self.success(BASELINE))

    def observation_nll(self, arm: str, first: bool = False) -> list[float]:
        """[seeds] mean observation NLL of the last (or first) updates, nats per token."""
        part = slice(ENDS) if first else slice(-ENDS, None)
        return [statistics.fmean(self._series(arm, s, "obs_nll")[part]) for s in self.seeds]

    def nll_difference(self, arm: str) -> list[float]:
        """[seeds] observation NLL at the end of training, of an arm minus that of GRPO."""
        return _minus(self.observation_nll(arm), self.observation_nll(BASELINE))

    def curve(self, arm: str) -> tuple[list[float], list[list[float]]]:
        """Learning curve on training tasks: tokens in millions, and [points][seeds] success."""
        tokens = [list(itertools.accumulate(self._series(arm, s, "tokens"))) for s in self.seeds]
        success = [self._series(arm, s, "success_rate") for s in self.seeds]
        ends = range(WINDOW, len(success[0]) + 1, WINDOW)
        places = [statistics.fmean(t[end - 1] for t in tokens) / 1e6 for end in ends]
        return places, [[statistics.fmean(s[end - WINDOW : end]) for s in success] for end in ends]

    def _series(self, arm: str, seed: int, name: str) -> list[float]:
        return [float(value) for value in self.runs[arm, seed].metrics[name] if value is not None]


STUDIES = {
    "embedded_wm.json": ("0.7M, large steps", "16 updates, 2 steps of 1e-3", "s"),
    "primary_contrast.json": ("0.7M, small steps", "40 updates, 8 steps of 2e-4", "o"),
    "primary_contrast_3m.json": ("3.2M, small steps", "40 updates, 8 steps of 2e-4", "^"),
    "smollm2.json": ("135M, pretrained", "15 updates, LoRA", "D"),
}
"""policy, regime and marker by file"""


def studies(folder: Path = COMPARISONS) -> list[Study]:
    """Those whose file is there, with at least two seeds that all three arms have."""
    found = [
        Study(*STUDIES[name], _complete(read_results(folder / name)))
        for name in STUDIES
        if (folder / name).exists()
    ]
    return [study for study in found if len(study.seeds) > 1]


def _complete(runs: Sequence[RunResult]) -> dict[tuple[str, int], RunResult]:
    """By arm and seed, the runs of seeds that all three arms have."""
    arms = (BASELINE, *METHODS)
    found = {(run.arm, run.seed): run for run in runs if run.arm in arms}
    return {
        (arm, seed): run
        for (arm, seed), run in found.items()
        if all((other, seed) in found for other in arms)
    }


def detectable(differences: Sequence[float]) -> float:
    """The true difference that a paired t test at 0.05 finds with a probability of ``POWER``.

    Takes the spread of these differences as the true one. From the noncentral t distribution.
    """
    count, error = len(differences), statistics.stdev(differences) / len(differences) ** 0.5
    limit = stats.t.ppf(0.975, count - 1)
    shift = optimize.brentq(lambda d: stats.nct.sf(limit, count - 1, d) - POWER, 0.1, 60.0)
    return float(shift * error)


def _minus(ones: Iterable[float], others: Iterable[float]) -> list[float]:
    return [one - other for one, other in zip(ones, others, strict=True)]


# --- the table -----------------------------------------------------------------------------------------


def table(found: Sequence[Study]) -> str:
    """Markdown: a row for each study."""
    head = (
        "| policy | training | seeds | before RL | after, GRPO | PaW - GRPO (95 %) | ECHO - GRPO (95 %) "
        f"| detectable ({100 * POWER:.0f} %) | observation NLL, PaW - GRPO (95 %) |\n"
        "| --- | --- | ---: | ---: | ---: | --- | --- | ---: | --- |"
    )
    return "\n".join([head, *map(_row, found)])


def _row(study: Study) -> str:
    nll = "not logged"
    if study.measures_observations:
        nll = _with_interval(study.nll_difference("grpo+paw"), 2)
    cells = (
        study.policy,
        study.regime,
        str(len(study.seeds)),
        f"{study.success_before():.1f}",
        f"{statistics.fmean(study.success(BASELINE)):.1f}",
        *(_with_interval(study.gain(arm), 1) for arm in METHODS),
        f"{detectable(study.gain('grpo+paw')):.0f}",
        nll,
    )
    return f"| {' | '.join(cells)} |"


def _with_interval(values: Sequence[float], digits: int) -> str:
    low, high = mean_interval(values)
    mean = statistics.fmean(values)
    return f"{mean:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


# --- the pictures --------------------------------------------------------------------------------------


def differences_picture(found: Sequence[Study]) -> Figure:
    """Forest plot: paired differences in success, with t intervals and the seeds."""
    drawn = _figure(8.6, 0.9 + 0.62 * len(found))
    chart = drawn.subplots()
    for place, study in enumerate(reversed(found)):
        for aside, (arm, name) in zip((0.17, -0.17), METHODS.items(), strict=True):
            gains = study.gain(arm)
            low, high = mean_interval(gains)
            height = place + aside
            chart.plot([low, high], [height, height], color=COLORS[arm], lw=2.2)
            chart.plot(gains, [height] * len(gains), "o", color=COLORS[arm], ms=3, alpha=0.35)
            label = f"{name} minus GRPO" if place == 0 else None
            mean = statistics.fmean(gains)
            chart.plot(mean, height, "D", color=COLORS[arm], ms=6, mec="white", label=label)
    chart.axvline(0, color="#1a2430", lw=0.8)
    chart.set_yticks(range(len(found)), [_title(study) for study in reversed(found)])
    chart.set_xlabel(
        "difference in success on held-out games, points (mean, 95 % interval; dots: seeds)"
    )
    chart.legend(frameon=False, loc="upper right", fontsize=9)
    _plain(chart, "x")
    return drawn


def curves_picture(found: Sequence[Study]) -> Figure:
    """Learning curves against tokens, means of the seeds with the t interval of the mean."""
    drawn = _figure(4.5 * len(found), 3.4)
    charts = np.atleast_1d(drawn.subplots(1, len(found), sharey=True))
    for chart, study in zip(charts, found, strict=True):
        for arm in (BASELINE, *METHODS):
            places, points = study.curve(arm)
            lows, highs = zip(*map(mean_interval, points), strict=True)
            name = "GRPO" if arm == BASELINE else f"GRPO + {METHODS[arm]}"
            means = [statistics.fmean(p) for p in points]
            chart.plot(places, means, color=COLORS[arm], label=name)
            chart.fill_between(places, lows, highs, color=COLORS[arm], alpha=0.16, lw=0)
        chart.set_title(_title(study, short=True), loc="left", fontsize=10)
        chart.set_xlabel("million tokens of training")
        chart.set_ylim(bottom=0)
        chart.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        _plain(chart, "y")
    charts[0].set_ylabel("success in training rollouts")
    charts[0].legend(frameon=False, loc="lower right", fontsize=9)
    return drawn


def dose_picture(found: Sequence[Study]) -> Figure:
    """Each seed: how much better the world model became, against how much success changed."""
    drawn = _figure(7.2, 3.9)
    chart = drawn.subplots()
    for study in found:
        for arm, name in METHODS.items():
            better = [-d for d in study.nll_difference(arm)]
            label = f"{name}, {_title(study, short=True)}"
            chart.plot(
                better, study.gain(arm), study.marker, color=COLORS[arm], ms=6, alpha=0.8, mec="white",
                label=label,
            )  # fmt: skip
    chart.axhline(0, color="#1a2430", lw=0.8)
    chart.axvline(0, color="#1a2430", lw=0.8)
    chart.set_xlabel(
        "observation NLL at the end, GRPO minus the method, nats per token\n"
        "(right: the method predicts observations better)"
    )
    chart.set_ylabel("success: the method minus\nGRPO, points")
    drawn.legend(loc="outside right upper", frameon=False, fontsize=8)
    _plain(chart, "both")
    return drawn


def dose_response(found: Sequence[Study]) -> str:
    """Markdown: over the seeds of a study, how a better world model and more success go together."""
    head = "| policy | seeds | correlation, PaW (95 %) | correlation, ECHO (95 %) |"
    rows = [
        f"| {study.policy} | {len(study.seeds)} | {' | '.join(_correlation(study, arm) for arm in METHODS)} |"
        for study in found
        if len(study.seeds) > 3  # an interval needs four
    ]
    return "\n".join([head, "| --- | ---: | --- | --- |", *rows])


def _correlation(study: Study, arm: str) -> str:
    """Pearson's, with its interval by Fisher's transformation."""
    result = stats.pearsonr([-d for d in study.nll_difference(arm)], study.gain(arm))
    low, high = result.confidence_interval()
    return f"{result.statistic:+.2f} ({low:+.2f} to {high:+.2f})"


def _title(study: Study, short: bool = False) -> str:
    return f"{study.policy}, {len(study.seeds)} seeds" + ("" if short else f"\n{study.regime}")


def _figure(width: float, height: float) -> Figure:
    mpl.rcParams.update(
        {"svg.hashsalt": "paw", "font.family": "sans-serif", "svg.fonttype": "none"}
    )
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def _plain(chart: Axes, grid: str) -> None:
    chart.spines[["top", "right"]].set_visible(False)
    chart.grid(axis=grid, alpha=0.25, linewidth=0.6)  # type: ignore[arg-type]
    chart.set_axisbelow(True)


def main(argv: Sequence[str] | None = None) -> None:
    """Prints, and draws where asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pictures", type=Path, help="folder to write the pictures to")
    options = parser.parse_args(argv)
    found = studies()
    measured = [study for study in found if study.measures_observations]
    print(table(found), dose_response(measured), sep="\n\n")
    if options.pictures is None:
        return
    small_steps = [study for study in measured if "2e-4" in study.regime]
    for name, picture in (
        ("differences", differences_picture(found)),
        ("curves", curves_picture(small_steps)),
        ("dose", dose_picture(measured)),
    ):
        picture.savefig(options.pictures / f"co-training-{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
