"""``paw serve``: starts a service. Each service is a command of this group."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paw_train.cli.arguments import Imports
from paw_train.cli.errors import CommandGroup

if TYPE_CHECKING:
    from env_servers.service import ServiceSettings

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    help="Start a service: the WebShop site, a retriever, a gateway to any environment.",
    rich_markup_mode="rich",
)

Host = Annotated[
    str,
    typer.Option(help="Address to listen on; addresses other than this machine's need a token."),
]
Port = Annotated[int, typer.Option(help="Port to listen on; 0 takes any free one.")]
Token = Annotated[
    str | None,
    typer.Option(
        help="Token that clients must send; safer in the environment variable PAW_SERVE_TOKEN."
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Log every request.")]


def token_or_environment(token: str | None) -> str | None:
    """The token of the command line, or that of the environment variable ``PAW_SERVE_TOKEN``."""
    return token if token is not None else os.environ.get("PAW_SERVE_TOKEN")


def _serve(
    name: str, settings: ServiceSettings, make: Callable[[], Any], verbose: bool, **options: Any
) -> None:
    """Makes a service and runs it. Its address is checked first: what it serves may take long to open."""
    from env_servers.service import address_of, bound_sockets, run

    sockets = bound_sockets(settings.host, settings.port)
    service = make()
    typer.echo(f"{name} on {address_of(settings, sockets)} (Ctrl-C stops it)", err=True)
    drain = getattr(service, "drain", None)
    run(service, settings, sockets=sockets, verbose=verbose, drain=drain, **options)


@app.command("webshop")
def webshop(
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Folder with items_*.json. Default: generated products."),
    ] = None,
    num_products: Annotated[
        int | None, typer.Option(help="Number of products to use, counted from the first.")
    ] = None,
    search: Annotated[str, typer.Option(help="bm25 or lucene.")] = "bm25",
    goals: Annotated[str | None, typer.Option(help="synthetic, human, or a JSON file.")] = None,
    prices: Annotated[str | None, typer.Option(help="A JSON file: dollars by asin.")] = None,
    nouns: Annotated[str | None, typer.Option(help="spacy or rules.")] = None,
    session_minutes: Annotated[
        float, typer.Option(help="Time after which an unused session is dropped.")
    ] = 60.0,
    sessions_per_client: Annotated[
        int, typer.Option(help="Maximum number of sessions per address.")
    ] = 1024,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token: Token = None,
    verbose: Verbose = False,
) -> None:
    """Serve the WebShop site and [cyan]WebShop-v0(server=URL)[/cyan]."""
    from env_servers.service import ServiceSettings
    from env_servers.sessions import SessionStore
    from env_servers.webshop import create_app
    from paw_gym.envs.webshop.env import ShopSettings

    settings = ServiceSettings(host, port, token_or_environment(token))
    shop = ShopSettings(
        None if data_dir is None else str(data_dir), num_products, search, goals, prices, nouns
    )
    sessions = SessionStore(session_minutes * 60, limit_per_client=sessions_per_client)
    make = partial(create_app, shop, sessions=sessions, token=settings.token)
    _serve("WebShop", settings, make, verbose)


@app.command("retriever")
def retriever(
    name: Annotated[
        str, typer.Option("--retriever", help="bm25, lucene, e5, hybrid or simulated.")
    ] = "bm25",
    corpus: Annotated[
        Path | None, typer.Option(help="The passages: a [cyan].jsonl[/cyan] file.")
    ] = None,
    index: Annotated[
        Path | None, typer.Option(help="A folder that [cyan]paw index build[/cyan] made.")
    ] = None,
    kw: Annotated[
        list[str] | None,
        typer.Option("--kw", "-k", metavar="KEY=VALUE", help="A setting of the retriever."),
    ] = None,
    max_batch: Annotated[int, typer.Option(help="Queries answered in one call.")] = 64,
    max_wait_ms: Annotated[
        float, typer.Option(help="How long a single request waits to be batched with others.")
    ] = 0.0,
    threads: Annotated[int, typer.Option(help="Maximum number of concurrent calls.")] = 2,
    max_pending: Annotated[int, typer.Option(help="Maximum number of queries that wait.")] = 20_000,
    cache: Annotated[int, typer.Option(help="Number of results to cache.")] = 0,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token: Token = None,
    verbose: Verbose = False,
) -> None:
    """Serve a retriever, for [cyan]SearchQA-v0(retriever=URL)[/cyan] and for Search-R1 clients."""
    from rich.console import Console

    from env_servers.retrieval import create_app
    from env_servers.service import ServiceSettings
    from paw_gym.retrieval import make_retriever
    from paw_train.cli.arguments import parse_settings

    settings = ServiceSettings(host, port, token_or_environment(token))
    chosen = parse_settings(kw)
    chosen |= {key: value for key, value in (("corpus", corpus), ("index", index)) if value}

    def make() -> Any:
        with Console(stderr=True).status(f"opening the retriever {name} ..."):
            opened = make_retriever(name, cache=cache, **chosen)
        return create_app(
            opened,
            name=name,
            token=settings.token,
            max_batch=max_batch,
            max_wait=max_wait_ms / 1000,
            threads=threads,
            max_pending=max_pending,
        )

    _serve("Retriever", settings, make, verbose)


@app.command("gateway")
def gateway(
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ENV",
            help="Serve only this environment; may be repeated; default: all registered ones.",
        ),
    ] = None,
    modules: Imports = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY", help="Setting that clients may choose, in addition to the safe ones."
        ),
    ] = None,
    fixed: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="ENV:KEY=VALUE", help="A setting of one environment, for all clients."
        ),
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes that run environments.")] = 2,
    sessions: Annotated[int, typer.Option(help="Maximum number of concurrent sessions.")] = 4096,
    sessions_per_client: Annotated[
        int, typer.Option(help="Maximum number of sessions per client.")
    ] = 1024,
    session_minutes: Annotated[
        float, typer.Option(help="Time after which an unused session is dropped.")
    ] = 30.0,
    step_seconds: Annotated[
        float, typer.Option(help="Time limit of a call, after which the environment is stopped.")
    ] = 30.0,
    memory_mb: Annotated[int, typer.Option(help="Address space of a worker; 0: no limit.")] = 0,
    drain_seconds: Annotated[
        float, typer.Option(help="How long sessions may continue after SIGTERM.")
    ] = 30.0,
    certificate: Annotated[
        Path | None, typer.Option(help="A PEM file: speak TLS with this certificate.")
    ] = None,
    private_key: Annotated[
        Path | None, typer.Option(help="The certificate's key, where it is in another file.")
    ] = None,
    tokens_file: Annotated[
        Path | None, typer.Option(help="One token per line: each client has its own.")
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token: Token = None,
    verbose: Verbose = False,
) -> None:
    """Serve environments to other processes and machines, for [cyan]paw_gym.make_remote(URL, ENV)[/cyan]."""
    from env_servers.gateway import Limits, create_app
    from env_servers.gateway.options import offer_of, tokens_of
    from env_servers.service import ServiceSettings
    from paw_train.cli.arguments import full_env_id, import_modules, parse_settings

    import_modules(modules)
    offer = offer_of(env or [], allow or [], fixed or [], full_env_id, parse_settings)
    tokens = tokens_of(token_or_environment(token), tokens_file)
    files = [None if path is None else str(path) for path in (certificate, private_key)]
    settings = ServiceSettings(host, port, tokens[0] if tokens else None, *files)
    limits = Limits(
        workers=workers,
        sessions=sessions,
        sessions_per_client=sessions_per_client,
        session_seconds=session_minutes * 60,
        step_seconds=step_seconds,
        memory_mb=memory_mb,
        drain_seconds=drain_seconds,
    )
    make = partial(create_app, offer, limits, modules=modules or [], tokens=tokens)
    _serve("Gateway", settings, make, verbose, drain_seconds=drain_seconds)
