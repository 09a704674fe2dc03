"""verl-agent: our environments as its environment manager, any number of them in one process.

    from paw_gym.adapters.verl_agent import EnvironmentManager

    envs = EnvironmentManager("paw_gym/ALFWorld-v0", groups=16, group_size=8, split="train")

Interface of verl-agent's ``EnvironmentManagerBase`` and of its ``TrajectoryCollector``: ``reset`` and
``step`` over lists, observations as ``text``, ``image`` and ``anchor``, ``won`` and ``is_action_valid`` in
``infos``, ``success_evaluator``. Needs neither verl-agent nor torch.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import cycle, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paw_gym.pool import EnvPool, Slot
from paw_gym.transition import Episode
from paw_gym.wrappers import make_agent_env

Observations = dict[str, Any]


class EnvironmentManager:
    """Groups x episodes of a registered environment.

    The task and the seed of every episode follow from ``seed`` alone: neither the order of files nor the
    number of processes affects them. Rewards carry no penalty for invalid actions unless
    ``invalid_penalty`` is given, because verl-agent subtracts its own (``use_invalid_action_penalty``).

    Args:
        group_size: episodes of each task, next to each other (``env.rollout.n``).
        seed: for the choice of tasks and for the environments.
        task_ids: tasks to go through in order, for validation; ``None`` samples them at each ``reset``.
        agent_kwargs: settings of ``make_agent_env``, including those of the environment.

    Raises:
        ValueError: a size below 1, no task at all, or an argument that the environment does not take.
        KeyError: there is no task with such an id.
    """

    def __init__(
        self,
        env_id: str,
        groups: int,
        group_size: int = 1,
        *,
        seed: int = 0,
        task_ids: Sequence[str] | None = None,
        **agent_kwargs: Any,
    ) -> None:
        agent_kwargs = {"invalid_penalty": 0.0, **agent_kwargs}
        if task_ids is not None and not len(task_ids):
            raise ValueError("task_ids is empty; expected ids of tasks, or None to sample them.")
        with closing(make_agent_env(env_id, **agent_kwargs)) as probe:
            if unknown := sorted(set(task_ids or ()) - set(probe.tasks.ids)):
                probe.tasks[unknown[0]]  # raises, with the nearest ids
            seeds = planned_seeds(probe.tasks.ids, seed)
        self._pool = EnvPool(env_id, groups, group_size, seed=seed, seeds=seeds, **agent_kwargs)
        self.groups, self.group_size = groups, group_size
        self._fixed = None if task_ids is None else cycle(task_ids)
        self._slots: list[Slot] = []
        self._ended: list[bool] = []
        self._infos: list[dict[str, Any]] = []

    def reset(
        self, kwargs: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[Observations, list[dict[str, Any]]]:
        """Starts an episode in each environment.

        Args:
            kwargs: the rows' ``env_kwargs``; if they hold a ``task_id``, that task is started. Either all
                of them hold one, or none.

        Returns:
            (observations, infos): ``text`` is the list of prompts, ``anchor`` that of the environment's own
            observations, ``image`` is ``None``.

        Raises:
            ValueError: the rows of a group name several tasks, some rows name none, or their number does not
                fit.
            KeyError: there is no task with such an id.
            RuntimeError: an environment raised; names the task.
        """
        self._slots = list(self._pool.reset(self._chosen(kwargs)))
        self._require_running()
        self._ended = [False] * len(self._slots)
        self._infos = [_info(slot) for slot in self._slots]
        return self._observations(), [dict(info) for info in self._infos]

    def _chosen(self, rows: Sequence[Mapping[str, Any]] | None) -> list[str] | None:
        """The task of each group."""
        # a column that only some rows have comes out of a data set with nulls
        named = [(row or {}).get("task_id") for row in rows] if rows is not None else []
        ids = [str(task_id) for task_id in named if task_id is not None]
        if not ids:
            return None if self._fixed is None else list(islice(self._fixed, self.groups))
        if len(ids) < len(named):
            raise ValueError(
                f"{len(ids)} of {len(named)} rows name a task; expected a task_id in every row, or in none."
            )
        size = self.group_size
        groups = [ids[i : i + size] for i in range(0, len(ids), size)]
        if len(ids) != self.groups * size or any(len(set(group)) > 1 for group in groups):
            raise ValueError(
                f"Expected {self.groups} groups of {size} rows with one task_id each, got {len(ids)} rows."
            )
        return [group[0] for group in groups]

    def _require_running(self) -> None:
        for episode in self._pool.episodes:
            if episode.error is not None:
                raise RuntimeError(
                    f"{episode.env_id} failed on task {episode.task_id!r}:\n{episode.error}"
                )

    def step(
        self, text_actions: Sequence[str]
    ) -> tuple[Observations, NDArray[np.float64], NDArray[np.bool_], list[dict[str, Any]]]:
        """Takes a response for each environment; those whose episode is over ignore it.

        Returns:
            (observations, rewards [N], dones [N], infos). An episode that is over keeps its last observation
            and info, and has reward 0.

        Raises:
            ValueError: the number of responses does not fit.
            RuntimeError: an environment raised; names the task.
        """
        if not self._slots or len(text_actions) != len(self._slots):
            raise ValueError(
                f"Expected {len(self._slots)} responses, one for each environment that reset() has started, "
                f"got {len(text_actions)}."
            )
        running = [i for i, over in enumerate(self._ended) if not over]
        if running:
            going = {s.index for s in self._pool.step([text_actions[i] for i in running])}
            self._require_running()
        rewards = np.zeros(len(self._slots))
        for i in running:
            slot = self._slots[i]
            rewards[i] = slot.info["transition"].reward
            self._ended[i] = slot.index not in going
            self._infos[i] = _info(slot)
        infos = [dict(info) for info in self._infos]
        return self._observations(), rewards, np.array(self._ended), infos

    def _observations(self) -> Observations:
        anchors = [self._pool.env_of(slot).observation for slot in self._slots]
        return {"text": [slot.prompt for slot in self._slots], "image": None, "anchor": anchors}

    def success_evaluator(
        self,
        *,
        total_infos: Sequence[Sequence[Mapping[str, Any]]],
        total_batch_list: Sequence[Sequence[Mapping[str, Any]]],
        **_: Any,
    ) -> dict[str, NDArray[np.float64]]:
        """Success by the last step of each episode that was not yet over.

        Args:
            total_batch_list: by environment and step, with ``active_masks``.

        Returns:
            ``success_rate`` [N], ``score`` [N], and ``TYPE_success_rate`` for each type of task.
        """
        found: dict[str, list[float]] = defaultdict(list)
        for rows, infos in zip(total_batch_list, total_infos, strict=True):
            last = max(i for i, row in enumerate(rows) if row["active_masks"])
            won = float(infos[last]["won"])
            found["success_rate"].append(won)
            found["score"].append(float(infos[last]["score"]))
            found[f"{infos[last]['task_type']}_success_rate"].append(won)
        return {name: np.array(values) for name, values in found.items()}

    @property
    def episodes(self) -> list[Episode]:
        """The episodes since the last ``reset``, as they are recorded elsewhere."""
        return list(self._pool.episodes)

    def close(self) -> None:
        self._pool.close()


def _info(slot: Slot) -> dict[str, Any]:
    info = {key: value for key, value in slot.info.items() if key != "messages"}
    valid = np.array(bool(info["action_is_valid"]))
    return {**info, "won": bool(info["success"]), "is_action_valid": valid}


def planned_seeds(task_ids: Sequence[str], seed: int) -> dict[str, int]:
    """The seed of each task's episodes, so that those of a group start the same."""
    digests = (hashlib.blake2b(f"{seed}/{i}".encode(), digest_size=4).digest() for i in task_ids)
    return {i: int.from_bytes(d, "big") >> 1 for i, d in zip(task_ids, digests, strict=True)}
