"""The report of a run as one self-contained page."""

from __future__ import annotations

import shlex
from pathlib import Path

from paw_gym.files import write_text
from paw_train.reporting.pages import render
from paw_train.reporting.run.curves import chart_sections, not_measured
from paw_train.reporting.run.episodes import episodes_by_task
from paw_train.reporting.run.results import number
from paw_train.reporting.run.run_data import FILES, RunData, load_run
from paw_train.reporting.run.tables import panel_measures, result_rows, setting_groups, tiles
from paw_train.reporting.run.verdict import task_noun, verdict_of
from paw_train.reporting.run.world_model import COLUMNS, world_model_rows

_NOISE = (
    ("of the tokens", "token_share"),
    ("of the gradient under CE", "ce"),
    ("of the gradient under MAE", "mae"),
    ("of the gradient under clipped MAE", "cmae"),
)
"""shares that fall on noisy tokens: label, and key in ``noise_gradient.json``"""


def write_report(run_dir: str | Path) -> Path:
    """Writes ``report.html`` into a run's folder, from whatever files are there.

    The page needs nothing else: no network (its own content policy forbids it), no script to be read.

    Args:
        run_dir: the folder of a run, finished or not.

    Returns:
        The path of the page.

    Raises:
        ValueError: there is no such folder, or nothing in it comes from a run.
    """
    run = load_run(run_dir)
    path = run.folder / "report.html"
    write_text(path, _page(run))
    return path


def _page(run: RunData) -> str:
    return render(
        "run.html",
        title=run.name,
        run=run,
        verdict=verdict_of(run),
        tiles=tiles(run),
        noun=task_noun(run.after or run.before),
        results=result_rows(run),
        measures=panel_measures(run),
        world_model_columns=COLUMNS,
        world_model=world_model_rows(run.world_model),
        sections=chart_sections(run),
        noise=[(label, number(run.noise.get(key))) for label, key in _NOISE],
        not_measured=not_measured(run),
        tasks=episodes_by_task(run),
        commands="\n".join(_commands(run)),
        settings=setting_groups(run),
        files=_files(run),
    )


def _commands(run: RunData) -> list[str]:
    folder = shlex.quote(str(run.folder))
    again = shlex.quote(f"name={run.name}-again")
    recipe = run.config.get("recipe")
    if isinstance(recipe, str) and recipe:
        train = [f"paw train {shlex.quote(recipe)} {again}"]
    elif run.config:
        # JSON is YAML: the resolved settings are a recipe
        train = [f"cp {folder}/config.json again.yaml", f"paw train again.yaml {again}"]
    else:
        train = []
    return [
        *train,
        f"paw report {folder}    # writes this page again",
        f"paw view {folder}      # more episodes",
    ]


def _files(run: RunData) -> list[tuple[str, str, str]]:
    """(name, meaning, size) of the run's files."""
    return [
        (name, meaning, _size((run.folder / name).stat().st_size))
        for name, meaning in FILES.items()
        if (run.folder / name).exists()
    ]


def _size(size: int) -> str:
    if size < 1000:
        return f"{size} B"
    return f"{size / 1000:.1f} kB" if size < 1e6 else f"{size / 1e6:.1f} MB"
