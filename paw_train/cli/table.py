"""``paw table``: results in one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def table(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Results of [cyan]paw eval[/cyan], training runs, or folders of these.",
        ),
    ],
    md: Annotated[bool, typer.Option("--md", help="As Markdown.")] = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="As comma-separated values, rates from 0 to 1.")
    ] = False,
) -> None:
    """Show results side by side: tasks, success rate and its 95 % interval, score, cost."""
    from rich.console import Console

    from paw_train.evaluation import comparison

    if md and as_csv:
        raise ValueError("--md and --csv are two forms of the table: give one of them.")
    found = comparison.collect(runs)
    if md or as_csv:
        typer.echo(comparison.as_csv(found) if as_csv else comparison.as_markdown(found), nl=False)
    else:
        Console().print(comparison.as_rich(found))
