"""Text environments: tasks, outcomes, and the Gymnasium environment around them.

An author subclasses ``TextEnv`` and writes two methods, ``_start`` and ``_act``; everything that
Gymnasium and the trainers ask for (seeding, task choice, info keys, the step budget, exact
save and restore) is here, once.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
from abc import ABCMeta, abstractmethod
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from numbers import Integral
from typing import Any, ClassVar

import gymnasium as gym

from paw_gym.internals import validation
from paw_gym.internals.canonical import canonical
from paw_gym.internals.naming import UnknownTaskError, did_you_mean, require_choice
from paw_gym.internals.validation import INFO_KEYS, EnvDefinitionError
from paw_gym.spaces import UnicodeText
from paw_gym.task import Outcome, Task

__all__ = [
    "INFO_KEYS",
    "AgentDefaults",
    "EnvDefinitionError",
    "Outcome",
    "Task",
    "TaskSet",
    "TextEnv",
]


_SEARCHED = 2000
"""ids that are searched for the nearest one: of more, its neighbours in order, which begin alike"""


class TaskSet(Sequence[Task]):
    """An ordered, immutable set of tasks; large sets load a task when it is asked for.

    Args:
        ids: the task ids in order; unique.
        load: makes the task of an id.
        fingerprint: hash of everything that defines the tasks. It goes into every result file, so two
            sets with equal fingerprints must hold equal tasks.
        split: name of the split, for messages.
    """

    def __init__(
        self, ids: Sequence[str], load: Callable[[str], Task], fingerprint: str, split: str = ""
    ) -> None:
        validation.check_task_ids(ids)
        self.ids: Sequence[str] = ids
        self.fingerprint = fingerprint
        self.split = split
        self._load = load
        self._known = frozenset(ids)

    @classmethod
    def from_tasks(cls, tasks: Iterable[Task], split: str = "") -> TaskSet:
        """A set of tasks that are all in memory; the fingerprint covers every field of every task."""
        listed: list[Task] = validation.listed_tasks(tasks)
        by_id = {task.id: task for task in listed}
        digest = hashlib.sha256()
        for task in listed:
            parts = [task.id, task.type, task.instruction, task.data]
            try:
                digest.update(canonical(parts).encode())
            except TypeError as error:
                raise EnvDefinitionError(
                    f"The data of task {task.id!r} has no fingerprint: {error}.", "Task.data"
                ) from None
        return cls([task.id for task in listed], by_id.__getitem__, digest.hexdigest(), split)

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Task]:
        return (self._loaded(task_id) for task_id in self.ids)

    def __contains__(self, key: object) -> bool:
        return (key.id if isinstance(key, Task) else key) in self._known

    def __getitem__(self, key: int | str | slice) -> Any:
        """The task of an id or of an index."""
        if isinstance(key, slice):
            return [self._loaded(task_id) for task_id in self.ids[key]]
        if isinstance(key, str):
            return self._by_id(key)
        if not -len(self.ids) <= key < len(self.ids):
            raise IndexError(f"Task index {key} is out of range: there are {len(self.ids)} tasks.")
        return self._loaded(self.ids[int(key)])

    def _by_id(self, task_id: str) -> Task:
        if task_id in self._known:
            return self._loaded(task_id)
        where = f" in split {self.split!r}" if self.split else ""
        near = self.ids
        if len(near) > _SEARCHED:
            near = sorted(near)
            place = bisect(near, task_id)
            near = near[max(0, place - _SEARCHED // 2) : place + _SEARCHED // 2]
        hint = did_you_mean(task_id, near, total=len(self.ids))
        raise UnknownTaskError(f"There is no task {task_id!r}{where}. {hint}")

    def _loaded(self, task_id: str) -> Task:
        task = self._load(task_id)
        found = getattr(task, "id", task_id)
        if found != task_id:
            raise EnvDefinitionError(
                f"The task that is listed as {task_id!r} has the id {found!r}; expected the id that it is "
                "asked for by.",
                "Task.id",
            )
        return task

    def subset(self, keep: Callable[[str], bool]) -> TaskSet:
        """The set of the tasks whose id ``keep`` accepts, in order, with its own fingerprint."""
        ids = [task_id for task_id in self.ids if keep(task_id)]
        digest = hashlib.sha256("\n".join([self.fingerprint, *ids]).encode()).hexdigest()
        return TaskSet(ids, self._load, digest, self.split)


def split_of_key(key: str, shares: Mapping[str, float]) -> str:
    """The split that a key belongs to; depends on the key alone.

    Args:
        key: names what must not be in two splits, such as a product or a level.
        shares: share of each split; they sum to 1.
    """
    bounds = zip(accumulate(shares.values()), shares, strict=True)
    digest = hashlib.sha256(key.encode()).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    return next((split for bound, split in bounds if place < bound), list(shares)[-1])


@dataclass(frozen=True, slots=True)
class AgentDefaults:
    """How an agent meets this environment unless the user says otherwise (Appendix A.1 of the PaW paper)."""

    template: str = "generic"
    """name of a built-in prompt template, or the path of a template file"""
    history_length: int | None = 2
    """past (observation, action) pairs in the prompt; ``None``: all"""
    success_reward: float | None = None
    """reward of the step that succeeds, all others 0; ``None``: the environment's own reward"""
    invalid_penalty: float = -0.1
    """added to the reward of an invalid response"""


