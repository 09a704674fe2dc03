"""``paw train``: one training run by a recipe."""

from __future__ import annotations

from typing import Annotated

import typer


def train(
    recipe: Annotated[
        str, typer.Argument(help="A recipe's name, or the path of a [cyan].yaml[/cyan] file.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings that differ from the recipe's."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Delete a run of the same name first.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress display.")] = False,
) -> None:
    """Train a policy. An unfinished run of the same name and settings goes on where it stopped."""
    from paw_train.engines.local import train_from_recipe

    folder = train_from_recipe(recipe, list(overrides or []), fresh=fresh, quiet=quiet)
    typer.echo(f"The run is in {folder}")
