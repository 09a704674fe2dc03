"""``paw eval``: success on a fixed panel of tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paw_train.cli.arguments import Imports, import_modules

FAILED, NONE, STOPPED = 1, 2, 3
"""exit codes: tasks failed by an error; there is no result at all; a budget was reached"""


def _agents(incomplete: str) -> list[str]:
    """Names for the shell to complete."""
    from paw_train.baselines import AGENTS

    return [name for name in AGENTS if name.startswith(incomplete)]


def _panels(incomplete: str) -> list[str]:
    """Names for the shell to complete."""
    from paw_train.evaluation.panels import PANELS

    return [name for name in PANELS if name.startswith(incomplete)]


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
            metavar="[MODEL]... [KEY=VALUE]...",
            help="Further models, and settings, such as [cyan]evaluation.temperature=0[/cyan] or "
            "[cyan]agent.n=8[/cyan].",
        ),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent",
            "-a",
            help="How the model is used: [cyan]plain[/cyan], [cyan]cot[/cyan], [cyan]react[/cyan], "
            "[cyan]reflexion[/cyan], [cyan]react_paper[/cyan], [cyan]reflexion_paper[/cyan], "
            "[cyan]search_r1[/cyan], [cyan]self_consistency[/cyan], [cyan]best_of_n[/cyan], "
            "[cyan]likelihood[/cyan]; default: [cyan]policy[/cyan], as it is trained.",
            autocompletion=_agents,
        ),
    ] = None,
    panel: Annotated[
        str | None,
        typer.Option(
            "--panel",
            "-p",
            help="A named list of tasks, such as [cyan]alfworld/valid_seen[/cyan], or several with "
            "commas between; default: sampled by [cyan]evaluation.split[/cyan] and "
            "[cyan]evaluation.tasks[/cyan].",
            autocompletion=_panels,
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(help="Evaluations of the panel, each with its own seed.", min=1)
    ] = 1,
    limit: Annotated[
        int | None,
        typer.Option(
            help="Evaluate at most this many tasks ([cyan]evaluation.tasks[/cyan]), sampled by seed.",
            min=1,
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="Folder for result.json and the episodes; of several evaluations: for their folders."
        ),
    ] = None,
    modules: Imports = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over and replace the contents of the folder.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Estimate requests, tokens and cost; send and write nothing."
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
) -> None:
    """Measure success on a fixed panel of tasks, with 95 % intervals, per task type.

    If it was stopped or killed, the same command resumes it; if it has finished, it shows the result. Exit
    code 1: some tasks failed with an error; 3: a budget ([cyan]endpoint.budget_cost[/cyan], ...) was reached.
    Several models or panels are evaluated one after the other, and shown in one table; exit code 2: one of
    these evaluations has no result.
    """
    import_modules(modules)
    given = overrides or []
    models = [model, *(a for a in given if "=" not in a or Path(a).is_dir())]
    settings = [a for a in given if a not in models[1:]]
    settings += [] if limit is None else [f"evaluation.tasks={limit}"]
    panels: list[str | None] = (
        [None] if panel is None else [name.strip() for name in panel.split(",")]
    )
    if dry_run:
        _estimate(models, settings, agent, panels, seeds, as_json, quiet)
        return
    import json

    from paw_train.evaluation import evaluate_from_args

    silent, single = quiet or as_json, len(models) == len(panels) == 1
    if single:
        path = evaluate_from_args(model, settings, out, agent, panel, seeds, silent, fresh)
        results, failed = [json.loads(path.read_text(encoding="utf-8"))], []
    else:
        from paw_train.evaluation.program import evaluate_several

        several = evaluate_several(models, settings, out, agent, panels, seeds, silent, fresh)
        results, failed = several.results, several.failed
    if as_json:
        typer.echo(json.dumps(results[0] if single else results, indent=2))
    for reason in failed:
        typer.echo(f"Error: {reason}", err=True)
    if failed:
        raise typer.Exit(NONE)
    if any(result["errors"] for result in results):
        raise typer.Exit(FAILED)
    if any(result["stopped"] for result in results):
        raise typer.Exit(STOPPED)


def _estimate(
    models: list[str],
    settings: list[str],
    agent: str | None,
    panels: list[str | None],
    seeds: int,
    as_json: bool,
    quiet: bool,
) -> None:
    import json

    from rich.console import Console

    from paw_train.evaluation.program import estimate_from_args
    from paw_train.evaluation.terminal import estimate_table

    several = len(models) * len(panels) > 1
    names = [(model, panel) for model in models for panel in panels]
    found = [estimate_from_args(model, settings, agent, panel, seeds) for model, panel in names]
    if as_json:
        typer.echo(json.dumps(found if several else found[0], indent=2))
    elif not quiet:
        for (model, panel), estimate in zip(names, found, strict=True):
            title = f"{model} {panel or ''}" if several else ""
            Console().print(estimate_table(estimate, title))
