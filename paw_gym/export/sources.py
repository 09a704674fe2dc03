"""Episodes: from a run's folder, a file, an exported data set, or an environment's own expert."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from paw_gym.internals.naming import did_you_mean
from paw_gym.internals.validation import naming_authors_line
from paw_gym.transition import Episode, read_jsonl, read_parquet
from paw_gym.wrappers import AgentInterface, make_agent_env

PARTS = {
    "all": ("rollouts/*", "episodes*"),
    "rollouts": ("rollouts/*",),
    "before": ("episodes_before.*",),
    "after": ("episodes_after.*",),
}
"""files of a run's folder by the name of the part that they are"""
_READERS = {".jsonl": read_jsonl, ".parquet": read_parquet}


def read_episodes(source: str | Path, part: str = "all") -> Iterator[Episode]:
    """Episodes from a file or a folder, one after the other.

    Args:
        source: a JSONL or Parquet file of episodes; the folder of a run or of an evaluation; a folder
            that ``paw export`` wrote.
        part: of a run: ``rollouts`` (of training), ``before``, ``after`` (evaluations), or ``all``.

    Raises:
        ValueError: there is nothing to read, or a file is damaged; names it.
    """
    files = episode_files(Path(source), part)
    return (episode for file in files for episode in _READERS[file.suffix](file))


def episode_files(source: Path, part: str = "all") -> list[Path]:
    """The files of episodes that a source holds, in the order of their names."""
    if part not in PARTS:
        raise ValueError(f"There is no part {part!r}. {did_you_mean(part, PARTS)}")
    if source.is_file():
        if source.suffix not in _READERS:
            raise ValueError(
                f"{source} is not a file of episodes by its name: expected .jsonl or .parquet."
            )
        return [source]
    if not source.is_dir():
        raise ValueError(
            f"There is no {source}: give a run's folder, or a .jsonl or .parquet file of episodes. "
            "Environments by name are played with `paw sft-data ENV OUT --expert`."
        )
    found = _matching(source, PARTS[part])
    if not found and part == "all" and not (source / "config.json").exists():
        found = _matching(source, ("data/*", "*"))
    if not found:
        there = [name for name in PARTS if name != "all" and _matching(source, PARTS[name])]
        hint = f" It has: {', '.join(there)}." if there else ""
        what = "episodes" if part == "all" else f"episodes of the part {part!r}"
        raise ValueError(
            f"{source} holds no {what}; expected {' or '.join(PARTS[part])} as .jsonl or .parquet.{hint}"
        )
    return found


def _matching(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    """Files of a kind, by pattern; of a file in both forms, one."""
    files: dict[Path, Path] = {}
    for pattern in patterns:
        for file in sorted(folder.glob(pattern)):
            if file.suffix in _READERS and file.is_file():
                files.setdefault(file.with_suffix(""), file)
    return list(files.values())


# --- an expert's ------------------------------------------------------------------------------------


def expert_episodes(
    env_id: str, episodes: int, seed: int = 0, **agent_kwargs: Any
) -> Iterator[Episode]:
    """Runs the expert on tasks that are sampled without repetition while there are any left; yields each
    episode as it was played, successful or not."""
    rng = np.random.default_rng(seed)
    with closing(make_agent_env(env_id, **agent_kwargs)) as env:
        shuffled = (rng.permutation(len(env.tasks)) for _ in count())
        tasks = (env.tasks.ids[int(index)] for order in shuffled for index in order)
        for number, task_id in zip(range(episodes), tasks, strict=False):
            options = {"task_id": task_id, "episode_id": f"{task_id}#expert-{seed}-{number}"}
            with naming_authors_line(f"Task {task_id!r}"):
                env.reset(seed=int(rng.integers(2**31)), options=options)
                episode = _play(env)
            yield episode


def _play(env: AgentInterface) -> Episode:
    episode = env.new_episode()
    try:
        act = env.text_env.expert()
    except NotImplementedError as error:
        raise ValueError(f"{env.env_id} has no expert to take examples from ({error})") from error
    over = False
    while not over:
        try:
            response = env.response_for(act())
        except StopIteration:
            break  # the plan is at its end and the episode is not: it counts as a failure
        _, _, terminated, truncated, info = env.step(response)
        episode.transitions.append(info["transition"])
        over = terminated or truncated
    return episode
