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
            metavar="[KEY=VALUE]...",
            help="Settings, such as [cyan]evaluation.tasks=100[/cyan] or [cyan]agent.n=8[/cyan].",
        ),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent",
            "-a",
            help="How the model is used: [cyan]plain[/cyan], [cyan]cot[/cyan], [cyan]react[/cyan], "
            "[cyan]reflexion[/cyan], [cyan]self_consistency[/cyan], [cyan]best_of_n[/cyan]; default: "
            "[cyan]policy[/cyan], as it is trained.",
        ),
    ] = None,
    panel: Annotated[
        str | None,
        typer.Option(
            "--panel",
            "-p",
            help="A named list of tasks, such as [cyan]alfworld/valid_seen[/cyan]; default: drawn "
            "as [cyan]evaluation.split[/cyan] and [cyan]evaluation.tasks[/cyan] say.",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(help="Play the panel so often, each time with another seed.", min=1)
    ] = 1,
    out: Annotated[
        str | None, typer.Option(help="Folder for result.json and the episodes.")
    ] = None,
) -> None:
    """Measure success on a fixed panel of tasks, with 95 % intervals, per task type.

    Stopped or killed, the same command goes on where it was.
    """
    from paw_train.evaluation import evaluate_from_args

    evaluate_from_args(model, list(overrides or []), out, agent, panel, seeds)
