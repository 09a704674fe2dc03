"""``paw view``: opens runs and evaluations in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paw_train.cli.serve import Host, Token, Verbose, token_or_environment


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
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Another host name under which the server is reached."),
    ] = None,
    token: Token = None,
    verbose: Verbose = False,
) -> None:
    """View a run or an evaluation: curves, results, episodes, what the world model learns."""
    from env_servers.service import ServiceSettings, address_of, bound_sockets
    from env_servers.service import run as serve
    from paw_train.viewer.app import create_app
    from paw_train.viewer.opening import open_when_ready

    settings = ServiceSettings(host, port, token_or_environment(token))
    sockets = bound_sockets(host, port)
    app = create_app(run, token=settings.token, hosts=[host, *(allow_host or [])])
    address = f"{address_of(settings, sockets)}/"
    typer.echo(f"{run} on {address} (Ctrl-C stops it)", err=True)
    if open_page:
        open_when_ready(address)
    serve(app, settings, sockets=sockets, verbose=verbose)
