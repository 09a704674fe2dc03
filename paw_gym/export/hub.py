"""The layout of a data set on the Hugging Face hub: a card, and a Parquet file in ``data/``.

``datasets.load_dataset(FOLDER)`` reads it, and so do pandas, Polars and DuckDB; uploading the folder
publishes it. The library itself is not needed to write it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from paw_gym.export.exporters import EXPORTERS, Exporter, Tally, card, with_clean_texts
from paw_gym.internals.files import new_folder, require_free
from paw_gym.internals.printable import counted
from paw_gym.transition import Episode, write_parquet

_FILE = "data/train-00000.parquet"


def write_hub_dataset(
    out: Path,
    episodes: Iterable[Episode],
    *,
    force: bool = False,
    progress: Callable[[Tally], None] | None = None,
) -> Tally:
    """Writes one transition per row to a file in ``out/data``, and a card.

    Args:
        out: the folder; it appears whole or not at all.

    Raises:
        FileExistsError: ``out`` exists; ``force`` replaces an earlier data set.
        ValueError: there is no episode.
    """
    tally = Tally()
    counted = tally.count(with_clean_texts(episodes), progress)
    require_free(out, _FILE, force)
    with new_folder(out) as folder:
        (folder / "data").mkdir()
        write_parquet(folder / _FILE, counted)
        if tally.episodes == 0:
            raise ValueError("There is no episode to write.")
        (folder / "README.md").write_text(_card(out.name, tally), encoding="utf-8")
    return tally


def _card(name: str, tally: Tally) -> str:
    text = f"""\
{counted(tally.transitions, "transition")} of {counted(tally.episodes, "episode")}, {tally.successes:,} of
them successful, from {tally.environments}.

```python
from datasets import load_dataset

data = load_dataset("path/to/{name}", split="train")
```

One row is one transition, in the order of play.

| column | |
| --- | --- |
| `prompt` | h_t: what the agent saw (in conversation mode the newest message) |
| `observation` | o_t as the environment printed it |
| `response` | what it answered, raw |
| `action` | what the environment was given |
| `reward` | r_t |
| `next_observation` | o_{{t+1}} as the environment printed it |
| `terminated, truncated` | how the episode ended, on its last step |
| `action_is_valid` | whether the response was a valid action |
| `info` | JSON: success, score and more |
| `step` | index in the episode; empty for an episode without a step |
| `parent` | episode that this one branched from, if any |
| `env_id, task_id, episode_id` | where it was played |
| `episode_*` | of the whole episode, the same in each of its rows |

Written by [PaW-Gym](https://pypi.org/project/paw-gym/); `paw export` turns it back into episodes.
"""
    return card(name, {"default": "data/*.parquet"}, text)


EXPORTERS.add(
    "datasets", Exporter(write_hub_dataset, "datasets.load_dataset({path!r}, split='train')")
)
