"""Lists of a run's groups, episodes and turns: filtered, sorted, and one page at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from paw_train.viewer.index import RunIndex
from paw_train.viewer.summaries import EpisodeSummary, Group, TurnSummary

OUTCOMES = ("solved", "failed", "unfinished", "error")
SORTS = {
    "order": ("", False),
    "newest": ("place", True),
    "entropy": ("entropy", True),
    "surprise": ("surprise", True),
    "return": ("total_reward", False),
    "-return": ("total_reward", True),
    "advantage": ("advantage", False),
    "-advantage": ("advantage", True),
    "steps": ("steps", False),
    "-steps": ("steps", True),
}
"""ways to order a list: by which value, and whether the largest comes first; ``order`` is the run's own,
``newest`` puts its last update first"""
PAGE = 500
"""most rows of one page"""

Row = EpisodeSummary | TurnSummary | Group


@dataclass(frozen=True)
class Filter:
    """The conditions on the rows of a list.

    ``invalid``, ``selected``, ``entropy`` and ``words`` are conditions on turns; an episode meets one if
    one of its turns does, and a group passes if one of its episodes does.
    """

    view: str = "episodes"
    words: str = ""
    phase: str | None = None
    outcomes: tuple[str, ...] = ()
    task_type: str | None = None
    env_id: str | None = None
    invalid: bool = False
    selected: bool = False
    entropy: float | None = None
    """the least entropy"""
    first: int | None = None
    last: int | None = None
    """updates, both included; episodes that belong to no update are then left out"""
    sort: str = "order"


class Lists:
    """Answers for one run; the rows that a filter selects are remembered until the run changes."""

    def __init__(self, index: RunIndex) -> None:
        self._index = index
        self._rows = lru_cache(maxsize=24)(
            lambda chosen, generation: select(index.episodes(), chosen)
        )

    def page(
        self, chosen: Filter, offset: int, limit: int, around: str | None = None
    ) -> dict[str, Any]:
        """Rows ``offset`` to ``offset + limit`` of a list, and how many it has.

        Args:
            around: the key of a row: the page is then the one with that row, if the list has it.
        """
        rows = self._rows(chosen, self._index.generation)
        at = None if around is None else self._position(rows, chosen.view, around)
        if at is not None:
            offset = at - at % limit
        part = [row.to_dict() for row in rows[offset : offset + limit]]
        return {"total": len(rows), "offset": offset, "at": at, "rows": part}

    def _position(self, rows: Sequence[Row], view: str, around: str) -> int | None:
        """The position in a list of an episode, a turn (``key:step``) or an episode's group."""
        key, _, step = around.partition(":")
        episode = self._index.find(key)
        if episode is None:
            return None
        if view == "turns":
            number = int(step) if step.isdecimal() else 0
            return _first(rows, lambda row: row.episode is episode and row.step == number)
        if view == "groups":
            return _first(rows, lambda row: episode in row.members)
        return _first(rows, lambda row: row is episode)


def _first(rows: Sequence[Row], fits: Any) -> int | None:
    return next((at for at, row in enumerate(rows) if fits(row)), None)


def select(episodes: Sequence[EpisodeSummary], f: Filter) -> Sequence[Row]:
    """The rows of a list, from episodes in the order of the run."""
    rows: Sequence[Row]
    if f.view == "turns":
        rows = [t for e in episodes if _fits(e, f) for t in e.turns if _turn_fits(t, f)]
    elif f.view == "groups":
        groups: dict[str, list[EpisodeSummary]] = {}
        for episode in episodes:
            groups.setdefault(episode.group, []).append(episode)
        rows = [Group(own) for own in groups.values() if any(_holds(e, f) for e in own)]
    else:
        rows = [e for e in episodes if _holds(e, f)]
    name, largest_first = SORTS[f.sort]
    if not name:
        return rows

    def place(row: Row) -> tuple[bool, float]:
        of_episode = name in ("place", "total_reward", "steps")
        value = getattr(row.episode if of_episode and isinstance(row, TurnSummary) else row, name)
        return value is None, -(value or 0.0) if largest_first else value or 0.0

    return sorted(rows, key=place)


def _fits(e: EpisodeSummary, f: Filter) -> bool:
    """True if an episode fits the conditions on episodes."""
    pairs = ((f.phase, e.file.phase), (f.task_type, e.task_type), (f.env_id, e.env_id))
    if any(wanted not in (None, own) for wanted, own in pairs):
        return False
    if f.outcomes and e.outcome not in f.outcomes:
        return False
    if f.first is None and f.last is None:
        return True
    update = e.file.update
    return update is not None and (f.first or 0) <= update and (f.last is None or update <= f.last)


def _turn_fits(t: TurnSummary, f: Filter) -> bool:
    return (
        not (f.invalid and t.valid)
        and not (f.selected and not t.selected)
        and (f.entropy is None or (t.entropy is not None and t.entropy >= f.entropy))
        and (not f.words or f.words.lower() in t.words)
    )


def _holds(e: EpisodeSummary, f: Filter) -> bool:
    """True if an episode fits, by itself and by its turns."""
    words = f.words.lower()
    return (
        _fits(e, f)
        and (not f.invalid or e.invalid > 0)
        and (not f.selected or bool(e.selected))
        and (f.entropy is None or (e.entropy is not None and e.entropy >= f.entropy))
        and (not words or words in e.words or any(words in t.words for t in e.turns))
    )


def overview(index: RunIndex) -> dict[str, Any]:
    """The choices of a run's filters, with the number of episodes for each."""
    episodes = index.episodes()

    def counts(values: Sequence[Any]) -> dict[Any, int]:
        return dict(sorted(Counter(value for value in values if value is not None).items()))

    return {
        "episodes": len(episodes),
        "turns": sum(e.steps for e in episodes),
        "with_tokens": sum(e.entropy is not None for e in episodes),
        "phases": counts([e.file.phase for e in episodes]),
        "outcomes": counts([e.outcome for e in episodes]),
        "environments": counts([e.env_id for e in episodes]),
        "types": counts([e.task_type for e in episodes]),
        "kept": counts([e.file.update for e in episodes]),
        "notes": [f"{k}: {'; '.join(f.notes)}" for k, f in sorted(index.files.items()) if f.notes],
    }
