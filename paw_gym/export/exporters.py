"""Forms of a data set by name, for ``paw export --to NAME``, and the parts that their writers share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from paw_gym.internals.printable import markdown_text
from paw_gym.internals.registry import Registry
from paw_gym.transition import Episode, Transition, write_jsonl, write_parquet

_SURROGATE = re.compile("[\ud800-\udfff]")
Record = TypeVar("Record", Episode, Transition)


def require_file(out: Path, force: bool) -> None:
    """Raises an ``OSError`` for a file that would overwrite something, or that cannot be written there."""
    if out.is_dir():
        raise IsADirectoryError(f"{out} is a folder; this form is one file.")
    if out.exists() and not force:
        raise FileExistsError(
            f"{out} exists already. Choose another name, or replace it with --force."
        )
    if not out.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {out.parent} to write to.")


@dataclass(slots=True)
class Tally:
    """Counts of the episodes that were written."""

    episodes: int = 0
    transitions: int = 0
    successes: int = 0
    env_ids: set[str] = field(default_factory=set)

    @property
    def environments(self) -> str:
        """Their ids, in Markdown."""
        return ", ".join(map(markdown_text, sorted(self.env_ids)))

    def count(
        self, episodes: Iterable[Episode], progress: Callable[[Tally], None] | None = None
    ) -> Iterator[Episode]:
        """The same episodes, counted as they go by."""
        for episode in episodes:
            self.episodes += 1
            self.transitions += len(episode.transitions)
            self.successes += episode.success
            self.env_ids.add(episode.env_id)
            yield episode
            if progress:
                progress(self)


def with_clean_texts(episodes: Iterable[Episode]) -> Iterator[Episode]:
    """The episodes with lone surrogates as U+FFFD: JSON can hold them, UTF-8 (Arrow, Parquet) cannot."""
    for episode in episodes:
        yield replace(_clean(episode), transitions=list(map(_clean, episode.transitions)))


def _clean(record: Record) -> Record:
    values = {f.name: getattr(record, f.name) for f in fields(record)}
    texts = {k: _SURROGATE.sub("\ufffd", v) for k, v in values.items() if isinstance(v, str)}
    return replace(record, **texts)  # type: ignore[arg-type]


def card(name: str, files: Mapping[str, str], text: str) -> str:
    """A dataset's card: what ``datasets`` reads under which name, and a text."""
    configs = "\n".join(
        f'- config_name: {kind}\n  data_files: [{{split: train, path: "{path}"}}]'
        for kind, path in files.items()
    )
    return f"""---
pretty_name: {json.dumps(name, ensure_ascii=False)}
tags: [reinforcement-learning, text-environments, paw-gym]
configs:
{configs}
---

# {name}

{text}"""


# --- the forms ----------------------------------------------------------------------------------------


Write = Callable[..., Tally]
"""``write(out, episodes, *, force=False, progress=None)`` writes episodes to a path, whole or not at all,
calls ``progress`` with the counts after each, and returns them. It raises ``FileExistsError`` if something is
there and ``force`` is not set"""


@dataclass(frozen=True)
class Exporter:
    """One form of a data set."""

    write: Write
    use: str
    """the line of Python that reads it; ``{path!r}`` stands for what was written"""


EXPORTERS: Registry[Exporter] = Registry("form", "paw_gym.exporters")
"""the forms by name; add yours with ``EXPORTERS.add(name, Exporter(...))``"""


def _one_file(write: Callable[[Path, Iterable[Episode]], Any]) -> Write:
    def write_file(
        out: Path,
        episodes: Iterable[Episode],
        *,
        force: bool = False,
        progress: Callable[[Tally], None] | None = None,
    ) -> Tally:
        require_file(out, force)
        tally = Tally()
        write(out, tally.count(episodes, progress))
        return tally

    return write_file


EXPORTERS.add("jsonl", Exporter(_one_file(write_jsonl), "paw_gym.transition.read_jsonl({path!r})"))
EXPORTERS.add(
    "parquet",
    Exporter(
        _one_file(lambda out, episodes: write_parquet(out, with_clean_texts(episodes))),
        "datasets.load_dataset('parquet', data_files={path!r}, split='train')",
    ),
)
