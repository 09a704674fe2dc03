"""Where ``paw export --to NAME`` finds what writes a form, and the forms that are one file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from paw_gym.export.staging import Tally, require_file, with_clean_texts
from paw_gym.internals.registry import Registry
from paw_gym.transition import Episode, write_jsonl, write_parquet


class Write(Protocol):
    """Writes episodes to ``out``, whole or not at all, calls ``progress`` after each, and counts them."""

    def __call__(
        self,
        out: Path,
        episodes: Iterable[Episode],
        *,
        force: bool = False,
        progress: Callable[[Tally], None] | None = None,
    ) -> Tally:
        """Raises ``FileExistsError`` when ``out`` exists and ``force`` is not set."""
        ...


@dataclass(frozen=True)
class Exporter:
    """One form of a data set."""

    write: Write
    use: str
    """the line of Python that reads it; ``{path!r}`` stands for what was written"""


EXPORTERS: Registry[Exporter] = Registry(
    "form",
    "paw_gym.exporters",
    {
        "datasets": "paw_gym.export.hub:EXPORTER",
        "jsonl": "paw_gym.export.exporters:JSONL",
        "minari": "paw_gym.export.minari_form:EXPORTER",
        "parquet": "paw_gym.export.exporters:PARQUET",
    },
)
"""the forms by name; add yours with ``EXPORTERS.add(name, Exporter(...))``"""


def _write_jsonl(
    out: Path,
    episodes: Iterable[Episode],
    *,
    force: bool = False,
    progress: Callable[[Tally], None] | None = None,
) -> Tally:
    require_file(out, force)
    tally = Tally()
    write_jsonl(out, tally.count(episodes, progress))
    return tally


def _write_parquet(
    out: Path,
    episodes: Iterable[Episode],
    *,
    force: bool = False,
    progress: Callable[[Tally], None] | None = None,
) -> Tally:
    require_file(out, force)
    tally = Tally()
    write_parquet(out, tally.count(with_clean_texts(episodes), progress))
    return tally


JSONL = Exporter(_write_jsonl, "paw_gym.transition.read_jsonl({path!r})")
PARQUET = Exporter(
    _write_parquet, "datasets.load_dataset('parquet', data_files={path!r}, split='train')"
)
