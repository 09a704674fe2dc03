"""``paw check``: whether an environment keeps the contract."""

from __future__ import annotations

from typing import Annotated

import typer

from paw_train.cli.arguments import EnvName, EnvSettings

_MARKS = {"passed": "[green]✓[/green]", "failed": "[red]✗[/red]", "skipped": "[yellow]–[/yellow]"}


def check(
    env: EnvName,
    kw: EnvSettings = None,
    tasks: Annotated[int, typer.Option(min=1, help="How many tasks to sample.")] = 3,
    seed: Annotated[int, typer.Option(help="Seeds the sample and all play.")] = 0,
    only: Annotated[
        list[str] | None, typer.Option(metavar="CHECK", help="Run this check; repeat it for more.")
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Show where a failed check failed.")
    ] = False,
) -> None:
    """Test whether an environment keeps the contract; exit code 1 if it does not."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from paw_gym.contract import CHECKS, iter_checks
    from paw_train.cli.arguments import check_settings, full_env_id, parse_settings

    env_id, settings = full_env_id(env), parse_settings(kw)
    check_settings(env_id, settings)
    console = Console(highlight=False)
    console.print(f"[bold]{env_id}[/bold] {' '.join(kw or [])}")
    width = max(map(len, CHECKS))
    failed = count = 0
    results = iter_checks(env_id, tasks=tasks, seed=seed, only=only, **settings)
    with console.status("checking ..."):
        for result in results:
            count += 1
            failed += result.status == "failed"
            style = "red" if result.status == "failed" else "dim"
            row = Table.grid(padding=(0, 1))
            row.add_row(
                _MARKS[result.status],
                result.name.ljust(width),
                f"[{style}]{escape(result.detail)}[/{style}]",
            )
            console.print(row)
            if trace and result.traceback:
                console.print(result.traceback, style="dim", markup=False)
    if failed:
        hint = "" if trace else " (--trace shows where)"
        console.print(f"[bold red]{failed} of {count} checks failed.[/bold red]{hint}")
        raise typer.Exit(1)
    console.print(f"[bold green]All {count} checks passed.[/bold green]")
    console.print(
        f"Next: paw play {env_id}, paw eval expert env.id={env_id}, "
        f"paw train embedded env.id={env_id} name=first",
        style="dim",
        markup=False,
        soft_wrap=True,
    )
