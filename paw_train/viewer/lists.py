"""Lists of a run's groups, episodes and turns: summarised, filtered, sorted, and one page at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field

from paw_gym.transition import Episode, Transition
from paw_train.metrics import number
from paw_train.viewer.folders import EpisodeFile, Place

Row = dict[str, Any]
"""what a page shows of a group, an episode or a turn"""

SORTS = {
    "order": "",
    "newest": "-place",
    "entropy": "-entropy",
    "surprise": "-surprise",
    "return": "ret",
    "-return": "-ret",
    "advantage": "advantage",
    "-advantage": "-advantage",
    "steps": "steps",
    "-steps": "-steps",
}
"""ways to order a list: by which value, with ``-`` the largest first; ``order`` is the run's own,
``newest`` puts its last update first"""
_EXCERPT = 160
"""characters of an observation in a list"""


class Turn(NamedTuple):
    """One transition in a list."""

    words: str
    """the text that a search looks through, in lower case"""
    row: Row
    """with ``entropy`` of the action (Eq. 4), ``advantage``, ``selected`` by the world model and ``surprise``
    (mean -log p of the next observation's tokens, nats): ``None`` if they were not recorded"""


@dataclass(eq=False, slots=True)
class Summary:
    """One episode in a list."""

    key: str
    """``file.number``: its name in addresses"""
    file: EpisodeFile
    record: Place
    tokens: Place | None
    """the place of what was recorded about its tokens"""
    episode_id: str
    env_id: str
    group: str
    """the same for the episodes of a rollout group, or of an evaluation's task"""
    words: str
    head: Row
    """the part that the rows of its turns and of its group have as well"""
    row: Row
    turns: list[Turn]


def mean(values: Iterable[Any]) -> float | None:
    """The mean of the finite numbers among some values; ``None`` if there are none."""
    known = [v for v in map(number, values) if v is not None]
    return math.fsum(known) / len(known) if known else None


def _largest(values: Iterable[float | None]) -> float | None:
    return max((v for v in values if v is not None), default=None)


def summarise(
    episode: Episode,
    key: str,
    file: EpisodeFile,
    record: Place,
    where: Place | None,
    tokens: Mapping[str, Any],
) -> Summary:
    """The summary of an episode and of what was recorded about its tokens, if anything."""
    steps = recorded_steps(tokens)
    turns = [_turn(t, steps.get(t.step)) for t in episode.transitions]
    rows = [turn.row for turn in turns]
    selected = [row["selected"] for row in rows if row["selected"] is not None]
    group = f"{file.key}:{episode.group}" if file.phase == "training" else f"eval:{episode.task_id}"
    head = {
        "key": key,
        "phase": file.phase,
        "update": file.update,
        "task_id": episode.task_id,
        "task_type": episode.task_type,
        "instruction": episode.instruction,
        "outcome": outcome(episode),
    }
    row = {
        "steps": len(turns),
        "ret": number(episode.total_reward),
        "invalid": sum(row["invalid"] for row in rows),
        "entropy": _largest(row["entropy"] for row in rows),
        "advantage": mean(row["advantage"] for row in rows),
        "surprise": mean(row["surprise"] for row in rows),
        "selected": sum(selected) if selected else None,
        "lam": number(tokens.get("lambda")),
    }
    return Summary(
        key,
        file,
        record,
        where,
        episode.episode_id,
        episode.env_id,
        f"{group}:{episode.env_id}",
        f"{episode.instruction}\n{episode.task_id}".lower(),
        head,
        row,
        turns,
    )


def _turn(t: Transition, step: Mapping[str, Any] | None) -> Turn:
    row: Row = {
        "step": t.step,
        "action": t.action,
        "observation": " ".join(t.next_observation[: 2 * _EXCERPT].split())[:_EXCERPT],
        "reward": t.reward,
        "invalid": not t.action_is_valid,
        **dict.fromkeys(("entropy", "advantage", "surprise", "selected")),
    }
    if step is not None:
        advantage, part = step.get("advantage"), step.get("observation")
        logprobs = part.get("logprobs") if isinstance(part, dict) else None
        likelihood = mean(logprobs if isinstance(logprobs, list) else ())
        row |= {
            "entropy": number(step.get("entropy")),
            # one of the turn, or one per action token
            "advantage": mean(advantage if isinstance(advantage, list) else [advantage]),
            "surprise": None if likelihood is None else -likelihood,
            "selected": bool(step.get("selected")),
        }
    return Turn(f"{t.response}\n{t.action}\n{t.next_observation}".lower(), row)


def recorded_steps(tokens: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """The steps in a record of an episode's tokens, by number."""
    listed = tokens.get("steps")
    steps = listed if isinstance(listed, list) else []
    return {step["step"]: step for step in steps if isinstance(step, dict) and "step" in step}


def outcome(episode: Episode) -> str:
    """The outcome of an episode: ``solved``, ``failed``, ``unfinished`` or ``error``."""
    if episode.error is not None:
        return "error"
    if episode.success:
        return "solved"
    return "failed" if episode.finished else "unfinished"


class Filter(BaseModel, frozen=True):
    """The conditions on the rows of a list, as an address has them.

    ``invalid``, ``selected``, ``entropy`` and ``q`` are conditions on turns; an episode meets one if one of
    its turns does, and a group passes if one of its episodes does.
    """

    view: Literal["groups", "episodes", "turns"] = "episodes"
    q: str = Field("", max_length=500)
    """words to search for"""
    phase: str | None = Field(None, max_length=20)
    outcome: str = Field("", max_length=100)
    """one or several, with commas between them"""
    type: str | None = Field(None, max_length=200)
    env: str | None = Field(None, max_length=200)
    invalid: bool = False
    selected: bool = False
    entropy: float | None = Field(None, ge=0, le=1e6)
    """the least entropy"""
    first: int | None = Field(None, ge=0, le=2**31)
    last: int | None = Field(None, ge=0, le=2**31)
    """updates, both included; episodes that belong to no update are then left out"""
    sort: str = Field("order", max_length=20)


class Page(Filter, frozen=True):
    """A part of a run's list."""

    run: str = Field(max_length=500)
    offset: int = Field(0, ge=0, le=2**31)
    limit: int = Field(200, ge=1, le=500)
    around: str | None = Field(None, max_length=320)
    """the key of a row (of a turn: ``key:step``): the part is then the one with that row, if there is one"""


Item = tuple[Summary, Row]
"""a row with its episode, or with the first one of its group"""


def position(items: Sequence[Item], view: str, known: Summary, step: str) -> int | None:
    """The position in a list of an episode, of a turn of it, or of its group."""

    def fits(episode: Summary, row: Row) -> bool:
        if view == "groups":
            return episode.group == known.group
        return episode is known and (view == "episodes" or str(row["step"]) == (step or "0"))

    return next((at for at, item in enumerate(items) if fits(*item)), None)


def select(episodes: Sequence[Summary], f: Filter) -> list[Item]:
    """The rows of a list, from episodes in the order of the run."""
    if f.view == "turns":
        items = [(e, t.row) for e in episodes if _fits(e, f) for t in e.turns if _turn_fits(t, f)]
    elif f.view == "groups":
        groups: dict[str, list[Summary]] = {}
        for episode in episodes:
            groups.setdefault(episode.group, []).append(episode)
        items = [
            (own[0], _group_row(own)) for own in groups.values() if any(_holds(e, f) for e in own)
        ]
    else:
        items = [(e, e.row) for e in episodes if _holds(e, f)]
    order = SORTS.get(f.sort, "")
    name, sign = order.removeprefix("-"), -1 if order.startswith("-") else 1

    def place(item: Item) -> tuple[bool, float]:
        episode, row = item
        value = episode.file.place if name == "place" else row.get(name, episode.row.get(name))
        return value is None, sign * (value or 0.0)

    return sorted(items, key=place) if name else items


def _group_row(members: Sequence[Summary]) -> Row:
    rows = [e.row for e in members]
    return {
        **{name: mean(row[name] for row in rows) for name in ("ret", "steps", "advantage", "surprise")},
        **{name: _largest(row[name] for row in rows) for name in ("lam", "entropy")},
        "n": len(members),
        "outcomes": ",".join(e.head["outcome"] for e in members),
    }  # fmt: skip


def _fits(e: Summary, f: Filter) -> bool:
    """True if an episode fits the conditions on episodes."""
    pairs = ((f.phase, e.file.phase), (f.type, e.head["task_type"]), (f.env, e.env_id))
    if any(wanted not in (None, own) for wanted, own in pairs):
        return False
    if f.outcome and e.head["outcome"] not in f.outcome.split(","):
        return False
    if f.first is None and f.last is None:
        return True
    update = e.file.update
    return update is not None and (f.first or 0) <= update and (f.last is None or update <= f.last)


def _turn_fits(t: Turn, f: Filter) -> bool:
    return _row_fits(t.row, f) and f.q.lower() in t.words


def _row_fits(row: Row, f: Filter) -> bool:
    """True if a turn, or some turn of an episode, fits."""
    return (
        (not f.invalid or row["invalid"] > 0)
        and (not f.selected or bool(row["selected"]))
        and (f.entropy is None or (row["entropy"] is not None and row["entropy"] >= f.entropy))
    )


def _holds(e: Summary, f: Filter) -> bool:
    """True if an episode fits, by itself and by its turns."""
    if not (_fits(e, f) and _row_fits(e.row, f)):
        return False
    words = f.q.lower()
    return words in e.words or any(words in t.words for t in e.turns)
