"""``paw train``, ``recipes``, ``report``, ``conformance``: a run, its recipe and report, its trainer."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import paw_train
from paw_train.cli.shared import TRAINING, AsJson, Overrides

if TYPE_CHECKING:
    from rich.table import Table

    from paw_train.conformance.suite import Result

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
    overrides: Overrides = None,
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
) -> None:
    """Rewrite the report of a run or a comparison."""
    from paw_train.reporting.run.page import write_report

    results = Path(run) if run.endswith(".json") else Path(run) / "results.json"
    if results.is_file():
        from paw_train.reporting.compare.folder import report_of

        typer.echo(f"The report is {report_of(results)}")
        return
    typer.echo(f"The report is {write_report(run)}")


@app.command("conformance", rich_help_panel=TRAINING)
def conformance(
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            "-e",
            help="[cyan]local[/cyan], [cyan]openrlhf[/cyan], or [cyan]module:Class[/cyan] for a "
            "trainer of your own.",
        ),
    ] = "local",
    fault: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Plant only this fault; may be repeated; default: all."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare a trainer with known-good losses and gradients, without and with planted faults.

    Exit code 1: the trainer differs without a fault, or a fault was missed.
    """
    import sys
    from contextlib import redirect_stdout

    from rich.text import Text

    from paw_gym.internals.files import json_text
    from paw_gym.internals.naming import require_choice
    from paw_gym.internals.printable import safe_console
    from paw_train.conformance.faults import FAULTS
    from paw_train.conformance.suite import run, trainer_of

    for name in fault or ():
        require_choice("--fault", name, tuple(FAULTS))
    waiting = safe_console(stderr=True)
    # what libraries print while they are imported is not part of the result
    with redirect_stdout(sys.stderr), waiting.status("starting") as status:
        trainer = trainer_of(engine)
        result = run(trainer, engine, fault or tuple(FAULTS), status.update)
    if as_json:
        typer.echo(json_text(result.to_dict(), indent=1))
    else:
        console = safe_console(highlight=False, soft_wrap=True)
        console.print(_table(result))
        for objective, deviations in result.deviations.items():
            for deviation in deviations:
                found = f": {deviation.check}: {deviation.message}"
                console.print(Text.assemble((objective, "red"), found))
    if not result.conforms or result.count("missed"):
        raise typer.Exit(1)


def _table(result: Result) -> Table:
    from rich.table import Table
    from rich.text import Text

    as_is = "conforms" if result.conforms else "[red]differs from the known-good values[/red]"
    table = Table(title=f"{result.trainer}: {as_is}")
    for name in ("fault", "result", "checks that failed"):
        table.add_column(name)
    for finding in result.findings:
        detail = ", ".join(finding.checks) or finding.message
        reported = f" ({finding.reported})" if finding.reported else ""
        table.add_row(*map(Text, (f"{finding.fault}{reported}", finding.state, detail)))
    table.caption = (
        f"{result.count('caught', 'refused')} of {len(result.findings)} noticed, "
        f"{result.count('missed')} missed, {result.count('cannot occur')} cannot occur, "
        f"{result.count('not planted')} not planted"
    )
    return table
