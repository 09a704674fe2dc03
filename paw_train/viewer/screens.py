"""The screens of ``paw view --terminal``: runs, curves, groups and episodes as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from paw_train.reporting.printable import printable

Record = Mapping[str, Any]

_BLOCKS = "▁▂▃▄▅▆▇█"
_PLAIN_BLOCKS = "_.-=+*%#"
_INVISIBLE = re.compile("[\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
"""characters without width, and those that turn the direction of writing"""
_TONES = {"solved": "green", "failed": "red", "error": "bold red", "unfinished": "yellow"}
_WIDE = 110
"""columns of a terminal from which the list of runs has all of its own"""
_LINES = 40
"""of a prompt or observation that are shown unless all is asked for"""


def visible(text: Any) -> str:
    """Text in which no control character and no invisible one reaches the terminal."""
    return _INVISIBLE.sub("\ufffd", printable(str(text)))


def sparkline(values: Sequence[float | None], width: int, plain: bool = False) -> str:
    """A curve in one line of at most ``width`` characters, each the mean of its share of the values.

    Args:
        values: in order; gaps are left out of the means, and a share without any is a space.
        width: characters.
        plain: ASCII only.
    """
    blocks = _PLAIN_BLOCKS if plain else _BLOCKS
    count = min(width, len(values))
    means: list[float | None] = []
    for i in range(count):
        part = values[i * len(values) // count : (i + 1) * len(values) // count]
        there = [value for value in part if value is not None]
        means.append(sum(there) / len(there) if there else None)
    known = [mean for mean in means if mean is not None]
    if not known:
        return ""
    low, span = min(known), max(known) - min(known)
    top = len(blocks) - 1
    marks = (
        " " if m is None else blocks[round((m - low) / span * top) if span else top // 2]
        for m in means
    )
    return "".join(marks)


def runs_screen(runs: Sequence[Record], width: int, plain: bool) -> RenderableType:
    """All runs, a row each, numbered from 1; a narrow terminal gets fewer columns."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    columns = _RUN_COLUMNS if width >= _WIDE else _RUN_COLUMNS[:4]
    table.add_column("")
    for name, _ in columns:
        table.add_column(name, no_wrap=True)
    if width >= _WIDE:
        table.add_column("in training")
    for number, run in enumerate(runs, 1):
        cells = [cell(run) for _, cell in columns]
        curve = [sparkline(run["curve"], 16, plain)] if width >= _WIDE else []
        table.add_row(str(number), *cells, *curve)
    return table


def _run_name(run: Record) -> Text:
    name = Text(visible(run["name"]))
    if run["state"] != "finished":
        name.append(f"  {run['state']}", "dim")
    ongoing = sum(alarm["ongoing"] for alarm in run["alarms"])
    if ongoing:
        name.append(f"  {ongoing} alarm{'s' if ongoing > 1 else ''}", "bold red")
    return name


def run_screen(run: Record, curves: Record, width: int, plain: bool) -> RenderableType:
    """One run: where it stands, its alarms, and its curves or its result."""
    parts: list[RenderableType] = [Rule(visible(run["name"])), *_alarms(run["alarms"])]
    if run["evaluation"]:
        parts.append(_evaluation(run["evaluation"]))
    else:
        line = f"{run['state']}, updates {_progress(run)}, {run['algorithm'] or '–'}"
        parts.append(Text(f"{line}, success {_change(run).plain}"))
    if curves["update"]:
        parts.append(_curves(curves, max(16, min(60, width - 62)), plain))
    count = f"{run['episodes']} episodes with {run['turns']} turns were kept."
    parts += [Text(count, "dim"), *(Text(visible(note), "yellow") for note in run["notes"][:8])]
    return Group(*parts)


