"""One compact picture of a run for a README: the success curve, and before against after."""

from __future__ import annotations

from pathlib import Path

from paw_gym.files import write_text
from paw_train.reporting.run.charts import ChartStyle, Series, chart_parts
from paw_train.reporting.run.curves import success_series
from paw_train.reporting.run.markup import Markup, join, tag
from paw_train.reporting.run.results import Rate
from paw_train.reporting.run.run_data import RunData, load_run
from paw_train.reporting.run.scales import Axis
from paw_train.reporting.run.verdict import same_panel, task_noun

_WIDTH, _HEIGHT = 800.0, 340.0
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
_STYLE = """
text { font: 13.5px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  fill: #4c5763; }
.title { font-size: 17px; font-weight: 600; fill: #1a2129; }
.value { font-size: 16px; font-weight: 600; fill: #1a2129; }
.grid { stroke: #d9dfe6; } .axis { stroke: #5c6773; }
.line { fill: none; stroke: currentColor; stroke-width: 2.2; stroke-linejoin: round; stroke-linecap: round; }
.faint { opacity: .3; stroke-width: 1.4; }
.dot { fill: currentColor; } .whisker { stroke: currentColor; stroke-width: 1.4; opacity: .6; }
.c1 { color: #1f5fbf; } .c2 { color: #c4570a; }
.before { fill: #98a3b0; } .after { fill: #1f5fbf; } .interval { stroke: #1a2129; stroke-width: 1.6; }
"""


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
    picture = tag(
        "svg",
        tag("style", Markup(_STYLE)),
        tag("rect", width=_WIDTH, height=_HEIGHT, fill="#ffffff"),
        tag("g", *_curve(run), transform="translate(10 0)"),
        tag("g", *_bars(run), transform="translate(580 0)"),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}",
        width=_WIDTH,
        height=_HEIGHT,
        role="img",
        aria_label=f"Success of the run {run.name}",
    )
    target = Path(path)
    write_text(target, picture + "\n")
    return target


def _curve(run: RunData) -> list[Markup]:
    series = success_series(run)
    title = tag("text", "Success during RL", x=10, y=26, class_="title")
    if not series:
        return [title, tag("text", "no update is recorded yet", x=10, y=150)]
    chart = tag("g", chart_parts(series, _CURVE, hover=False), transform="translate(0 60)")
    return [title, join(_legend(series)), chart]


def _legend(series: list[Series]) -> list[Markup]:
    parts = []
    x = 10.0
    for s in series:
        mark = tag("line", x1=x, x2=x + 18, y1=45, y2=45, class_=f"line c{s.colour}")
        parts += [mark, tag("text", s.label, x=x + 24, y=50)]
        x += 46 + 6.7 * len(s.label)
    return parts


def _bars(run: RunData) -> list[Markup]:
    results = [("before", run.before), ("after", run.after)]
    some = run.after or run.before
    title = tag("text", "Before and after", x=0, y=26, class_="title")
    if some is None:
        return [title, tag("text", "no evaluation yet", x=0, y=150)]
    count = f"{some.overall.n} {task_noun(some)}, 95 % intervals"
    if run.before and run.after and not same_panel(run.before, run.after):
        count = "different panels: not comparable"
    axis = Axis(0.0, 1.0, 60 + _CURVE.height - _CURVE.bottom, 60 + _CURVE.top)
    parts = [title, tag("text", count, x=0, y=50)]
    base = axis.at(0)
    parts.append(tag("line", x1=0, x2=200, y1=base, y2=base, class_="axis"))
    for i, (when, result) in enumerate(results):
        x = 20.0 + 96 * i
        parts.append(tag("text", f"{when} RL", x=x + 32, y=base + 20, text_anchor="middle"))
        if result is not None:
            parts.append(_bar(result.overall, x, axis, when))
    return parts


def _bar(rate: Rate, x: float, axis: Axis, kind: str) -> Markup:
    top, middle = axis.at(rate.rate), x + 32
    low, high = axis.at(rate.low), axis.at(rate.high)
    whisker = [
        tag("line", x1=a, x2=b, y1=y, y2=z, class_="interval")
        for a, b, y, z in (
            (middle, middle, low, high),
            (middle - 6, middle + 6, low, low),
            (middle - 6, middle + 6, high, high),
        )
    ]
    value = f"{100 * rate.rate:.1f} %"
    label = tag("text", value, x=middle, y=max(high - 8, 74), text_anchor="middle", class_="value")
    bar = tag("rect", x=x, y=top, width=64, height=axis.at(0) - top, class_=kind)
    return join([bar, *whisker, label])
