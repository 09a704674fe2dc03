"""``paw train``: one training run by a recipe."""

from __future__ import annotations

from typing import Annotated

import typer

import paw_train


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
    typer.echo(f"The run is in {folder}")
    modules = sorted({member.env.id.rpartition(":")[0] for member in settings.members} - {""})
    again = " ".join(["paw eval", str(folder), *(f"--import {name}" for name in modules)])
    typer.echo(f"Next: open {folder / 'report.html'}; `{again}` measures it on more tasks")
