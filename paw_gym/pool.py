"""Groups x episodes of an environment, stepped together in one process."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paw_gym.transition import Episode
from paw_gym.wrappers import AgentInterface, make_agent_env


@dataclass(slots=True)
class Slot:
    """One running episode: the prompt to answer, and the record so far."""

    index: int
    group: int
    prompt: str
    info: dict[str, Any]
    episode: Episode


class EnvPool:
    """Runs ``groups * group_size`` episodes; the episodes of a group have the same task.

    ``reset`` starts them; ``step`` takes one response for each running episode, and finished
    episodes leave the batch. An environment that raises fails its own episode: the traceback is
    kept in ``Episode.error`` and the others go on.

    Args:
        env: a registered id, or a function without arguments that makes an ``AgentInterface``.
        groups: number of tasks at a time.
        group_size: episodes of each task.
        agent_kwargs: settings of ``make_agent_env``, including those of the environment.
        seed: seeds the choice of tasks and the environments.
        seeds: seed of the environment by task id, so that an episode starts the same whatever was
            run before; other tasks get sampled seeds.
    """

    def __init__(
        self,
        env: str | Callable[[], AgentInterface],
        groups: int = 1,
        group_size: int = 1,
        *,
        seed: int = 0,
        seeds: Mapping[str, int] | None = None,
        **agent_kwargs: Any,
    ) -> None:
        if groups < 1 or group_size < 1:
            raise ValueError(
                f"groups and group_size are at least 1, got {groups} and {group_size}."
            )
        if callable(env) and agent_kwargs:
            raise ValueError(
                f"{', '.join(agent_kwargs)}: these settings go to make_agent_env, but {env!r} makes "
                "the environments here. Give them there."
            )
        self._make = env if callable(env) else lambda: make_agent_env(env, **agent_kwargs)
        self.groups = groups
        self.group_size = group_size
        self._rng = np.random.default_rng(seed)
        self._seeds = dict(seeds or {})
        self._progress: float | None = None
        self._envs: list[AgentInterface] = [self._new_env()]
        self.active: list[Slot] = []
        self.episodes: list[Episode] = []

    def _new_env(self) -> AgentInterface:
        env = self._make()
        if self._progress is not None:
            env.text_env.set_progress(self._progress)
        return env

    def set_progress(self, fraction: float) -> None:
        """``TextEnv.set_progress`` in every environment, including those still to be made."""
        for env in self._envs:
            env.text_env.set_progress(fraction)
        self._progress = fraction

    @property
    def tasks(self) -> Any:
        return self._envs[0].tasks

    def reset(
        self, task_ids: Sequence[str] | None = None, group_size: int | None = None
    ) -> list[Slot]:
        """Starts the episodes of one update and returns the running slots.

        Args:
            task_ids: a task for each group (any number); ``None`` samples ``groups`` different ones.
            group_size: episodes of each task, if not the pool's own.
        """
        size = group_size or self.group_size
        if task_ids is None:
            count = len(self.tasks)
            picked = self._rng.choice(count, self.groups, replace=self.groups > count)
            task_ids = [self.tasks.ids[int(i)] for i in picked]
        for task_id in task_ids:
            self.tasks[task_id]
        while len(self._envs) < len(task_ids) * size:
            self._envs.append(self._new_env())
        self.active, self.episodes = [], []
        tasks = [task_id for task_id in task_ids for _ in range(size)]
        planned = map(self._seeds.get, tasks)
        seeds = [int(self._rng.integers(2**31)) if seed is None else seed for seed in planned]
        self._fetch_ahead(
            (env, "reset", (seed, {"task_id": task_id}))
            for env, task_id, seed in zip(self._envs, tasks, seeds, strict=False)
        )
        for index, (task_id, seed) in enumerate(zip(tasks, seeds, strict=True)):
            group, member = divmod(index, size)
            if task_id in self._seeds:  # a second group of it would get the names of the first
                member += size * list(task_ids[:group]).count(task_id)
            self._start(index, group, member, task_id, seed)
        return self.active

    def _fetch_ahead(self, calls: Iterable[tuple[AgentInterface, str, tuple[Any, ...]]]) -> None:
        """Asks remote environments in one request; they keep the answers for the calls that follow."""
        fetch = getattr(self._envs[0].text_env, "fetch_ahead", None)
        if fetch is not None:
            fetch([(env.text_env, method, arguments) for env, method, arguments in calls])

    def _start(self, index: int, group: int, member: int, task_id: str, seed: int) -> None:
        env = self._envs[index]
        name = f"{task_id}#{seed:08x}-{member}"
        options = {"task_id": task_id, "episode_id": name}
        try:
            prompt, info = env.reset(seed=seed, options=options)
        except Exception:  # whatever an environment raises fails its own episode only
            failed = Episode(env.env_id, task_id, name, self.tasks[task_id].type, group=group)
            failed.error = traceback.format_exc()
            self.episodes.append(failed)
            return
        slot = Slot(index, group, prompt, info, env.new_episode(group))
        self.episodes.append(slot.episode)
        self.active.append(slot)

    def step(self, responses: Sequence[str]) -> list[Slot]:
        """Gives each slot of ``active`` its response; returns those that are still running."""
        count, kind = len(self.active), type(responses).__name__
        if len(responses) != count or isinstance(responses, Mapping):
            raise ValueError(
                f"Expected a list of {count} responses (one a slot), got a {kind} of {len(responses)}."
            )
        answered = list(zip(self.active, responses, strict=True))
        self._fetch_ahead(
            (env, "step", (env.template.read_response(response).action,))
            for slot, response in answered
            if not (env := self._envs[slot.index]).require_admissible  # asked before the step
        )
        self.active = [slot for slot, response in answered if self._advance(slot, response)]
        return self.active

    def fail(self, slot: Slot, error: str) -> None:
        """Ends a running episode by an error; the others go on."""
        slot.episode.error = error
        self.active.remove(slot)

    def truncate(self, slot: Slot, **info: Any) -> None:
        """Ends a running episode at its latest step, for a reason outside its environment."""
        last = slot.episode.transitions[-1]
        slot.episode.transitions[-1] = replace(last, truncated=True, info={**last.info, **info})
        self.active.remove(slot)

    def _advance(self, slot: Slot, response: str) -> bool:
        env = self._envs[slot.index]
        try:
            slot.prompt, _, terminated, truncated, slot.info = env.step(response)
        except Exception:  # see _start
            slot.episode.error = traceback.format_exc()
            with suppress(Exception):
                env.close()
            self._envs[slot.index] = self._new_env()
            return False
        slot.episode.transitions.append(slot.info["transition"])
        return not (terminated or truncated)

    def env_of(self, slot: Slot) -> AgentInterface:
        """The environment of a slot."""
        return self._envs[slot.index]

    def state_dict(self) -> dict[str, Any]:
        """The state that makes the next ``reset`` the same: between updates, the generator's."""
        return {"rng": self._rng.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]

    def close(self) -> None:
        for env in self._envs:
            env.close()
