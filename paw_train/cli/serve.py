"""``paw serve``: starts a service. ``paw view``: shows runs and evaluations in the browser."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paw_train.cli.shared import (
    ENVIRONMENTS,
    TRAINING,
    CommandGroup,
    EnvName,
    EnvSettings,
    Imports,
    environment_of,
    full_env_id,
    import_modules,
    parse_settings,
)

if TYPE_CHECKING:
    from env_servers.service import ServiceSettings

app = typer.Typer()

services = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    help="Start a service: the WebShop site, a retriever, a gateway to any environment, MCP tools.",
    rich_markup_mode="rich",
)
app.add_typer(services, name="serve", rich_help_panel=ENVIRONMENTS)

TOKEN_VARIABLE = "PAW_SERVE_TOKEN"

Host = Annotated[
    str,
    typer.Option(help="Address to listen on; addresses other than this machine's need a token."),
]
Port = Annotated[int, typer.Option(help="Port to listen on; 0 takes any free one.")]
Token = Annotated[
    str | None,
    typer.Option(
        help="Token that clients must send; safer in the environment variable PAW_SERVE_TOKEN. "
        "Default: a new one, which is printed."
    ),
]
NoToken = Annotated[
    bool, typer.Option("--no-token", help="Let in everybody who has an account on this machine.")
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Another host name under which the server is reached."),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Log every request.")]


def settings_of(
    host: str, port: int, token: str | None, no_token: bool, *files: str | None
) -> ServiceSettings:
    """The address and the token of a service: given as an option or a variable, or made."""
    from env_servers.service import ServiceSettings

    if no_token and token is not None:
        raise ValueError("Give either --token or --no-token.")
    given = None if no_token else token or os.environ.get(TOKEN_VARIABLE)
    is_new = given is None and not no_token
    return ServiceSettings(
        host, port, secrets.token_urlsafe(24) if is_new else given, is_new, *files
    )


def serve(
    name: str,
    settings: ServiceSettings,
    make: Callable[[], Any],
    verbose: bool,
    *,
    has_pages: bool = False,
) -> None:
    """Makes a service and runs it. It binds its address first: what it serves may take long to open."""
    from env_servers.service import address_of, bound_sockets, run

    sockets = bound_sockets(settings.host, settings.port)
    service = make()
    address = address_of(settings, sockets)
    link = f"{address}/?token={settings.token}" if settings.is_new else f"{address}/"
    typer.echo(f"{name} on {link if has_pages else address} (Ctrl-C stops it)", err=True)
    if settings.is_new:
        shown = f'the header "Authorization: Bearer {settings.token}"'
        typer.echo(f"Clients send {shown}; yours on this machine find it by themselves.", err=True)
    run(service, settings, sockets=sockets, verbose=verbose)


@services.command("webshop")
def webshop(
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder with items_*.json. Default: generated products.")
    ] = None,
    num_products: Annotated[
        int | None, typer.Option(help="Number of products to use, counted from the first.")
    ] = None,
    search: Annotated[str, typer.Option(help="bm25 or lucene.")] = "bm25",
    goals: Annotated[str | None, typer.Option(help="synthetic, human, or a JSON file.")] = None,
    prices: Annotated[str | None, typer.Option(help="A JSON file: dollars by asin.")] = None,
    nouns: Annotated[str | None, typer.Option(help="spacy or rules.")] = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token: Token = None,
    no_token: NoToken = False,
    allow_host: AllowHost = None,
    verbose: Verbose = False,
) -> None:
    """Serve the WebShop site and [cyan]WebShop-v0(server=URL)[/cyan]."""
    from env_servers.webshop import create_app
    from paw_gym.envs.webshop.env import ShopSettings

    settings = settings_of(host, port, token, no_token)
    shop = ShopSettings(
        None if data_dir is None else str(data_dir), num_products, search, goals, prices, nouns
    )
    hosts = [host, *(allow_host or [])]
    make = partial(create_app, shop, token=settings.token, hosts=hosts)
    serve("WebShop", settings, make, verbose, has_pages=True)


@services.command("retriever")
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
    threads: Annotated[int, typer.Option(help="Maximum number of concurrent calls.")] = 2,
    max_pending: Annotated[int, typer.Option(help="Maximum number of queries that wait.")] = 20_000,
    max_queries: Annotated[
        int, typer.Option(min=1, max=16_384, help="Maximum number of queries of one request.")
    ] = 2_048,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token: Token = None,
    no_token: NoToken = False,
    allow_host: AllowHost = None,
    verbose: Verbose = False,
) -> None:
    """Serve a retriever, for [cyan]SearchQA-v0(retriever=URL)[/cyan] and for Search-R1 clients."""
    from rich.text import Text

    from env_servers.retrieval import create_app
    from paw_gym.internals.printable import safe_console
    from paw_gym.retrieval import make_retriever

    settings = settings_of(host, port, token, no_token)
    chosen = parse_settings(kw)
    chosen |= {key: value for key, value in (("corpus", corpus), ("index", index)) if value}

    def make() -> Any:
        with safe_console(stderr=True).status(Text(f"opening the retriever {name} ...")):
            opened = make_retriever(name, **chosen)
        return create_app(
            opened,
            name=name,
            max_queries=max_queries,
            token=settings.token,
            hosts=[host, *(allow_host or [])],
            max_batch=max_batch,
            threads=threads,
            max_pending=max_pending,
        )

    serve("Retriever", settings, make, verbose)


@services.command("gateway")
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
    no_token: NoToken = False,
    allow_host: AllowHost = None,
    verbose: Verbose = False,
) -> None:
    """Serve environments to other processes and machines, for [cyan]paw_gym.make_remote(URL, ENV)[/cyan]."""
    from env_servers.gateway import Limits, create_app
    from env_servers.gateway.settings import offer_of, tokens_of

    import_modules(modules)
    offer = offer_of(env or [], allow or [], fixed or [], full_env_id, parse_settings)
    given = token or (None if no_token else os.environ.get(TOKEN_VARIABLE))
    tokens = tokens_of(given, tokens_file)
    files = [None if path is None else str(path) for path in (certificate, private_key)]
    settings = settings_of(host, port, tokens[0] if tokens else None, no_token, *files)
    if settings.token is not None and settings.token not in tokens:
        tokens.append(settings.token)
    limits = Limits(
        workers=workers,
        sessions=sessions,
        sessions_per_client=sessions_per_client,
        session_seconds=session_minutes * 60,
        step_seconds=step_seconds,
        memory_mb=memory_mb,
    )
    hosts = [host, *(allow_host or [])]
    make = partial(create_app, offer, limits, modules=modules or [], tokens=tokens, hosts=hosts)
    serve("Gateway", settings, make, verbose)


@services.command("mcp")
def mcp(
    env: EnvName,
    kw: EnvSettings = None,
    http: Annotated[
        bool, typer.Option("--http", help="Serve HTTP at /mcp instead of stdin and stdout.")
    ] = False,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token: Token = None,
    no_token: NoToken = False,
    allow_host: AllowHost = None,
    verbose: Verbose = False,
) -> None:
    """Serve an environment as tools of the Model Context Protocol, to agents that speak it."""
    from env_servers.mcp import create_app, create_server
    from paw_gym.registration import make_text_env

    env_id, settings = environment_of(env, kw)
    make_text_env(env_id, **settings).close()  # a mistake shows before a client connects
    served = create_server(env_id, settings)
    if not http:
        served.run("stdio")
        return
    address = settings_of(host, port, token, no_token)
    hosts = [host, *(allow_host or [])]
    serve(f"{env_id} over MCP", address, partial(create_app, served, address.token, hosts), verbose)


@app.command("view", rich_help_panel=TRAINING)
def view(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run's folder, or a folder of runs.")
    ],
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

    settings = settings_of(host, port, token, no_token)
    hosts = [host, *(allow_host or [])]
    make = partial(create_app, run, token=settings.token, hosts=hosts)
    serve(str(run), settings, make, verbose, has_pages=True)
