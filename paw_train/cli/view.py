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
    from env_servers.service import ServiceSettings, require_free
    from env_servers.service import run as serve
    from paw_train.viewer.app import create_app
    from paw_train.viewer.opening import free_port, open_when_ready

    require_free(host, port)
    settings = ServiceSettings(host, port or free_port(host), token_or_environment(token))
    app = create_app(run, token=settings.token, hosts=[host, *(allow_host or [])])
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{settings.port}/"
    typer.echo(f"{run} on {address} (Ctrl-C stops it)", err=True)
    if open_page:
        open_when_ready(address)
    serve(app, settings, verbose=verbose)
