"""``paw recipes``: the recipes and grids that come with the project."""

from __future__ import annotations


def recipes() -> None:
    """List the recipes of `paw train` and the grids of `paw compare`."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from paw_train.settings.recipes import Kind, description_of, recipe_names

    console = Console()
    kinds: tuple[tuple[Kind, str], ...] = (("recipe", "paw train"), ("grid", "paw compare"))
    for kind, command in kinds:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column(f"{kind} ({command})", style="bold", no_wrap=True)
        table.add_column("what it is")
        for name in recipe_names(kind):
            table.add_row(name, Text(description_of(name, kind)))
        console.print(table)
    console.print("[dim]paw train NAME key=value ... changes settings of it.[/dim]")
