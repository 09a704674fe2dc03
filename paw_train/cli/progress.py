"""Progress of long commands, on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

Show = Callable[[str, int, int | None], None]


@contextmanager
def progress_bars(amount: ProgressColumn) -> Iterator[Show]:
    """A bar for each name, added at its first report: the value is a function of (name, done, total).

    Args:
        amount: the column between the bar and the remaining time.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        amount,
        TimeRemainingColumn(compact=True),
    )
    bars: dict[str, TaskID] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as display:

        def show(name: str, done: int, total: int | None) -> None:
            if name not in bars:
                bars[name] = display.add_task(name, total=total)
            display.update(bars[name], completed=done, total=total)

        yield show
