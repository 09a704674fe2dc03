"""``paw compare``: methods x seeds over one recipe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from paw_train.cli.shared import TRAINING, Overrides

app = typer.Typer()


@app.command("compare", rich_help_panel=TRAINING)
def compare(
    grid: Annotated[
        str,
        typer.Argument(
            metavar="GRID",
            help="A grid's name, the path of its [cyan].yaml[/cyan] file, or a recipe with --arm.",
        ),
    ],
    overrides: Overrides = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            "--arm",
            "-a",
            metavar="NAME[:KEY=VALUE,...]",
            help="With a recipe: a method; repeat it. The first is the baseline. "
            "With a grid: run only these arms.",
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="How many ([cyan]5[/cyan]) or which ([cyan]0,3,4[/cyan]; one: [cyan]3,[/cyan]) to run."
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", help="Number of parallel runs; default: one per core.", min=1),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the comparison's folder; default: the grid's name.")
    ] = None,
    out: Annotated[
        str, typer.Option(help="Folder that contains the comparison's folder.")
    ] = "runs",
    import_: Annotated[
        list[Path] | None,
        typer.Option(
            "--import",
            metavar="FILE",
            help="Results from another machine; these runs count as done.",
        ),
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Run nothing; show the table of finished runs.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress display.")] = False,
) -> None:
    """Compare methods over seeds. If it was stopped or killed, the same command resumes it."""
    from paw_train.reporting.compare.folder import ComparisonFolder
    from paw_train.reporting.compare.runs import Progress
    from paw_train.settings.run import available_cores

    chosen = _seeds(seeds)
    wanted, arms = _grid(grid, arm or [], chosen, overrides or [], name)
    folder = Path(out) / wanted.name
    progress = Progress(quiet)
    comparison = ComparisonFolder(wanted, out, import_ or [], progress.say, arms, chosen)
    work = None
    if not show:
        from paw_train.training import require_startable

        todo = sum(state not in ("finished", "imported") for _, state in comparison.states())
        progress.say(f"{folder}: {len(comparison.chosen)} runs, {todo} to do")
        work = comparison.execute(jobs or available_cores(), progress, require_startable)
    comparison.save()
    _print(comparison, progress)
    for failure in work.failures if work else ():
        progress.failure(failure)
    if work and (work.failures or work.stopping):
        raise typer.Exit(1 if work.failures else 130)


def _grid(
    name: str, arms: list[str], seeds: tuple[int, ...], overrides: list[str], folder: str | None
) -> tuple[Any, list[str]]:
    """The grid that the arguments mean, and which of its arms to run (empty: all)."""
    from paw_train.reporting.compare.grid import grid_from_arguments, load_grid
    from paw_train.settings import recipe_names
    from paw_train.settings.recipes import read_pairs

    is_recipe = name not in recipe_names("grid") and (
        name in recipe_names() or any(":" in arm for arm in arms)
    )
    if is_recipe and arms:
        grid, chosen = grid_from_arguments(name, arms, seeds or 5, overrides), []
    else:
        grid, chosen = load_grid(name), arms
        grid = replace(grid, overrides={**grid.overrides, **read_pairs(overrides)})
    return (replace(grid, name=folder) if folder else grid), chosen


def _seeds(text: str | None) -> tuple[int, ...]:
    """The seeds that are named; empty: those of the grid."""
    if text is None:
        return ()
    parts = text.removesuffix(",").split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"--seeds: expected a number or a list such as 0,3,4; got {text!r}.")
    numbers = tuple(int(part) for part in parts)
    if numbers == (0,) and "," not in text:
        raise ValueError(
            "--seeds 0 asks for no runs: give how many seeds (1 or more), or which, such as 0,1,2 "
            "(0, is seed 0 alone)."
        )
    return numbers if "," in text else tuple(range(numbers[0]))


def _print(folder: Any, progress: Any) -> None:
    from paw_train.reporting.compare.page import EXPLANATION, rich_table

    left = [(run, state) for run, state in folder.states() if state not in ("finished", "imported")]
    summary = folder.comparison()
    console = progress.console
    if summary.arms:
        console.print(rich_table(summary, console.width))
        console.print(" ".join([EXPLANATION, *summary.notes]), style="dim", markup=False)
    for run, state in left:
        console.print(f"{run.name}: {state}", style="yellow", markup=False)
    text = f"Results: {folder.results_file}"
    text += f"; page: {folder.page}" if folder.page.exists() else ""
    console.print(text, soft_wrap=True, markup=False)