class _Construction(ABCMeta):
    """Keeps what an environment was made with, for copies, and names its class in errors about its tasks."""

    @property
    def __signature__(cls) -> inspect.Signature:
        """Its arguments; without this, those of ``__call__`` below would be shown."""
        own = inspect.signature(cls.__init__)  # type: ignore[misc]
        return own.replace(parameters=list(own.parameters.values())[1:])

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        try:
            made = super().__call__(*args, **kwargs)
        except EnvDefinitionError as error:
            error.owner = error.owner or cls.__name__
            raise
        made._made_with = (cls, args, kwargs)
        return made


class TextEnv(gym.Env[str, str], metaclass=_Construction):
    """Base class of text environments: strings in, strings out.

    A subclass calls ``super().__init__(tasks, max_steps)`` and implements ``_start`` and ``_act``;
    ``_get_state`` / ``_set_state`` when attributes other than ``self.state`` change during an
    episode; and ``reference_solution``, which proves that tasks can be solved with no model.

    What ``_start`` and ``_act`` return is checked at every call: a wrong field raises
    ``EnvDefinitionError`` with one sentence. ``pickle`` and ``copy.deepcopy`` work through
    ``save_state``, also in mid-episode.

    Args:
        tasks: the task set to sample from.
        max_steps: step budget; an episode that uses it up is *truncated*.
        render_mode: ``"ansi"`` makes ``render`` return the last observation.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}
    agent: ClassVar[AgentDefaults] = AgentDefaults()
    recorded_info: ClassVar[tuple[str, ...]] = ()
    """keys of ``info`` that every transition keeps beside ``success`` and ``score``"""
    type_groups: ClassVar[Mapping[str, Sequence[str]]] = {}
    """groups of task types whose mean success an evaluation reports too, each type counting once"""
    held_out_splits: ClassVar[tuple[str, str]] = ("valid_seen", "valid_unseen")
    """for an environment with a ``split``: the split that checkpoints are chosen on, and the one that
    results are reported on, unless the user says otherwise"""
    small_template: ClassVar[str] = "compact"
    """prompt template for a small model that is trained from scratch on this environment"""
    forkable: bool = False
    """True if all of it is in this process (no connection, thread or device): a fork of the process may go on
    with its episodes"""

    def __init__(self, tasks: TaskSet, max_steps: int, render_mode: str | None = None) -> None:
        hint = "a TaskSet: TaskSet.from_tasks([...])"
        validation.expect(isinstance(tasks, TaskSet), "tasks is", tasks, hint, "tasks")
        validation.check_max_steps(max_steps)
        if len(tasks) == 0:
            raise ValueError(
                f"{type(self).__name__}: the task set is empty, nothing can be played."
            )
        self.tasks = tasks
        self.max_steps = max_steps
        self.render_mode = render_mode
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()
        self.state: Any = None
        """kept by ``_start`` and ``_act`` between calls; copied by ``save_state``"""
        self.progress: float | None = None
        """share of training that is done, 0 to 1; ``None``: no training (see ``set_progress``)"""
        self._task: Task | None = None
        self._steps = 0
        self._over = False
        self._last = Outcome("")
        self._made_with: tuple[Callable[..., TextEnv], tuple[Any, ...], dict[str, Any]]

    # --- for authors ---------------------------------------------------------------------------

    @abstractmethod
    def _start(self, task: Task) -> Outcome:
        """Sets the task up and returns the first observation. Randomness comes from ``self.np_random``."""

    @abstractmethod
    def _act(self, action: str) -> Outcome:
        """Applies an action. Must not raise on any string: an action that is not accepted gets an
        observation that says so and ``action_is_valid=False``."""

    def _get_state(self) -> Any:
        """A picklable copy of everything that changes during an episode."""
        try:
            return copy.deepcopy(self.state)
        except Exception as error:  # it may hold anything
            hint = "Keep in it what can be copied, or write _get_state and _set_state."
            raise TypeError(f"self.state cannot be copied: {error}. {hint}") from error

    def _set_state(self, state: Any) -> None:
        """Takes over what ``_get_state`` returned; the argument must stay usable."""
        self.state = copy.deepcopy(state)

    def reference_solution(self) -> list[str]:
        """Actions that lead from the present state to success, found with no model."""
        raise NotImplementedError(
            f"{self.env_id} has no reference solver: implement reference_solution()."
        )

    def expert(self) -> Callable[[], str]:
        """A policy to learn from: a function that gives the next action. It follows the episode.

        By default the reference solution, worked out anew at each step; an environment may override it
        with an expert that sees no more than the agent does. Without a way on it raises ``StopIteration``.
        """
        self.reference_solution()  # an environment without one says so before anything is played
        return lambda: next(iter(self.reference_solution()))

    def list_actions(self) -> Sequence[str] | None:
        """The actions that would be accepted now; ``None`` if they cannot be listed.

        The same as ``info["admissible_actions"]``, unless an environment leaves them out there, as it takes
        long to list them, and overrides this.
        """
        return self._last.admissible_actions

    def is_admissible(self, action: str) -> bool:
        """True if an action would be accepted now; if the list cannot name them all, override this."""
        listed = self.list_actions()
        return listed is None or action in listed

    def prompt_observation(self, observation: str) -> str:
        """The observation as a prompt shows it: without what other slots of the prompt already hold."""
        return observation

    def set_progress(self, fraction: float) -> None:
        """Sets how much of the training is done, 0 to 1, for environments that get harder (a curriculum);
        called before the episodes of each update, not by evaluations."""
        if not 0 <= fraction <= 1:
            raise ValueError(f"Progress is the share of training done, 0 to 1, got {fraction}.")
        self.progress = float(fraction)

    # --- Gymnasium -----------------------------------------------------------------------------

    @property
    def env_id(self) -> str:
        """The registered id, or the class name of an environment that was made by hand."""
        return self.spec.id if self.spec is not None else type(self).__name__

    @property
    def task(self) -> Task:
        """The task being played."""
        if self._task is None:
            raise RuntimeError("No task is being played: call reset() first.")
        return self._task

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Starts an episode.

        Args:
            seed: seeds the generator that chooses the task (when ``options`` do not) and that the
                environment samples from.
            options: ``{"task_id": str}`` or ``{"task_index": int}`` picks the task.
        """
        super().reset(seed=seed)
        self._task = self._choose(dict(options or {}))
        self._steps, self._over = 0, True  # until it has started
        self._named(validation.check_task, self._task, "the task of this episode")
        outcome = self._start(self._task)
        self._named(validation.check_first_outcome, outcome, f"reset of task {self._task.id!r}")
        self._last, self._over = outcome, False
        return self._last.observation, self._info(self._last)

    def _choose(self, options: dict[str, Any]) -> Task:
        # sampled whether it is needed or not: the generator's state must not depend on the options
        sampled = int(self.np_random.integers(len(self.tasks)))
        for name in options:
            require_choice("reset option", name, ("task_id", "task_index"))
        task_id, index = options.get("task_id"), options.get("task_index")
        if task_id is not None and index is not None:
            raise ValueError(
                "Give either 'task_id' or 'task_index' in the reset options, not both."
            )
        if not isinstance(index, Integral | None):
            raise ValueError(
                f"The reset option 'task_index' is {index!r}; expected a whole number."
            )
        if task_id is not None:
            return self.tasks[str(task_id)]  # type: ignore[no-any-return]
        return self.tasks[sampled if index is None else int(index)]  # type: ignore[no-any-return]

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Applies an action; see ``gymnasium.Env.step``."""
        if not isinstance(action, str):
            raise TypeError(f"An action is a str, got {type(action).__name__}: {action!r:.80}")
        if self._task is None or self._over:
            what = "No episode was started" if self._task is None else "The episode is over"
            raise RuntimeError(f"{what}: call reset() before the next step().")
        outcome = self._act(action)
        when = f"step {self._steps + 1} of task {self._task.id!r} (action {action!r:.40})"
        self._named(validation.check_outcome, outcome, when)
        self._last = outcome
        self._steps += 1
        limited = bool(outcome.truncated) or self._steps >= self.max_steps
        truncated = not outcome.terminated and limited
        self._over = outcome.terminated or truncated
        reward, terminated = float(outcome.reward), bool(outcome.terminated)
        return outcome.observation, reward, terminated, truncated, self._info(outcome)

    def _named(self, check: Callable[[Any, str], None], value: Any, what: str) -> None:
        """Runs a check; its error names this environment."""
        try:
            check(value, what)
        except EnvDefinitionError as error:
            error.owner = self.env_id
            raise

    def render(self) -> str | None:
        """The last observation (``render_mode="ansi"``)."""
        return self._last.observation if self.render_mode == "ansi" else None

    def _info(self, outcome: Outcome) -> dict[str, Any]:
        task, admissible = self.task, outcome.admissible_actions
        score = outcome.score if outcome.score is not None else float(outcome.success)
        return {
            **outcome.info,
            "task_id": task.id,
            "task_type": task.type,
            "instruction": task.instruction,
            "admissible_actions": None if admissible is None else list(admissible),
            "action_is_valid": bool(outcome.action_is_valid),
            "success": bool(outcome.success),
            "score": float(score),
        }

    # --- exact save and restore ----------------------------------------------------------------

    def save_state(self) -> dict[str, Any]:
        """The whole episode, exact and picklable. Made for branching rollouts and for resuming."""
        return {
            "env": type(self).__name__,
            "tasks": self.tasks.fingerprint,
            "task_id": self.task.id,
            "steps": self._steps,
            "over": self._over,
            "last": self._last,
            "rng": copy.deepcopy(self.np_random.bit_generator.state),
            "state": self._get_state(),
        }

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Goes back to a saved state, which may be from another instance over the same tasks."""
        if state["env"] != type(self).__name__ or state["tasks"] != self.tasks.fingerprint:
            raise ValueError(
                f"This state was saved by {state['env']} over tasks {state['tasks'][:12]}; "
                f"here is {type(self).__name__} over {self.tasks.fingerprint[:12]}."
            )
        self._task = self.tasks[state["task_id"]]
        self._steps, self._over, self._last = state["steps"], state["over"], state["last"]
        self.np_random.bit_generator.state = copy.deepcopy(state["rng"])
        self._set_state(state["state"])

    # pickle and copy.deepcopy: made with the same arguments, then restored, as an environment may hold
    # what cannot be copied (a game engine, a generator, a connection)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _restored, (*self._made_with, self._snapshot())

    def __deepcopy__(self, memo: Any) -> TextEnv:
        return _restored(*self._made_with, self._snapshot())

    def _snapshot(self) -> dict[str, Any]:
        return {
            "episode": None if self._task is None else self.save_state(),
            "kept": {n: copy.deepcopy(getattr(self, n)) for n in _KEPT if hasattr(self, n)},
            "spec": self.spec,
            "progress": self.progress,
        }


_KEPT = ("_np_random", "_np_random_seed", "observation_space", "action_space")
"""attributes that go along beside the episode: the generators, and those of the spaces"""


def _restored(
    make: Callable[..., TextEnv], args: Sequence[Any], kwargs: dict[str, Any], kept: dict[str, Any]
) -> TextEnv:
    env = make(*args, **kwargs)
    env.spec = kept["spec"]
    if kept["progress"] is not None:
        env.set_progress(kept["progress"])
    for name, value in kept["kept"].items():
        setattr(env, name, value)
    if kept["episode"] is not None:
        env.restore_state(kept["episode"])
    return env
