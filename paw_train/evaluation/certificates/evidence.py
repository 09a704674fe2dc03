"""The evidence for a result before it is certified: recorded episodes, and where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paw_gym.transition import Episode, read_jsonl
from paw_train.evaluation.certificates.episodes import CertifiedEpisode, recorded
from paw_train.evaluation.comparison import load_result
from paw_train.evaluation.panels import Panel
from paw_train.evaluation.runner import environment_seeds
from paw_train.settings import EnvSettings

STATED = (
    "agent", "agent_settings", "action_format", "model", "model_hash", "prompt_hash", "sampling",
    "settings", "privileged", "commit",
)  # fmt: skip
"""fields of ``result.json`` that replay cannot prove; a certificate states them"""


@dataclass(frozen=True)
class Evidence:
    """Episodes, and what their author says of them."""

    env: EnvSettings
    split: str | None
    panel: str | None
    """the panel's name; ``None``: the tasks of the episodes"""
    panel_size: int | None
    """tasks sampled for the panel; ``None``: all"""
    panel_seed: int | None
    """seed of that sample; ``None``: the tasks are not a sample"""
    panel_hash: str | None
    """as it was recorded"""
    planned_seeds: bool
    """whether the environment's seeds follow from the panel and the seed of the run"""
    episodes: tuple[CertifiedEpisode, ...]
    stated: Mapping[str, Any]
    """what replay cannot prove: model, prompts, trainer, ..."""
    reported: Mapping[str, Any]
    """numbers that must follow from the episodes"""


def result_evidence(path: Path) -> Evidence:
    """The evidence of a result of ``paw eval``.

    Args:
        path: its folder, or the ``result.json`` in it.

    Raises:
        ValueError: there is no result, it is not complete, or it does not record its environment.
    """
    result = load_result(path)
    folder = path if path.is_dir() else path.parent
    _require_certifiable(folder, result)
    settings = result["settings"]
    episodes = list(read_jsonl(folder / "episodes.jsonl"))
    tasks = int(result["tasks"])
    seeds = [int(run["seed"]) for run in result["runs"]]
    if len(episodes) != tasks * len(seeds):
        raise ValueError(
            f"{folder / 'episodes.jsonl'} holds {len(episodes)} episodes, but the result is of {tasks} "
            f"tasks with {len(seeds)} seed(s). Evaluate again (paw eval ... --fresh)."
        )
    return Evidence(
        env=EnvSettings.read(settings["env"], "env"),
        split=result["environment"]["split"],
        panel=result["panel"],
        panel_size=tasks,
        panel_seed=int(settings["panel_seed"]),
        panel_hash=result["panel_hash"],
        planned_seeds=True,
        episodes=tuple(_with_seeds(episodes, seeds, tasks, result)),
        stated={name: result.get(name) for name in STATED},
        reported=result,
    )


def _require_certifiable(folder: Path, result: Mapping[str, Any]) -> None:
    if not result.get("complete"):
        raise ValueError(
            f"The result in {folder} is not complete: {result.get('unplayed', 0)} episodes are missing "
            f"and {result.get('errors', 0)} failed. Run the same `paw eval` again first."
        )
    if "environment" not in result:
        raise ValueError(
            f"The result in {folder} does not record its environment: evaluate with `paw eval`."
        )
    if not (folder / "episodes.jsonl").is_file():
        raise ValueError(f"{folder} lacks episodes.jsonl: without actions nothing can be replayed.")


def _with_seeds(
    episodes: list[Episode], seeds: list[int], tasks: int, result: Mapping[str, Any]
) -> list[CertifiedEpisode]:
    panel = Panel("", tuple(e.task_id for e in episodes[:tasks]), result["panel_hash"])
    found = []
    for number, seed in enumerate(seeds):
        planned = environment_seeds(panel, seed)
        for episode in episodes[number * tasks : (number + 1) * tasks]:
            if episode.task_id not in planned:
                raise ValueError(
                    f"episodes.jsonl: {episode.task_id!r} is a task of one run and not of another."
                )
            found.append(recorded(episode, planned[episode.task_id], seed))
    return found
