"""``paw check``: the contract suite, run on one environment."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from paw_train.cli.arguments import EnvName, EnvSettings

if TYPE_CHECKING:
    from paw_gym.contract import CheckResult

_MARKS = {"passed": "[green]✓[/green]", "failed": "[red]✗[/red]", "skipped": "[yellow]–[/yellow]"}


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
    from rich.markup import escape
    from rich.table import Table

    from paw_gym.contract import CHECKS, iter_checks
    from paw_gym.contract.report import count_results
    from paw_gym.internals.printable import safe_console
    from paw_train.cli.arguments import environment_of

    env_id, settings = environment_of(env, kw)
    console = safe_console(highlight=False)
    console.print(f"[bold]{env_id}[/bold] {' '.join(kw or [])}")
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
    console.print(
        f"Next: paw play {env_id}, paw eval expert env.id={env_id}, "
        f"paw train embedded env.id={env_id} name=first",
        style="dim",
        markup=False,
        soft_wrap=True,
    )


def _skipped_alike(result: CheckResult) -> tuple[str, ...]:
    """Equal for checks in a row that were skipped for one reason: they share a line."""
    alone = () if result.status == "skipped" else (result.name,)
    return (result.status, result.detail, *alone)
