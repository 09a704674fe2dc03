"""``paw train``, ``recipes`` and ``report``: one training run, its recipes, and its report."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

import paw_train
from paw_train.cli.arguments import TRAINING, Imports, import_modules

app = typer.Typer()


@app.command("recipes", rich_help_panel=TRAINING)
def recipes() -> None:
    """List the recipes of `paw train` and the grids of `paw compare`."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from paw_gym.internals.printable import safe_console
    from paw_train.settings.recipes import Kind, descriptions

    console = safe_console()
    kinds: tuple[tuple[Kind, str], ...] = (("recipe", "paw train"), ("grid", "paw compare"))
    for kind, command in kinds:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column(f"{kind} ({command})", style="bold", no_wrap=True)
        table.add_column("what it is")
        for name, text in descriptions(kind).items():
            table.add_row(name, Text(text))
        console.print(table)
    console.print("[dim]paw train NAME key=value ... changes settings of it.[/dim]")


@app.command("train", rich_help_panel=TRAINING)
def train(
    recipe: Annotated[
        str, typer.Argument(help="A recipe's name, or the path of a [cyan].yaml[/cyan] file.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings that differ from the recipe's."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Delete an existing run of the same name first.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress display.")] = False,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan",
            help="Start nothing; print the memory that the run needs in each phase, on one GPU or on a "
            "cluster ([cyan]engine=openrlhf[/cyan]).",
        ),
    ] = False,
) -> None:
    """Train a policy. An unfinished run with the same name and settings resumes where it stopped."""
    from paw_train.settings import load_settings

    def say(text: str) -> None:
        typer.echo(text, err=True)

    settings = load_settings(recipe, list(overrides or []), say)
    if plan:
        from paw_train.training.plan import make_plan, render

        typer.echo(render(make_plan(settings)))
        return
    folder = paw_train.train(settings, fresh=fresh, quiet=quiet)
    from paw_train.reporting.compare.runs import is_finished, updates_done  # imports torch

    typer.echo(f"The run is in {folder}")
    modules = sorted({member.env.id.rpartition(":")[0] for member in settings.members} - {""})
    again = " ".join(["paw eval", str(folder), *(f"--import {name}" for name in modules)])
    if len(settings.members) > 1:  # paw eval takes one environment
        again += f" env={settings.members[0].name}"
    base = settings.model.lora.base or (settings.model.lora.rank and settings.model.path)
    if base and Path(base).exists():  # no folder is opened because an adapter names it
        again += f" model.lora.base={shlex.quote(base)}"
    if (folder / "report.html").exists():  # not of a run that was stopped before it learned
        typer.echo(f"Next: open {folder / 'report.html'}; `{again}` measures it on more tasks")
    learned = not settings.evaluation.tasks and updates_done(folder) >= settings.updates
    if settings.engine == "local" and not (learned or is_finished(folder)):
        raise typer.Exit(130)  # stopped: what follows it in a script wants the whole run


@app.command("report", rich_help_panel=TRAINING)
def report(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="The folder of a run or of a comparison, or a file of its results."
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Of --noise: settings, such as [cyan]env.kwargs.data_dir=DIR[/cyan].",
        ),
    ] = None,
    noise: Annotated[
        bool,
        typer.Option(
            "--noise",
            help="First measure the share of the world model's gradient that falls on noisy tokens.",
        ),
    ] = False,
    noise_rule: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Returns the spans of an observation that are noise. Default: the environment's own rule.",
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(help="Of --noise: [cyan]warm[/cyan], latest or best. Default: the best."),
    ] = None,
    transitions: Annotated[int, typer.Option(help="Of --noise: how many to sample.", min=1)] = 100,
    modules: Imports = None,
) -> None:
    """Rewrite the report of a run or a comparison."""
    from paw_train.reporting.run.page import write_report

    results = Path(run) if run.endswith(".json") else Path(run) / "results.json"
    if results.is_file():
        from paw_train.reporting.compare.folder import report_of

        typer.echo(f"The report is {report_of(results)}")
        return
    if noise or noise_rule is not None:
        from paw_train.evaluation.noise import write_noise_gradient

        import_modules(modules)
        path = write_noise_gradient(
            run, noise_rule, checkpoint, transitions, overrides=overrides or []
        )
        typer.echo(f"Noise and gradient: {path}")
    typer.echo(f"The report is {write_report(run)}")
