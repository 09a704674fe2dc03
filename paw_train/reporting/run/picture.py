"""One compact picture of a run for a README: the success curve, and before against after."""

from __future__ import annotations

from pathlib import Path

from paw_gym.files import write_text
from paw_train.reporting.pages import render
from paw_train.reporting.run.charts import Chart, ChartStyle
from paw_train.reporting.run.curves import success_series
from paw_train.reporting.run.run_data import RunData, load_run
from paw_train.reporting.run.scales import Axis
from paw_train.reporting.run.verdict import same_panel, task_noun

_CURVE = ChartStyle(
    width=530,
    height=272,
    left=56,
    top=12,
    bottom=44,
    share=True,
    full=True,
    x_label="RL updates",
)


def write_curves_svg(run_dir: str | Path, path: str | Path) -> Path:
    """Writes a picture 800 pixels wide, on white, from whatever files the run has.

    Args:
        run_dir: the folder of a run, finished or not.
        path: the ``.svg`` file to write.

    Returns:
        The path written.

    Raises:
        ValueError: there is no such folder, or nothing in it comes from a run.
    """
    run = load_run(run_dir)
    series = success_series(run)
    picture = render(
        "run.svg",
        run=run,
        chart=Chart(series, _CURVE) if series else None,
        bars=Axis(0.0, 1.0, 60 + _CURVE.height - _CURVE.bottom, 60 + _CURVE.top),
        note=_note(run),
    )
    target = Path(path)
    write_text(target, picture + "\n")
    return target


def _note(run: RunData) -> str:
    """The line above the bars."""
    some = run.after or run.before
    if some is None:
        return "no evaluation yet"
    if run.before and run.after and not same_panel(run.before, run.after):
        return "different panels: not comparable"
    return f"{some.overall.n} {task_noun(some)}, 95 % intervals"
