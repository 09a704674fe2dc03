"""``paw new-game``: an ALFWorld game from a description, checked by winning it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def new_game(
    description: Annotated[
        Path, typer.Argument(help="YAML file with the room's receptacles, its objects and a goal.")
    ],
    into: Annotated[
        Path, typer.Option(help="Folder of games, for data_dir; it is created if necessary.")
    ] = Path("games"),
    split: Annotated[str, typer.Option(help="train, valid_seen or valid_unseen.")] = "train",
    grammar: Annotated[
        str, typer.Option(help="put (put X in/on Y), or move (move X to Y).")
    ] = "put",
) -> None:
    """Make an ALFWorld game from a description and write it in the official format, after winning it."""
    from rich.console import Console

    from paw_gym.envs.alfworld.authoring import author_game, read_description
    from paw_gym.envs.alfworld.procedural.generate import write_game

    game = author_game(read_description(description), split, grammar)
    path = write_game(into, game)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[green]Wrote[/green] {path}")
    console.print(f"Your task is to: {game['task']} Won by:")
    for command in game["walkthrough"]:
        console.print(f"  {command}", style="dim", markup=False)
    console.print("Next:")
    console.print(f"  paw play ALFWorld --kw data_dir={into} --kw split={split}", markup=False)
