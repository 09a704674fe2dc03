"""``paw view``: opens runs and evaluations in the browser."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from paw_train.cli.serve import AllowHost, Host, NoToken, Token, Verbose, serve, settings_of


def view(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run's folder, or a folder of runs.")
    ],
    open_page: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in the browser of this machine.")
    ] = True,
    host: Host = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 takes any free one.", min=0, max=65535)
    ] = 8765,
    token: Token = None,
    no_token: NoToken = False,
    allow_host: AllowHost = None,
    verbose: Verbose = False,
) -> None:
    """View a run or an evaluation: curves, results, episodes, what the world model learns."""
    from paw_train.viewer.app import create_app
    from paw_train.viewer.opening import open_when_ready

    settings = settings_of(host, port, token, no_token)
    hosts = [host, *(allow_host or [])]
    make = partial(create_app, run, token=settings.token, hosts=hosts)
    opened = {"on_address": open_when_ready} if open_page else {}
    serve(str(run), settings, make, verbose, has_pages=True, **opened)
