"""``paw envs``: which environments there are, and the page of one."""

from __future__ import annotations

from typing import Annotated

import typer


def envs(
    name: Annotated[
        str | None, typer.Argument(metavar="[ENV]", help="Show the page of this environment.")
    ] = None,
) -> None:
    """List the environments, or describe one of them."""
    if name is None:
        _list()
    else:
        _describe(name)


def _list() -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from paw_gym.registration import text_env_ids, text_env_spec

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("environment", style="bold", no_wrap=True)
    table.add_column("what it is")
    table.add_column("package", style="dim")
    for env_id in text_env_ids():
        spec = text_env_spec(env_id)
        table.add_row(env_id, spec.description, spec.package)
    console = Console()
    console.print(table)
    console.print(
        "[dim]paw envs ENV describes one, paw play ENV plays it, paw check ENV tests it.[/dim]"
    )


def _describe(name: str) -> None:
    import inspect

    from rich.console import Console
    from rich.markdown import Markdown

    from paw_gym.internals.constructors import creator_of, registered_id
    from paw_gym.registration import text_env_spec
    from paw_train.cli.arguments import full_env_id

    env_id = registered_id(full_env_id(name))
    creator = creator_of(env_id)
    page = inspect.getdoc(getattr(creator, "play", creator)) or text_env_spec(env_id).description
    console = Console()
    console.print(Markdown(f"# {env_id}\n\n{page}"))