def list_screen(
    view: str, rows: Sequence[Record], offset: int, total: int, words: str
) -> RenderableType:
    """A page of groups or episodes, numbered from 1 over the whole list."""
    found = f' with "{visible(words)}"' if words else ""
    last = offset + len(rows)
    shown = f"{offset + 1} to {last} of {total}" if rows else "none"
    table = _table("", "task", "type", "from", "outcome", "return", "turns")
    table.title, table.title_justify = f"{view}{found}: {shown}", "left"
    for number, row in enumerate(rows, offset + 1):
        cells = _group_cells(row) if view == "groups" else _episode_cells(row)
        task = Text(visible(row["instruction"] or row["task_id"]), overflow="ellipsis")
        table.add_row(str(number), task, visible(row["task_type"]), origin(row), *cells)
    return table


def episode_screen(episode: Record, whole: bool) -> RenderableType:
    """An episode to read from top to bottom.

    Args:
        episode: as ``RunStore.episode`` gives it.
        whole: with every prompt, and the requests as they were sent where they were recorded.
    """
    parts: list[RenderableType] = [
        Rule(visible(episode["instruction"] or episode["task_id"])),
        Text.assemble(
            (episode["outcome"], _TONES.get(episode["outcome"], "")),
            f", return {episode['return']:g}, {len(episode['turns'])} turns, {origin(episode)}, ",
            (visible(episode["task_id"]), "dim"),
        ),
    ]
    for number, text in enumerate(episode["notes"].get("reflections") or [], 1):
        parts.append(Text(f"reflection {number}: {visible(text)}", "italic"))
    before: list[Any] = []
    for number, turn in enumerate(episode["turns"], 1):
        parts += _turn(number, turn, whole)
        for call in turn["calls"]:
            before = [*before[: call["same"]], *call["messages"]]
            if whole:
                parts += _request(call, before)
    if episode["error"]:
        parts.append(Text(visible(episode["error"]), "red"))
    return Group(*parts)


def origin(row: Record) -> str:
    """The part of the run that an episode is from."""
    if row["phase"] == "training":
        return "training" if row["update"] is None else f"update {row['update']}"
    return {"before": "before RL", "after": "after RL"}.get(row["phase"], "evaluation")


def day(seconds: float | None) -> str:
    """A date in local time."""
    return "–" if seconds is None else f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"


# --- parts --------------------------------------------------------------------------------------


def _turn(number: int, turn: Record, whole: bool) -> Iterator[RenderableType]:
    tokens = turn["tokens"] or {}
    marks = [f"turn {number}"]
    if tokens.get("selected"):
        marks.append("selected by the world model")
    if isinstance(tokens.get("entropy"), float):
        marks.append(f"H {tokens['entropy']:.3g}")
    if turn["reward"]:
        marks.append(f"reward {turn['reward']:+g}")
    if turn["finish_reason"] == "length":
        marks.append("answer cut off")
    yield Text(" · ".join(marks), "bold")
    if whole:
        yield _indented("".join(part for _, part in turn["prompt"]), "dim", whole)
    if turn["reasoning"]:
        yield _indented(turn["reasoning"], "italic", whole)
    for kind, text in turn["response"]:
        style = "italic" if kind == "think" else "dim" if kind == "text" else "bold cyan"
        if text.strip():
            sign = "> " if style == "bold cyan" else ""
            yield _indented(f"{sign}{text.strip()}", style, whole)
    if not turn["valid"]:
        yield _indented(f"invalid action: {turn['problem'] or 'no reason recorded'}", "red", whole)
    yield _indented(turn["observation"], "", whole)


def _request(call: Record, messages: Sequence[Any]) -> Iterator[RenderableType]:
    yield Text("as sent:", "bold dim")
    if call["same"]:
        yield _indented(f"({call['same']} messages as before)", "dim", True)
    for message in [*messages[call["same"] :], {"role": "answer", "content": call.get("text")}]:
        yield _indented(f"{message.get('role')}: {message.get('content')}", "dim", True)


