"""The ``paw`` program: its options, and the commands of the files beside this one.

A command is a function with ``@app.command`` in one of them; slow imports are made inside the function.
"""

from __future__ import annotations

from typing import Annotated

import typer

from paw_train.cli import compare, data, environments, evaluate, export, serve, train
from paw_train.cli.shared import CommandGroup

app = typer.Typer(
    name="paw",
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        import paw_gym

        typer.echo(f"paw-gym {paw_gym.__version__}")
        raise typer.Exit


@app.callback()
def root(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error.", is_eager=True)
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Text environments, and agents that learn in them.

    Start with [bold]paw envs[/bold], then [bold]paw play ALFWorld[/bold].
    """


for part in (environments, data, serve, train, compare, evaluate, export):
    app.add_typer(part.app)
