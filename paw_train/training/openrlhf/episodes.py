"""The episodes of a run on a cluster: rows of OpenRLHF's data sets, its form of a response, and engines.

A row stands for one rollout group. Its label holds all that running it takes, so an episode comes out
the same whichever engine gets it, and a resumed run goes on with the groups it would have had. An episode
stays on one engine from its first turn to its last, so that the engine's prefix cache holds its dialogue.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paw_gym.core import TaskSet
from paw_gym.internals.files import write_text
from paw_train.environments import agent_env_maker
from paw_train.evaluation.panels import make_panel
from paw_train.evaluation.runner import environment_seeds
from paw_train.rollouts.rollout import Trajectory
from paw_train.rollouts.tokens import ACTION
from paw_train.settings import Settings


@dataclass(frozen=True)
class GroupLabel:
    """One rollout group, or one episode of it."""

    split: str
    """that the task is of"""
    task_id: str
    seeds: tuple[int, ...]
    """of the environment, one for each episode"""
    group: int
    """number inside the update"""
    update: int
    """0-based; -1 in a validation"""
    member: int | None = None
    """the episode of the group that is meant; ``None``: all of them"""

    def episodes(self) -> list[GroupLabel]:
        return [replace(self, member=member) for member in range(len(self.seeds))]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> GroupLabel:
        data = json.loads(text)
        return cls(**{**data, "seeds": tuple(data["seeds"])})

    @property
    def validation(self) -> bool:
        return self.update < 0


def training_groups(tasks: TaskSet, settings: Settings) -> Iterator[GroupLabel]:
    """The groups of all updates, sampled as the local engine's pool samples them."""
    rng = np.random.default_rng(settings.seed + 1)
    for update in range(settings.updates):
        yield from _groups(tasks, settings, update, 0, rng)


def further_groups(
    tasks: TaskSet, settings: Settings, update: int, extra: int
) -> Iterator[GroupLabel]:
    """The groups that replace those of an update whose returns are all equal (dynamic sampling).

    They depend on the seed, the update and ``extra`` (the number of the further rollout, from 1) alone, so
    that a resumed run has the same.
    """
    rng = np.random.default_rng([settings.seed + 1, update, extra])
    yield from _groups(tasks, settings, update, extra * settings.rollout.groups, rng)


def _groups(
    tasks: TaskSet, settings: Settings, update: int, first: int, rng: np.random.Generator
) -> Iterator[GroupLabel]:
    r = settings.rollout
    picked = rng.choice(len(tasks), r.groups, replace=r.groups > len(tasks))
    for group, task in enumerate(picked, first):
        seeds = tuple(int(rng.integers(2**31)) for _ in range(r.group_size))
        yield GroupLabel(settings.only_env.train_split, tasks.ids[int(task)], seeds, group, update)


def panel_groups(tasks: TaskSet, settings: Settings) -> Iterator[GroupLabel]:
    """The tasks of the selection panel, one episode each."""
    e = settings.evaluation
    panel = make_panel(tasks, e.selection_split, e.selection_tasks, e.seed)
    seeds = environment_seeds(panel, e.seed)
    for number, task_id in enumerate(panel.task_ids):
        yield GroupLabel(e.selection_split, task_id, (seeds[task_id],), number, -1)


def write_data_sets(settings: Settings, folder: Path) -> None:
    """Writes ``episodes.jsonl`` and, if there are validations, ``panel.jsonl``."""
    env = agent_env_maker(settings.only_env, settings.only_env.train_split)()
    _write(folder / "episodes.jsonl", training_groups(env.tasks, settings), "train")
    env.close()
    if settings.evaluation.every:
        env = agent_env_maker(settings.only_env, settings.evaluation.selection_split)()
        _write(folder / "panel.jsonl", panel_groups(env.tasks, settings), "panel")
        env.close()


def _write(path: Path, groups: Iterator[GroupLabel], source: str) -> None:
    rows = [
        # the prompt names the row: prompts are made turn by turn, by the environment
        {"input": f"{source}/{i}", "label": group.to_json(), "datasource": source}
        for i, group in enumerate(groups)
    ]
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def response(trajectory: Trajectory, prompt: str, label: GroupLabel) -> dict[str, Any]:
    """The fields that ``SamplesGenerator`` reads, and ``trajectory``."""
    episode, rows = trajectory.episode, trajectory.rows
    failed = episode.error is not None or not episode.transitions
    # validations are of success, training of return
    reward = float(episode.success) if label.validation else float(episode.total_reward)
    return {
        "prompt": prompt,
        "label": label.to_json(),
        "images": None,
        "mm_train_inputs": None,
        "reward": 0.0 if failed else reward,
        "scores": 0.0 if failed else float(episode.success),
        "observation_tokens": list(rows[-1].ids) if rows else [0, 0],
        "action_ranges": [
            (places[0], places[-1] + 1)
            for row in rows[-1:]
            for places in row.places(ACTION).values()
        ],
        "rollout_log_probs": None,
        "truncated": bool(episode.transitions and episode.transitions[-1].truncated),
        "extra_logs": {},
        "trajectory": trajectory,
    }


def engines_of(episodes: int, engines: int) -> list[int]:
    """The engine of each episode of a rollout.

    Engines get equal numbers of consecutive episodes, so that a group is on as few engines as possible.
    """
    share, more = divmod(episodes, engines)
    return [e for e in range(engines) for _ in range(share + (e < more))]
