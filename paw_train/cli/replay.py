"""``paw replay``: the recorded actions of a result, played again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paw_train.cli.arguments import Imports, import_modules

DIFFERS = 1
"""exit code of a result that does not hold"""
_NAMED = 5
"""differences that are listed"""


def replay(
    result: Annotated[
        Path, typer.Argument(metavar="RESULT", help="The folder of a [cyan]paw eval[/cyan].")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Where the environment's data lies here: [cyan]env.kwargs.data_dir=DIR[/cyan].",
        ),
    ] = None,
    sample: Annotated[
        int | None, typer.Option(help="Episodes to play; default: all.", min=1)
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of that sample; default: a fresh one, which is printed.", min=0),
    ] = None,
    modules: Imports = None,
) -> None:
    """Play the actions of a result again, and compare observations, rewards, scores and intervals.

    Exit code 1: something differs; 2: it cannot be checked.
    """
    import secrets

    from paw_gym.internals.printable import one_line
    from paw_train.evaluation.replay import replay as play

    import_modules(modules)
    # whoever forges a result must not know which episodes will be played
    chosen = secrets.randbelow(2**31) if seed is None else seed
    found = play(result, overrides or [], sample, chosen)
    typer.echo(one_line(found.headline))
    typer.echo(one_line(f"Environment: {found.environment}"))
    for line in found.differences[:_NAMED]:
        typer.echo(one_line(f"DIFFERS: {line}."), err=True)
    typer.echo(one_line(f"NOT CHECKED: {'; '.join(found.not_checked)}."))
    if sample is not None:
        typer.echo(f"The sample is that of --sample {sample} --seed {chosen}.")
    typer.echo(found.verdict)
    if found.differences:
        raise typer.Exit(DIFFERS)
