"""``paw report``: the report of a run or of a comparison."""

from __future__ import annotations

from typing import Annotated

import typer

from paw_train.cli.arguments import Imports, import_modules


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
    from pathlib import Path

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
