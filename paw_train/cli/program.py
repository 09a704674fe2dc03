"""The ``paw`` program: its commands and its options."""

# Every command lives in a file of this folder; whatever is slow to import is imported inside it.

from __future__ import annotations

from typing import Annotated

import typer

from paw_train.cli import (
    check,
    compare,
    compare_results,
    conformance,
    data,
    envs,
    eval_wm,
    evaluate,
    export,
    index,
    new_env,
    play,
    recipes,
    replay,
    report,
    serve,
    sft_data,
    table,
    train,
    view,
)
from paw_train.cli.errors import CommandGroup

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


_ENVIRONMENTS = "Environments"
_TRAINING = "Training"
_DATA = "Episodes as data"
app.command("envs", rich_help_panel=_ENVIRONMENTS)(envs.envs)
app.command("play", rich_help_panel=_ENVIRONMENTS)(play.play)
app.command("check", rich_help_panel=_ENVIRONMENTS)(check.check)
app.command("new-env", rich_help_panel=_ENVIRONMENTS)(new_env.new_env)
app.add_typer(data.app, name="data", rich_help_panel=_ENVIRONMENTS)
app.add_typer(index.app, name="index", rich_help_panel=_ENVIRONMENTS)
app.add_typer(serve.app, name="serve", rich_help_panel=_ENVIRONMENTS)
app.command("recipes", rich_help_panel=_TRAINING)(recipes.recipes)
app.command("train", rich_help_panel=_TRAINING)(train.train)
app.command("compare", rich_help_panel=_TRAINING)(compare.compare)
app.command("eval", rich_help_panel=_TRAINING)(evaluate.evaluate)
app.command("eval-wm", rich_help_panel=_TRAINING)(eval_wm.eval_wm)
app.command("table", rich_help_panel=_TRAINING)(table.table)
app.command("compare-results", rich_help_panel=_TRAINING)(compare_results.compare_results)
app.command("replay", rich_help_panel=_TRAINING)(replay.replay)
app.command("conformance", rich_help_panel=_TRAINING)(conformance.conformance)
app.command("report", rich_help_panel=_TRAINING)(report.report)
app.command("view", rich_help_panel=_TRAINING)(view.view)
app.command("export", rich_help_panel=_DATA)(export.export)
app.command("sft-data", rich_help_panel=_DATA)(sft_data.sft_data)