def _indented(text: Any, style: str, whole: bool) -> RenderableType:
    lines = visible(text).split("\n")
    if not whole and len(lines) > _LINES:
        lines = [*lines[:_LINES], f"… {len(lines) - _LINES} more lines"]
    return Padding(Text("\n".join(lines), style), (0, 0, 0, 2))


def _alarms(alarms: Sequence[Record]) -> Iterator[RenderableType]:
    for alarm in alarms:
        since = f"since update {alarm['first']}"
        over = since if alarm["ongoing"] else f"{since}, over after update {alarm['last']}"
        yield Text.assemble((f"Alarm: {alarm['title']}", "bold red"), f" ({over}): {alarm['text']}")


def _curves(curves: Record, width: int, plain: bool) -> Table:
    table = _table("", "curve", "first", "last", "least", "most")
    for name in (metric["name"] for metric in curves["metrics"]):
        values = curves["values"][name]
        known = [value for value in values if value is not None]
        ends = (known[0], known[-1], min(known), max(known))
        figures = (f"{value:.4g}" for value in ends)
        table.add_row(visible(name), Text(sparkline(values, width, plain), "cyan"), *figures)
    return table


def _evaluation(found: Record) -> RenderableType:
    named = [("agent", found["agent"]), ("model", found["model"]), ("panel", found["panel"])]
    facts = [f"{name} {visible(value)}" for name, value in named if value]
    if found["score"]:
        facts.append(f"score {found['score']['mean']:.3f}")
    if found["cost"] is not None:
        facts.append(f"cost $ {found['cost']:.4g}")
    for name in ("invalid_rate", "truncated_rate"):
        if isinstance(found["measured"].get(name), float):
            facts.append(f"{name.removesuffix('_rate')} {100 * found['measured'][name]:.1f} %")
    table = _table("task type", "tasks", "success", "95 % interval")
    overall = [{"name": "all", **found["overall"]}] if found["overall"] else []
    for part in [*overall, *found["types"], *found["averages"]]:
        low, high = part["ci95"]
        rate = f"{100 * part['success_rate']:.1f} %"
        table.add_row(
            visible(part["name"]), str(part["n"]), rate, f"{100 * low:.1f} to {100 * high:.1f}"
        )
    return Group(Text(", ".join(facts)), table)


def _group_cells(row: Record) -> tuple[Text, str, str]:
    dots = Text()
    for outcome in row["outcomes"].split(",")[:16]:
        dots.append("●" if outcome == "solved" else "○", _TONES.get(outcome, ""))
    return dots, f"{row['mean_return']:.3g}", f"{row['steps']:.1f}"


def _episode_cells(row: Record) -> tuple[Text, str, str]:
    outcome = Text(row["outcome"], _TONES.get(row["outcome"], ""))
    return outcome, f"{row['ret']:.3g}", str(row["steps"])


def _change(run: Record) -> Text:
    before, after = (run[when] for when in ("before", "after"))
    text = Text()
    if before:
        text.append(f"{100 * before['success_rate']:.1f} % → ", "dim")
    return text.append(f"{100 * after['success_rate']:.1f} %" if after else "–")


def _progress(run: Record) -> str:
    return f"{run['updates']} / {run['planned']}" if run["planned"] else str(run["updates"])


_RUN_COLUMNS: tuple[tuple[str, Callable[[Record], Text | str]], ...] = (
    ("run", _run_name),
    ("success", _change),
    ("method", lambda run: visible(run["algorithm"] or run["agent"] or "–")),
    ("updates", lambda run: _progress(run) if run["kind"] == "training" else "–"),
    ("environment", lambda run: visible((run["env"] or "–").replace("paw_gym/", ""))),
    ("model", lambda run: visible((run["model"] or "–").rsplit("/", 1)[-1])),
    ("seed", lambda run: "–" if run["seed"] is None else str(run["seed"])),
    ("date", lambda run: day(run["date"])),
)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(name, overflow="ellipsis")
    return table
