"""``paw leaderboard``: results of ``paw eval`` side by side, as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def leaderboard(
    results: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RESULT]...", help="Results to add: folders or files of [cyan]paw eval[/cyan]."
        ),
    ] = None,
    folder: Annotated[Path, typer.Option(help="The folder of published results.")] = Path(
        "benchmarks/results"
    ),
    page: Annotated[Path, typer.Option(help="The page to write.")] = Path("docs/leaderboard.md"),
) -> None:
    """Add results to the published ones and rewrite the page. The copies contain no paths or host names."""
    from paw_gym.files import write_text
    from paw_train.evaluation import leaderboard as board

    if not results and not folder.is_dir():
        raise ValueError(
            f"There is no folder {folder} of published results, and no result was given."
        )
    for result in results or []:
        board.published(board.load_result(result))  # all are fit for it before one is added
    for result in results or []:
        typer.echo(f"Added {board.add_result(result, folder)}")
    page.parent.mkdir(parents=True, exist_ok=True)
    write_text(page, board.page(folder))
    typer.echo(f"Written to {page}")
