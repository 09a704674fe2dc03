"""``paw new-env``: a package with an environment that passes ``paw check`` as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def new_env(
    name: Annotated[str, typer.Argument(help="Name of the package, such as [cyan]my-maze[/cyan].")],
    into: Annotated[
        Path, typer.Option(help="Folder in which the package's folder is created.")
    ] = Path(),
) -> None:
    """Write a package with an environment, its registration, tests and page. It passes `paw check`."""
    from rich.console import Console

    from paw_train.cli.scaffold import Names, write_scaffold

    names = Names.of(name)
    folder = write_scaffold(names, into)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[green]Wrote[/green] {folder}")
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        console.print(f"  {path.relative_to(folder)}", style="dim", markup=False)
    console.print("Next:")
    console.print(f"  pip install -e {folder}", markup=False)
    console.print(f"  paw check {names.env_id}", markup=False)
    console.print(f"  paw play {names.env_id}", markup=False)
    console.print(f"and make it yours: {folder / names.package / 'env.py'}", markup=False)
