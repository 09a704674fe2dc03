"""A curriculum at the edge of ability: draws tasks whose groups come out neither all solved nor all failed.

Tasks lie in difficulty cells, which the environment names. A bandit over the cells draws them in proportion
to a score of their recent groups. Beside it, tasks that were half solved are drawn again. Everything random
follows from the seed and the number of the update; what was learned about the cells is the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from paw_train.rollouts.rollout import Trajectory
from paw_train.settings.curriculum import CurriculumSettings

_DRAWS = 3
"""part of the seeds of the draws"""
_ALL = "all"
"""the cell of tasks that the environment puts into none"""
_BEST = 0.25
"""the largest variance of success, at success 1/2"""


@dataclass(frozen=True, slots=True)
class PlayedGroup:
    """How a group came out."""

    update: int
    task_id: str
    solved: int
    """of its episodes"""
    episodes: int

    @property
    def success(self) -> float:
        """Share of its episodes that succeeded."""
        return self.solved / self.episodes

    @property
    def variance(self) -> float:
        """Unbiased estimate of p(1 - p), p being the probability of success: k(n - k) / (n(n - 1))."""
        k, n = self.solved, self.episodes
        return k * (n - k) / (n * (n - 1))


def variance_scores(cells: Mapping[str, Sequence[PlayedGroup]]) -> dict[str, float]:
    """By cell, the mean variance of success within its groups and one more, of success 1/2.

    The mean over groups, not the variance of the cell's mean success: a cell whose tasks are either always
    or never solved teaches nothing. The additional group lets a cell that was drawn little be drawn more.
    """
    return {
        name: (sum(g.variance for g in groups) + _BEST) / (len(groups) + 1)
        for name, groups in cells.items()
    }


def learning_progress_scores(cells: Mapping[str, Sequence[PlayedGroup]]) -> dict[str, float]:
    """By cell, how fast its success changes: the absolute slope of a least-squares line, by update.

    A cell with groups of fewer than two updates has the highest score of the others.
    """
    slopes = {name: _slope(groups) for name, groups in cells.items()}
    known = [abs(slope) for slope in slopes.values() if slope is not None]
    return {name: max(known, default=1.0) if s is None else abs(s) for name, s in slopes.items()}


def _slope(groups: Sequence[PlayedGroup]) -> float | None:
    updates = np.array([g.update for g in groups], dtype=float)
    if len(set(updates)) < 2:
        return None
    from_mean = updates - updates.mean()
    success = np.array([g.success for g in groups])
    return float(from_mean @ success / (from_mean @ from_mean))


_SCORES = {"variance": variance_scores, "learning_progress": learning_progress_scores}


class Curriculum:
    """Draws the tasks of an environment's groups, and learns from how they come out.

    For each update: ``begin``, ``draw`` for each rollout, ``learn``.

    Args:
        settings: its rule; the method is not ``off``.
        cells: the ids of all tasks by difficulty cell.
        seed: of the draws.
    """

    def __init__(
        self, settings: CurriculumSettings, cells: Mapping[str, Sequence[str]], seed: int
    ) -> None:
        self.settings, self.seed = settings, seed
        self.cells: dict[str, list[str]] = {}
        for name, ids in cells.items():
            self.cells.setdefault(name or _ALL, []).extend(ids)
        self._cell_of = {task_id: name for name, ids in self.cells.items() for task_id in ids}
        self._groups: list[PlayedGroup] = []
        """of the window, in order"""
        self._half: dict[str, PlayedGroup] = {}
        """by task, its latest group in the window, where that was half solved"""
        self.begin(0)

    def begin(self, update: int) -> None:
        """Starts the draws of an update.

        Args:
            update: its number, from 0.
        """
        self._update = update
        self._rng = np.random.default_rng([self.seed, _DRAWS, update])
        oldest = update - self.settings.window
        self._groups = [g for g in self._groups if g.update >= oldest]
        self._half = {task: g for task, g in self._half.items() if g.update >= oldest}
        self._drawn: list[str] = []
        self._replayed: set[int] = set()
        self._probabilities = self._now()

    @property
    def probabilities(self) -> dict[str, float]:
        """By cell, the probability of a draw that is no replay, in this update."""
        return dict(self._probabilities)

    def _now(self) -> dict[str, float]:
        s = self.settings
        by_cell: dict[str, list[PlayedGroup]] = {name: [] for name in self.cells}
        for group in self._groups:
            by_cell[self._cell_of[group.task_id]].append(group)
        scores = np.array(list(_SCORES[s.method](by_cell).values()))
        # of the best one: a power of small numbers would vanish
        weights = (scores / scores.max()) ** s.sharpness if scores.any() else np.ones(len(scores))
        values = s.explore / len(scores) + (1 - s.explore) * weights / weights.sum()
        return dict(zip(self.cells, (values / values.sum()).tolist(), strict=True))

    def draw(self, count: int) -> list[str]:
        """The tasks of so many groups; none twice in an update, as far as its cell has others."""
        return [self._draw() for _ in range(count)]

    def _draw(self) -> str:
        drawn = set(self._drawn)
        half = [task for task in sorted(self._half) if task not in drawn]
        if self._rng.random() < self.settings.replay and half:
            self._replayed.add(len(self._drawn))
            weights = np.array([self._half[task].variance for task in half])
            task_id = half[int(self._rng.choice(len(half), p=weights / weights.sum()))]
        else:
            names = list(self.cells)
            chances = list(self._probabilities.values())
            tasks = self.cells[names[int(self._rng.choice(len(names), p=chances))]]
            task_id = self._other(tasks, drawn)
        self._drawn.append(task_id)
        return task_id

    def _other(self, tasks: Sequence[str], drawn: set[str]) -> str:
        """One of a cell's tasks, one that was not drawn yet if there is any."""
        if len(drawn) >= len(tasks):  # only then can all of them have been drawn
            tasks = [task for task in tasks if task not in drawn] or tasks
        while True:
            task_id = tasks[int(self._rng.integers(len(tasks)))]
            if task_id not in drawn or drawn.issuperset(tasks):
                return task_id

    def learn(self, trajectories: Iterable[Trajectory]) -> None:
        """Counts the update's groups, numbered in the order of their draws.

        Failed episodes and branches are left out, and so are groups with fewer than two other episodes. A
        replayed task was chosen for how it came out: it says nothing about its cell.
        """
        found: dict[int, list[bool]] = {}
        for trajectory in trajectories:
            episode = trajectory.episode
            if episode.error is None and episode.parent is None:
                found.setdefault(episode.group, []).append(episode.success)
        for number, successes in sorted(found.items()):
            if len(successes) < 2:
                continue
            task_id = self._drawn[number]
            group = PlayedGroup(self._update, task_id, sum(successes), len(successes))
            if number not in self._replayed:
                self._groups.append(group)
            if group.variance > 0:
                self._half[task_id] = group
            else:
                self._half.pop(task_id, None)

    def metrics(self, environment: str = "") -> dict[str, float]:
        """Of the update: by cell its probability, the groups that it got, and its success in the window.

        Args:
            environment: its name in a run of several, which is then part of the metrics' names.
        """
        whole, part = (f"/{environment}", f"{environment}.") if environment else ("", "")
        share = len(self._replayed) / max(1, len(self._drawn))
        found: dict[str, float] = {f"replayed_groups{whole}": share}
        drawn = [self._cell_of[task_id] for task_id in self._drawn]
        oldest = self._update - self.settings.window + 1
        counted = [g for g in self._groups if g.update >= oldest]
        for name in self.cells:
            found[f"cell_probability/{part}{name}"] = self._probabilities[name]
            found[f"cell_groups/{part}{name}"] = drawn.count(name)
            own = [g for g in counted if self._cell_of[g.task_id] == name]
            if own:
                solved, episodes = sum(g.solved for g in own), sum(g.episodes for g in own)
                found[f"cell_success/{part}{name}"] = solved / episodes
        return found

    def state_dict(self) -> dict[str, Any]:
        """What the next update's draws depend on, beside the seed."""
        return {
            "groups": [asdict(g) for g in self._groups],
            "half": [asdict(g) for g in self._half.values()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of ``state_dict``, between updates."""
        self._groups = [PlayedGroup(**g) for g in state["groups"]]
        self._half = {g["task_id"]: PlayedGroup(**g) for g in state["half"]}
