"""``paw play``: a person plays an environment in the terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from paw_train.cli.arguments import EnvName, EnvSettings


def play(
    env: EnvName,
    kw: EnvSettings = None,
    task: Annotated[
        str | None, typer.Option(help="Id of the first task; default: a sampled one.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seeds the sampling of tasks.")] = None,
    record: Annotated[
        Path | None,
        typer.Option(help="JSONL file for the transitions; default: in runs/play."),
    ] = None,
) -> None:
    """Play in the terminal: pick an action by its number or type it; [cyan]:help[/cyan] lists more."""
    from paw_gym.registration import make_text_env
    from paw_train.cli.arguments import environment_of
    from paw_train.cli.play_screen import Screen
    from paw_train.cli.play_session import PlaySession

    env_id, settings = environment_of(env, kw)
    session = PlaySession(make_text_env(env_id, **settings), record or _default_record(env_id))
    screen = Screen(env_id, interactive=sys.stdin.isatty())
    session.start(task, seed)
    try:
        screen.run(session)
    finally:
        session.close()
        screen.farewell(session)


def _default_record(env_id: str) -> Path:
    from datetime import datetime

    name = env_id.rpartition("/")[2]
    return Path("runs") / "play" / f"{name}-{datetime.now():%Y%m%d-%H%M%S}.jsonl"
