"""``paw envs``, ``check`` and ``new-env``: lists environments, checks their contract, writes a new one."""

from __future__ import annotations

import shlex
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from paw_train.cli.shared import ENVIRONMENTS, EnvName, EnvSettings, environment_of, full_env_id

if TYPE_CHECKING:
    from paw_gym.contract import CheckResult

app = typer.Typer()


@app.command("envs", rich_help_panel=ENVIRONMENTS)
def envs(
    name: Annotated[
        str | None, typer.Argument(metavar="[ENV]", help="Show the page of this environment.")
    ] = None,
) -> None:
    """List the environments, or describe one of them."""
    import inspect

    from rich import box
    from rich.markdown import Markdown
    from rich.table import Table
    from rich.text import Text

    from paw_gym.internals.constructors import creator_of, registered_id
    from paw_gym.internals.printable import safe_console
    from paw_gym.registration import text_env_ids, text_env_spec

    console = safe_console()
    if name is not None:
        env_id = registered_id(full_env_id(name))
        creator = creator_of(env_id)
        page = inspect.getdoc(getattr(creator, "play", creator))
        page = page or text_env_spec(env_id).description
        console.print(Markdown(f"# {env_id}\n\n{page}"))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("environment", style="bold", no_wrap=True)
    table.add_column("what it is")
    table.add_column("package", style="dim")
    for env_id in text_env_ids():
        spec = text_env_spec(env_id)
        table.add_row(*map(Text, (env_id, spec.description, spec.package)))
    console.print(table)
    console.print(
        "[dim]paw envs ENV describes one, paw play ENV plays it, paw check ENV tests it.[/dim]"
    )


_MARKS = {"passed": "[green]✓[/green]", "failed": "[red]✗[/red]", "skipped": "[yellow]–[/yellow]"}


@app.command("play", rich_help_panel=ENVIRONMENTS)
def play(
    env: EnvName,
    kw: EnvSettings = None,
    task: Annotated[
        str | None, typer.Option(help="Id of the first task; default: a sampled one.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seeds the sampling of tasks.")] = None,
    record: Annotated[
        Path | None, typer.Option(help="JSONL file for the transitions; default: in runs/play.")
    ] = None,
) -> None:
    """Play in the terminal: pick an action by its number or type it; [cyan]:help[/cyan] lists more."""
    from datetime import datetime

    from paw_gym.registration import make_text_env
    from paw_train.cli.play import Game

    env_id, settings = environment_of(env, kw)
    name = f"{env_id.rpartition('/')[2]}-{datetime.now():%Y%m%d-%H%M%S}.jsonl"
    game = Game(env_id, make_text_env(env_id, **settings), record or Path("runs", "play", name))
    game.start(task, seed)
    game.run()


@app.command("check", rich_help_panel=ENVIRONMENTS)
def check(
    env: EnvName,
    kw: EnvSettings = None,
    tasks: Annotated[int, typer.Option(min=1, help="How many tasks to sample.")] = 3,
    seed: Annotated[int, typer.Option(help="Seeds the sampled tasks and the rollouts.")] = 0,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="CHECK", help="Run only this check; may be repeated."),
    ] = None,
    time_limit: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Time limit of a check, after which it is stopped."),
    ] = 60.0,
    trace: Annotated[
        bool, typer.Option("--trace", help="Show the traceback of each failed check.")
    ] = False,
) -> None:
    """Test whether an environment satisfies the contract; exit code 1 if it does not."""
    from rich.table import Table

    from paw_gym.contract import CHECKS, iter_checks
    from paw_gym.contract.subject import count_results
    from paw_gym.internals.printable import safe_console

    env_id, settings = environment_of(env, kw)
    console = safe_console(highlight=False)
    console.print(f"[bold]{env_id}[/bold] {escape(' '.join(kw or []))}")
    width = max(map(len, CHECKS))
    done: list[CheckResult] = []
    results = iter_checks(
        env_id, tasks=tasks, seed=seed, only=only, time_limit=time_limit, **settings
    )
    with console.status("checking ..."):
        for (status, detail, *_), alike in groupby(results, key=_skipped_alike):
            group = list(alike)
            done += group
            style = "red" if status == "failed" else "dim"
            name = group[0].name if len(group) == 1 else f"{len(group)} checks"
            row = Table.grid(padding=(0, 1))
            row.add_row(_MARKS[status], name.ljust(width), f"[{style}]{escape(detail)}[/{style}]")
            console.print(row)
            if trace and group[0].traceback:
                console.print(group[0].traceback, style="dim", markup=False, soft_wrap=True)
    if any(result.status == "failed" for result in done):
        hint = "" if trace else " (--trace shows where)"
        console.print(f"[bold red]{count_results(done)}.[/bold red]{hint}")
        raise typer.Exit(1)
    console.print(f"[bold green]{count_results(done)}.[/bold green]")
    play = " ".join([env_id, *(f"--kw {shlex.quote(pair)}" for pair in kw or [])])
    given = " ".join([f"env.id={env_id}", *(f"env.kwargs.{shlex.quote(p)}" for p in kw or [])])
    console.print(
        f"Next: paw play {play}, paw eval expert {given}, paw train embedded {given} name=first",
        style="dim",
        markup=False,
        soft_wrap=True,
    )


def _skipped_alike(result: CheckResult) -> tuple[str, ...]:
    """A key that is equal for successive checks skipped for the same reason: they share a line."""
    alone = () if result.status == "skipped" else (result.name,)
    return (result.status, result.detail, *alone)


@app.command("new-env", rich_help_panel=ENVIRONMENTS)
def new_env(
    name: Annotated[str, typer.Argument(help="Name of the package, such as [cyan]my-maze[/cyan].")],
    into: Annotated[
        Path, typer.Option(help="Folder in which the package's folder is created.")
    ] = Path(),
) -> None:
    """Write a package with an environment, its registration, tests and page. It passes `paw check`."""
    from paw_gym.internals.printable import safe_console
    from paw_train.cli.scaffold import Names, write_scaffold

    names = Names.of(name)
    folder = write_scaffold(names, into)
    console = safe_console(highlight=False, soft_wrap=True)
    console.print(f"[green]Wrote[/green] {escape(str(folder))}")
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        console.print(f"  {path.relative_to(folder)}", style="dim", markup=False)
    console.print(
        f"Next:\n  pip install -e {folder}\n  paw check {names.env_id}\n  paw play {names.env_id}\n"
        f"and make it yours: {folder / names.package / 'env.py'}",
        markup=False,
    )
