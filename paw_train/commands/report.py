"""``paw report``: the page of a run."""

from __future__ import annotations

from typing import Annotated

import typer


def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's folder.")],
) -> None:
    """Write report.html of a run (anew)."""
    from paw_train.report import write_report

    typer.echo(f"The report is {write_report(run)}")
