"""The record that everything downstream reads: ``(h_t, a_t, r_t, o_{t+1})``, and episodes of it.

JSONL holds one episode a line, Parquet one transition a row; both give back equal objects.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from itertools import groupby, islice
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from paw_gym.internals.canonical import require_json
from paw_gym.internals.files import json_text, new_file


@dataclass(frozen=True, slots=True)
class Transition:
    """One step of an episode, complete: the terminal step included, with the text printed last."""

    env_id: str
    task_id: str
    episode_id: str
    step: int
    """0-based index in the episode"""
    prompt: str
    """h_t: what the agent saw. In conversation mode the newest message; see ``Episode.messages``"""
    observation: str | None
    """o_t as the environment printed it; ``None`` in a record that does not hold it"""
    response: str
    """the agent's answer, raw"""
    action: str
    """the action that the environment was given"""
    reward: float
    next_observation: str
    """o_{t+1} as the environment printed it"""
    terminated: bool
    truncated: bool
    action_is_valid: bool
    info: dict[str, Any] = field(default_factory=dict)
    """JSON values: ``success``, ``score``, ..."""
    parent: str | None = None
    """in a branch of another episode, the ``episode_id`` of that episode; ``None``: not a branch"""

    @property
    def refused(self) -> bool:
        """True if the response could be read but its action was not accepted, penalty or not."""
        return bool(self.info.get("problem")) and not self.info.get("malformed")

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values; an ``info`` or reward that JSON would change raises ``TypeError``."""
        require_json(self.reward, "Transition.reward")
        require_json(self.info, "Transition.info")
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Transition:
        _require_kinds(cls, data)
        return cls(**data)


@dataclass(slots=True)
class Episode:
    """The transitions of one episode, and how it came about.

    An episode that branched from another one holds its whole path: first the transitions that it
    shares with its parent, which keep the parent's ``episode_id``, then its own. So ``(episode_id,
    step)`` of a transition identifies a node in the tree of episodes.
    """

    env_id: str
    task_id: str
    episode_id: str
    task_type: str = "default"
    instruction: str = ""
    group: int = 0
    """index of the rollout group: episodes of the same task in one update"""
    context_mode: str = "window"
    """``window``: every prompt is complete; ``conversation``: prompts are the turns of one dialogue"""
    transitions: list[Transition] = field(default_factory=list)
    error: str | None = None
    """traceback, when the environment failed; the transitions before it are kept"""

    @property
    def total_reward(self) -> float:
        """R, the undiscounted sum of rewards."""
        return math.fsum(t.reward for t in self.transitions)

    @property
    def success(self) -> bool:
        """True if the last step was a success."""
        return bool(self.transitions and self.transitions[-1].info.get("success"))

    @property
    def score(self) -> float:
        """The environment's score in [0, 1] after the last step."""
        return float(self.transitions[-1].info.get("score", 0.0)) if self.transitions else 0.0

    @property
    def finished(self) -> bool:
        """True if the episode ended by the rules or by its step budget."""
        return any(t.terminated or t.truncated for t in self.transitions[-1:])

    @property
    def shared_steps(self) -> int:
        """Number of leading transitions that belong to the episodes this one branched from."""
        if self.parent is None:
            return 0
        return sum(t.episode_id != self.episode_id for t in self.transitions)

    @property
    def parent(self) -> str | None:
        """``episode_id`` of the episode that this one branched from; ``None``: it is a root."""
        return self.transitions[-1].parent if self.transitions else None

    def messages(self, step: int) -> list[dict[str, str]]:
        """The chat messages that the agent saw before it answered at ``step``."""
        if self.context_mode == "window":
            return [{"role": "user", "content": self.transitions[step].prompt}]
        turns: list[dict[str, str]] = []
        for t in self.transitions[:step]:
            turns.append({"role": "user", "content": t.prompt})
            turns.append({"role": "assistant", "content": t.response})
        return [*turns, {"role": "user", "content": self.transitions[step].prompt}]

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "transitions"}
        return {**values, "transitions": [t.to_dict() for t in self.transitions]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Episode:
        _require_kinds(cls, data)
        transitions = [Transition.from_dict(t) for t in data["transitions"]]
        return cls(**{**data, "transitions": transitions})


@cache
def _kinds(record: type) -> tuple[tuple[str, tuple[type, ...]], ...]:
    """The fields of a record, and the types of their JSON values; a float may be written as an int."""
    kinds = []
    for name, hint in get_type_hints(record).items():
        parts = get_args(hint) if get_origin(hint) is UnionType else (hint,)
        plain = tuple(get_origin(part) or part for part in parts)
        kinds.append((name, (*plain, int) if float in plain else plain))
    return tuple(kinds)


def _require_kinds(record: type, data: Mapping[str, Any]) -> None:
    """Raises ``TypeError`` if a field is of another type: ``"false"`` would count as true later on."""
    for name, kinds in _kinds(record):
        if name in data and type(data[name]) not in kinds:
            raise TypeError(
                f"{name} is {data[name]!r:.40}; expected {' or '.join(k.__name__ for k in kinds)}"
            )


def write_jsonl(path: str | Path, episodes: Iterable[Episode], append: bool = False) -> int:
    """Writes one episode a line and returns how many. All or nothing: a failure leaves the old file.

    Args:
        append: add to the file instead of replacing it.
    """
    if append:
        lines = [json_text(e.to_dict()) + "\n" for e in episodes]
        with open(path, "ab+") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
            torn = file.read(1) not in (b"", b"\n")  # by a kill in mid-write
            file.write(("\n" * torn + "".join(lines)).encode("utf-8"))
        return len(lines)
    count = 0
    with new_file(Path(path)) as scratch, open(scratch, "w", encoding="utf-8") as file:
        for episode in episodes:
            file.write(json_text(episode.to_dict()) + "\n")
            count += 1
    return count


def read_jsonl(path: str | Path) -> Iterator[Episode]:
    """Reads what ``write_jsonl`` wrote."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield Episode.from_dict(json.loads(line.decode("utf-8")))
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise ValueError(
                    f"{path}, line {number}: not an episode record ({error})."
                ) from error


_EPISODE_FIELDS = tuple(f.name for f in fields(Episode) if f.name != "transitions")
_JSON_COLUMNS = tuple(
    name for name, kind in get_type_hints(Transition).items() if get_origin(kind) is dict
)

ROW_GROUP = 2048
"""transitions that are held in memory while a Parquet file is written or read"""


def write_parquet(path: str | Path, episodes: Iterable[Episode]) -> int:
    """Writes one transition a row (an episode with none gets one row without a step); returns the rows.

    ``info`` is a JSON column; the episode's own fields are repeated in each of its rows. Episodes are
    written as they come. All or nothing: a failure leaves the old file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema, count = _schema(), 0
    rows = (row for number, episode in enumerate(episodes) for row in _rows(number, episode))
    with (
        new_file(Path(path)) as scratch,
        pq.ParquetWriter(scratch, schema, compression="zstd") as file,
    ):
        while group := list(islice(rows, ROW_GROUP)):
            file.write_table(pa.Table.from_pylist(group, schema=schema))
            count += len(group)
    return count


def _rows(number: int, episode: Episode) -> Iterator[dict[str, Any]]:
    shared = {f"episode_{name}": getattr(episode, name) for name in _EPISODE_FIELDS}
    shared["episode_number"] = number
    if not episode.transitions:
        yield shared
    for t in episode.transitions:
        data = t.to_dict()
        yield {**shared, **data, **{name: json_text(data[name]) for name in _JSON_COLUMNS}}


def episode_from_rows(rows: Sequence[Mapping[str, Any]]) -> Episode:
    """The episode from the Parquet rows that ``write_parquet`` made of it."""
    episode = Episode(**{name: rows[0][f"episode_{name}"] for name in _EPISODE_FIELDS})
    names = [f.name for f in fields(Transition) if f.name in rows[0]]
    for row in rows:
        if row["step"] is not None:
            data = {name: row[name] for name in names}
            data |= {name: json.loads(row[name]) for name in _JSON_COLUMNS}
            episode.transitions.append(Transition.from_dict(data))
    return episode


def _schema() -> Any:
    """The columns, from the fields of ``Transition`` and ``Episode`` and their types."""
    import pyarrow as pa

    columns = {name: _arrow_type(kind) for name, kind in get_type_hints(Transition).items()}
    columns["episode_number"] = pa.int64()
    kinds = get_type_hints(Episode)
    columns |= {f"episode_{name}": _arrow_type(kinds[name]) for name in _EPISODE_FIELDS}
    return pa.schema(list(columns.items()))


def _arrow_type(kind: Any) -> Any:
    import pyarrow as pa

    if get_origin(kind) is dict:
        return pa.large_string()  # JSON
    (plain,) = [part for part in get_args(kind) or (kind,) if part is not NoneType]
    return {
        bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.large_string()
    }[plain]  # fmt: skip


def read_parquet(path: str | Path) -> Iterator[Episode]:
    """Reads what ``write_parquet`` wrote, episode by episode."""
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except ValueError as error:  # pyarrow's errors are ValueErrors too, and do not name the file
        raise ValueError(f"{path} is not a whole Parquet file ({error})") from error
    missing = [name for name in _schema().names if name not in file.schema_arrow.names]
    if missing:
        raise ValueError(f"{path} is not a file of episodes: it lacks the column {missing[0]!r}.")
    batches = file.iter_batches(batch_size=ROW_GROUP)
    rows = (row for batch in batches for row in batch.to_pylist())
    for _, part in groupby(rows, key=lambda row: row["episode_number"]):
        yield episode_from_rows(list(part))
