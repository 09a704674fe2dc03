"""``paw conformance``: checks what a trainer computes, and which planted faults are noticed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from paw_train.cli.arguments import TRAINING

if TYPE_CHECKING:
    from rich.table import Table

    from paw_train.conformance.suite import Result

app = typer.Typer()


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
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
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
