"""The tables of a report: success before and after by task type, settings, versions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paw_train.evaluation.statistics import difference_interval
from paw_train.reporting.run.markup import Markup, join, tag
from paw_train.reporting.run.results import EvalResult, Rate
from paw_train.reporting.run.run_data import RunData
from paw_train.reporting.run.scales import duration_text, number_text
from paw_train.reporting.run.verdict import points, same_panel, task_noun

Row = tuple[str, Rate | None, Rate | None]


def result_rows(run: RunData) -> list[Row]:
    """(label, before, after): the whole panel first, then each task type by name."""
    before, after = run.before, run.after
    first = before.by_type if before else {}
    second = after.by_type if after else {}
    rows: list[Row] = [
        ("all", before.overall if before else None, after.overall if after else None)
    ]
    rows += [(name, first.get(name), second.get(name)) for name in sorted({*first, *second})]
    return rows


def change_of(run: RunData, before: Rate | None, after: Rate | None) -> tuple[str, bool]:
    """(change in points, whether its 95 % interval leaves out 0); empty where not comparable."""
    comparable = run.before is not None and run.after is not None
    if not comparable or before is None or after is None:
        return "", False
    assert run.before is not None and run.after is not None
    if not same_panel(run.before, run.after):
        return "", False
    low, high = difference_interval(before.triple, after.triple)
    return points(after.rate - before.rate), low > 0 or high < 0


def result_table(run: RunData) -> Markup:
    """Success per task type with bars and intervals; empty without an evaluation."""
    if run.before is None and run.after is None:
        return Markup()
    noun = task_noun(run.after or run.before)
    head = tag(
        "tr",
        *(
            tag("th", name, scope="col")
            for name in ("task type", noun, "before RL", "after RL", "change")
        ),
    )
    body = [_result_row(run, row, noun) for row in result_rows(run)]
    table = tag("table", tag("thead", head), tag("tbody", *body), class_="results")
    note = (
        "Brackets and whiskers: 95 % Wilson interval. A change in bold: its own 95 % interval (Newcombe, "
        "rates taken as independent) leaves out 0; not corrected for looking at several task types."
    )
    return tag(
        "section",
        tag("h2", "Before and after, by task type"),
        table,
        tag("p", note, class_="muted"),
        _more_table(run),
    )


def _result_row(run: RunData, row: Row, noun: str) -> Markup:
    label, before, after = row
    change, clear = change_of(run, before, after)
    count = " / ".join(dict.fromkeys(str(r.n) for r in (before, after) if r is not None))
    tone = "good" if change.startswith("+") else "bad" if change.startswith("-") else ""
    return tag(
        "tr",
        tag("th", label.replace("_", " "), scope="row"),
        tag("td", count, data_label=noun, class_="num"),
        tag("td", rate_bar(before, "before"), data_label="before RL"),
        tag("td", rate_bar(after, "after"), data_label="after RL"),
        tag(
            "td",
            tag("b" if clear else "span", change or "–", class_=tone if clear else "muted"),
            data_label="change",
            class_="num",
        ),
        class_="total" if label == "all" else None,
    )


def rate_bar(rate: Rate | None, kind: str) -> Markup:
    """A bar from 0 to 100 % with its interval, and the figures."""
    if rate is None:
        return tag("span", "–", class_="muted")
    low, high = 100 * rate.low, 100 * rate.high
    bar = tag(
        "svg",
        tag("rect", x=0, y=2, width=100, height=8, class_="track"),
        tag("rect", x=0, y=2, width=100 * rate.rate, height=8, class_=kind),
        tag("line", x1=low, x2=high, y1=6, y2=6, class_="whisker"),
        tag("line", x1=low, x2=low, y1=3, y2=9, class_="whisker"),
        tag("line", x1=high, x2=high, y1=3, y2=9, class_="whisker"),
        viewBox="0 0 100 12",
        preserveAspectRatio="none",
        class_="bar",
        aria_hidden="true",
    )
    figures, interval = str(rate).split(" [", 1)
    return join([tag("span", tag("b", figures), f" [{interval}", class_="figures"), bar])


def _more_table(run: RunData) -> Markup | None:
    rows = [
        ("mean steps", "mean_steps", False),
        ("mean return", "mean_reward", False),
        ("invalid responses", "invalid_rate", True),
    ]
    body = []
    for label, name, share in rows:
        cells = [_measure(result, name, share) for result in (run.before, run.after)]
        if any(cells):
            tds = (
                tag("td", cell or "–", class_="num", data_label=when)
                for cell, when in zip(cells, ("before RL", "after RL"), strict=True)
            )
            body.append(tag("tr", tag("th", label, scope="row"), *tds))
    if not body:
        return None
    head = tag(
        "tr", *(tag("th", n, scope="col") for n in ("on the panel", "before RL", "after RL"))
    )
    return tag("table", tag("thead", head), tag("tbody", *body), class_="small")


def _measure(result: EvalResult | None, name: str, share: bool) -> str:
    value = getattr(result, name) if result is not None else None
    return "" if value is None else number_text(value, share)


def settings_table(run: RunData) -> Markup:
    """Every setting by its dotted key, and the versions where they are recorded."""
    parts = []
    for title, values in (("Settings", run.config), ("Versions", run.environment)):
        if not values:
            continue
        rows = (
            tag(
                "tr",
                tag("th", tag("code", key), scope="row"),
                tag("td", tag("code", _shown(value))),
            )
            for key, value in flat(values)
        )
        summary = tag("summary", tag("b", title))
        parts.append(tag("details", summary, tag("table", tag("tbody", *rows), class_="settings")))
    return join(parts)


def flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings as (dotted key, value)."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def tiles(run: RunData) -> Markup:
    """The run in a few figures."""
    seconds = sum(_sum(run, key) for key in ("seconds_rollout", "seconds_train"))
    planned = run.planned_updates
    done = len(run.metrics)
    facts = [
        ("environment", run.setting("env.id") or _env_id(run)),
        ("algorithm", _algorithm(run.setting("algorithm.name"), run.setting("world_model"))),
        ("updates", f"{done} of {planned}" if planned and planned != done else str(done)),
        ("RL time", duration_text(seconds) if seconds else ""),
        ("tokens in RL", number_text(_sum(run, "tokens")) if _sum(run, "tokens") else ""),
        ("warm start", _warm_start(run)),
        ("seed", run.setting("seed")),
    ]
    shown = [(name, str(value)) for name, value in facts if value not in (None, "")]
    return tag(
        "dl",
        *(tag("div", tag("dt", name), tag("dd", value)) for name, value in shown),
        class_="tiles",
    )


def _env_id(run: RunData) -> str:
    result = run.after or run.before
    own = run.config.get("env")
    return result.env_id if result is not None else own if isinstance(own, str) else ""


def _algorithm(name: Any, world_model: Any) -> str:
    if not name:
        return ""
    shown = str(name).upper()
    if not isinstance(world_model, dict):
        return shown
    if world_model.get("enabled") is False:
        return f"{shown}, world model off"
    return f"{shown} + WM ({world_model.get('loss', '')} × {world_model.get('coef', 1)})"


def _warm_start(run: RunData) -> str:
    if not run.warmstart:
        return ""
    last = run.warmstart[-1]
    seconds = last.get("seconds")
    took = f", {duration_text(seconds)}" if isinstance(seconds, int | float) else ""
    return f"{last['step']} steps{took}"


def _sum(run: RunData, key: str) -> float:
    values = (record.get(key) for record in run.metrics)
    return float(sum(v for v in values if isinstance(v, int | float)))
