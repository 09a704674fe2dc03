"""``paw eval``: success on a fixed panel of tasks."""

from __future__ import annotations

from typing import Annotated

import typer


def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            help="A run's folder, the folder or hub name of a Hugging Face model, "
            "[cyan]openai:MODEL[/cyan] (any OpenAI-compatible endpoint, "
            "[cyan]endpoint.url=http://HOST:PORT/v1[/cyan]), [cyan]vllm:MODEL[/cyan] (in this "
            "process), [cyan]expert[/cyan] or [cyan]random[/cyan]."
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Settings, such as [cyan]evaluation.tasks=100[/cyan]."
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option(help="Folder for result.json and the episodes.")
    ] = None,
) -> None:
    """Measure success on a fixed panel of tasks, with 95 % intervals, per task type."""
    from paw_train.evaluation import evaluate_from_args

    evaluate_from_args(model, list(overrides or []), out)
