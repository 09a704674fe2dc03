"""The folder of a comparison: executes missing runs, keeps results, writes tables and the page."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from paw_gym.internals.files import write_json, write_text
from paw_train.reporting.compare.analysis import Comparison, compare
from paw_train.reporting.compare.grid import Grid, PlannedRun
from paw_train.reporting.compare.page import markdown, write_page
from paw_train.reporting.compare.results import (
    RunResult,
    known_results,
    read_results,
    read_run,
    write_results,
)
from paw_train.reporting.compare.runs import (
    Progress,
    Runner,
    check_settings,
    is_finished,
    train_command,
    updates_done,
)
from paw_train.settings import Settings

RESULTS, PAGE = "results.json", "compare.html"
"""in the folder: every finished run in a compact form; table and curves for a browser"""


class ComparisonFolder:
    """One comparison in one folder.

    Args:
        out: the folder in which the comparison has its own.
        imports: files of results whose runs count as done.
        arms: run only these; empty: all. Results of the others are still kept and shown.
    """

    def __init__(
        self,
        grid: Grid,
        out: str,
        imports: Sequence[Path] = (),
        say: Callable[[str], None] = print,
        arms: Sequence[str] = (),
        seeds: Sequence[int] = (),
    ) -> None:
        grid.check_arms(arms)
        grid = grid.with_seeds(seeds)
        self.grid, self.say = grid, say
        self.runs = grid.runs(out)
        self.folder = Path(out) / grid.name
        self.results_file, self.page = self.folder / RESULTS, self.folder / PAGE
        if (self.folder / "config.json").exists():
            raise ValueError(
                f"{self.folder} holds a training run; give the comparison another name (--name)."
            )
        self.imported = self._import(imports)
        self._read: dict[str, RunResult] = {}
        self.chosen = [
            c for c in self.runs if (not arms or c.arm in arms) and (not seeds or c.seed in seeds)
        ]

    def _import(self, files: Sequence[Path]) -> dict[str, RunResult]:
        """The results of other machines: those in this grid's own file, then those in the files given now."""
        found: list[RunResult] = []
        if self.results_file.exists():
            found += [r for r in read_results(self.results_file)[1] if r.imported]
        for file in files:
            found += [dataclasses.replace(r, imported=True) for r in read_results(file)[1]]
        known = known_results(self.runs, found)
        there = {(result.arm, result.seed) for result in found}
        for run in self.runs:
            if (run.arm, run.seed) in there and run.name not in known:
                self.say(f"{run.name} is not taken over: its settings there differ from these.")
        return known

    def execute(self, jobs: int, progress: Progress, check: Callable[[Settings], None]) -> Runner:
        """Executes the missing runs, and writes results after each; ``check`` sees each arm first."""
        todo = [c for c in self.chosen if c.name not in self.imported]
        _check_arms([c for c in todo if not is_finished(self.folder / c.name)], check)
        self.folder.mkdir(parents=True, exist_ok=True)
        runner = Runner(
            todo,
            self.folder,
            jobs,
            lambda run: train_command(run, self.grid.recipe),
            progress,
            lambda run: self.save(),
        )
        return runner.run()

    def results(self) -> list[RunResult]:
        """Every finished run, in the grid's order; a run of this folder comes before an imported one."""
        found = []
        for run in self.runs:
            folder = self.folder / run.name
            if is_finished(folder):
                if run.name not in self._read:
                    check_settings(folder, run)
                    self._read[run.name] = read_run(folder, run.arm, run.seed)
                found.append(self._read[run.name])
            elif run.name in self.imported:
                found.append(self.imported[run.name])
        return found

    def comparison(self) -> Comparison:
        grid = self.grid
        return compare(grid.baselines(), grid.baseline, self.results(), grid.primary)

    def save(self) -> None:
        """Writes results, table, picture and page of the finished runs."""
        results = self.results()
        self.folder.mkdir(parents=True, exist_ok=True)
        write_results(self.results_file, self.grid, results)
        write_report(self.folder, self.grid, results)

    def states(self) -> list[tuple[PlannedRun, str]]:
        return [(run, self._state(run)) for run in self.chosen]

    def _state(self, run: PlannedRun) -> str:
        folder = self.folder / run.name
        if is_finished(folder):
            return "finished"
        if run.name in self.imported:
            return "imported"
        if (folder / "config.json").exists():
            return f"begun, {updates_done(folder)} of {run.settings.updates} updates"
        return "not begun"


def _check_arms(runs: Sequence[PlannedRun], check: Callable[[Settings], None]) -> None:
    """Checks one run of each arm: what it lacks is found now and not after hours."""
    for arm, run in {run.arm: run for run in reversed(runs)}.items():
        try:
            check(run.settings)
        except Exception as error:
            error.add_note(f"(in arm {arm!r}; no run was started)")
            raise


def write_report(folder: Path, grid: Grid, runs: Sequence[RunResult]) -> Path:
    """Writes tables, pictures and page of a comparison; returns the page's path."""
    comparison = compare(grid.baselines(), grid.baseline, runs, grid.primary)
    write_json(folder / "table.json", dataclasses.asdict(comparison))
    write_text(folder / "table.md", markdown(comparison))
    if runs:
        write_page(folder, grid, comparison, runs)
    return folder / PAGE


def report_of(results: Path) -> Path:
    """Writes the report of a results file beside it, and returns the page's path."""
    grid, runs = read_results(results)
    if not runs:
        raise ValueError(f"{results} holds no finished run yet; there is nothing to report.")
    return write_report(results.parent, grid, runs)
