"""Training of language agents with world-model co-training (PaW), on top of ``paw_gym``.

What the ``paw`` program does, as functions:

```python
from paw_train import compare, evaluate, load_recipe, train

run = train(load_recipe("smoke", "seed=1"))  # the run's folder
result = evaluate(run, "evaluation.tasks=20")  # the contents of result.json
comparison = compare("embedded_wm", seeds=(0, 1))
```

Importing this package is cheap: torch is loaded by the functions that need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paw_train.reporting.compare.analysis import Comparison
    from paw_train.settings import Settings

__all__ = ["compare", "evaluate", "load_recipe", "train"]


def load_recipe(recipe: str | Path, *overrides: str) -> Settings:
    """The settings of a recipe.

    Args:
        recipe: the name of one that comes with the project, or the path of a ``.yaml`` file.
        overrides: settings that differ, as ``"group.key=value"``.
    """
    from paw_train.settings import load_settings

    return load_settings(recipe, _texts(overrides))


def _texts(overrides: tuple[str, ...]) -> tuple[str, ...]:
    """The settings as they are; an error if one is no text, as in ``load_recipe("smoke", ["seed=1"])``."""
    for one in overrides:
        if not isinstance(one, str):
            raise ValueError(f"Expected each setting as an argument 'key=value', got {one!r}.")
    return overrides


def train(settings: Settings, *, fresh: bool = False, quiet: bool = False) -> Path:
    """Trains by the engine that the settings name; an unfinished run continues where it stopped.

    Args:
        settings: of ``load_recipe``, or a ``Settings`` of your own.
        fresh: delete a run of the same name first.
        quiet: show no progress.

    Returns:
        The run's folder: checkpoints, metrics, evaluations, report.
    """
    if settings.engine == "openrlhf":
        from paw_train.training.openrlhf.launch import train as start
    else:
        from paw_train.training.local import train as start
    return start(settings, fresh=fresh, quiet=quiet)


def evaluate(
    model: str | Path,
    *overrides: str,
    agent: str | None = None,
    panel: str | None = None,
    seeds: int = 1,
    out: str | Path | None = None,
) -> dict[str, Any]:
    """Plays a fixed panel of tasks, as ``paw eval`` does; an unfinished evaluation is completed.

    Args:
        model: a run's folder, a model's folder or hub name, ``openai:MODEL``, ``vllm:MODEL``,
            ``expert`` or ``random``.
        overrides: settings, as ``"group.key=value"``.
        agent: how the model is prompted (``paw_train.agents.AGENTS``); ``None``: as it was trained.
        panel: a named panel; ``None``: tasks drawn as ``evaluation`` says.
        seeds: how often the panel is played.
        out: the folder to write to; ``None``: ``eval-...`` in the run, or in ``runs``.

    Returns:
        The contents of ``result.json``.
    """
    import json

    from paw_train.evaluation import evaluate_from_args

    folder = None if out is None else str(out)
    path = evaluate_from_args(str(model), _texts(overrides), folder, agent, panel, seeds)
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def compare(
    grid: str | Path,
    *,
    arms: Sequence[str] = (),
    seeds: Sequence[int] = (),
    jobs: int | None = None,
    out: str | Path = "runs",
    quiet: bool = False,
) -> Comparison:
    """Executes the missing runs of a grid (methods x seeds), and compares what has finished.

    Args:
        grid: the name of a grid that comes with the project, or the path of its ``.yaml`` file.
        arms: run only these; empty: all.
        seeds: run only these; empty: the grid's.
        jobs: processes at a time; ``None``: one per core.
        out: the folder that contains the comparison's own.
        quiet: show no progress.

    Returns:
        Each arm's mean with its interval, and its paired difference to the baseline.

    Raises:
        RuntimeError: a run failed; names its log.
    """
    from paw_train.reporting.compare.folder import ComparisonFolder
    from paw_train.reporting.compare.grid import load_grid
    from paw_train.reporting.compare.runs import Progress
    from paw_train.settings.run import available_cores
    from paw_train.training import require_startable

    wanted = load_grid(str(grid))
    progress = Progress(quiet)
    comparison = ComparisonFolder(wanted, str(out), say=progress.say, arms=arms, seeds=seeds)
    work = comparison.execute(jobs or available_cores(), progress, require_startable)
    comparison.save()
    if work.failures:
        failed = [f"{f.run} ended with {f.code} (its log: {f.log})" for f in work.failures]
        raise RuntimeError("; ".join(failed))
    return comparison.comparison()
