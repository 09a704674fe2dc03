"""The smallest way to write an environment: a generator function over a list of tasks."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

import numpy as np
from gymnasium.envs.registration import ENV_ID_RE, registry

from paw_gym.core import Outcome, Task, TaskSet, TextEnv
from paw_gym.internals import validation
from paw_gym.internals.constructors import parameters_in, takes_any
from paw_gym.internals.naming import did_you_mean, require_choice
from paw_gym.internals.validation import EnvDefinitionError, check_max_steps, expect
from paw_gym.replayed import ReplayedEnv

Play = Callable[[Task, np.random.Generator], Generator[Outcome, str, None]]
Solve = Callable[[Task, np.random.Generator], Iterable[str]]
_TRAIN = "train"
"""split that training samples from, and that an environment is made with by default"""


class GeneratorEnv(ReplayedEnv):
    """A text environment whose episodes are generators: they yield outcomes and are sent actions.

    Args:
        play: ``play(task, rng)``, the generator function.
        split: name of the split that the tasks form, for messages.
        solve: ``solve(task, rng)``, a solution from the start of a task as a list of actions. ``rng``
            samples the same as the ``rng`` of ``play``. ``None``: no reference solver.
    """

    seeds = 2**63

    def __init__(
        self,
        play: Play,
        tasks: Iterable[Task],
        max_steps: int = 50,
        solve: Solve | None = None,
        render_mode: str | None = None,
        split: str = "",
    ) -> None:
        super().__init__(TaskSet.from_tasks(tasks, split), max_steps, render_mode)
        self._play = play
        self._solve = None if solve is None else _checked_solver(solve)
        self._episode: Generator[Outcome, str, None]

    @property
    def env_id(self) -> str:
        """The registered id, or the function's name."""
        return self.spec.id if self.spec is not None else _name(self._play)

    def _open(self, task: Task, seed: int) -> Outcome:
        self._episode = self._play(task, np.random.default_rng(seed))
        return self._send(None, "a first Outcome: yield one to start the episode.")

    def _apply(self, action: str) -> Outcome:
        missing = "a last Outcome: yield one with terminated=True to end the episode."
        return self._send(action, missing)

    def _send(self, action: str | None, missing: str) -> Outcome:
        try:
            return self._episode.send(action)  # type: ignore[arg-type]
        except StopIteration:
            raise EnvDefinitionError(
                f"{_name(self._play)} returned without {missing}", "yield", self.env_id
            ) from None

    def reference_solution(self) -> list[str]:
        """The solver's remaining actions; after other actions, those that still lead to success."""
        if self._solve is None:
            raise NotImplementedError(
                f"{self.env_id} has no reference solver: register it with solve=..., a function "
                "solve(task, rng) that returns the actions of a solution."
            )
        answer = self._solve(self.task, np.random.default_rng(self.state["seed"]))
        self._named(validation.check_actions, answer, f"solve for task {self.task.id!r}")
        return self.remaining_of(list(answer))


def _name(function: Any) -> str:
    return getattr(function, "__name__", repr(function))


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    return True


def _checked_solver(solve: Any) -> Solve:
    hint = "a function solve(task, rng) that returns a list of actions"
    expect(callable(solve) and _takes(solve, 2), "solve is", solve, hint, "solve")
    return solve  # type: ignore[no-any-return]


def _checked_splits(tasks: Any) -> dict[str, list[Task]]:
    """The tasks of each split; a plain list is the split ``train``."""
    named = tasks if isinstance(tasks, Mapping) else {_TRAIN: tasks}
    splits: dict[str, list[Task]] = {}
    home: dict[str, str] = {}
    for name, given in named.items():
        where = f"tasks[{name!r}]" if named is tasks else "tasks"
        splits[name] = validation.listed_tasks(given, where)
        if not splits[name]:
            raise EnvDefinitionError(f"{where} is empty; expected at least one Task.", "tasks")
        for task in splits[name]:
            if home.setdefault(task.id, name) != name:
                raise EnvDefinitionError(
                    f"task {task.id!r} is in the splits {home[task.id]!r} and {name!r}; expected each "
                    "task in one.",
                    "tasks",
                )
    if _TRAIN not in splits:
        raise EnvDefinitionError(
            f"tasks has the splits {', '.join(map(repr, splits)) or '(none)'}; expected 'train', which "
            "training samples from, and held-out ones.",
            "tasks",
        )
    return splits


class GeneratorEnvFactory:
    """Makes ``GeneratorEnv`` objects for ``gymnasium.make``; pickles by its id."""

    metadata = GeneratorEnv.metadata
    agent = GeneratorEnv.agent
    small_template = GeneratorEnv.small_template

    def __init__(
        self,
        id: str,
        play: Callable[..., Any],
        tasks: Iterable[Any] | Mapping[str, Iterable[Any]] | None,
        max_steps: int = 50,
        solve: Callable[..., Any] | None = None,
    ) -> None:
        if not inspect.isgeneratorfunction(play):
            raise EnvDefinitionError(
                f"{play!r} is neither a class nor a generator function. "
                "Register a TextEnv subclass, or a function that yields Outcomes.",
                "entry_point",
            )
        if not _takes(play, 2):
            raise EnvDefinitionError(
                f"{_name(play)}{inspect.signature(play)} does not take (task, rng); "
                f"expected def {_name(play)}(task, rng).",
                "entry_point",
            )
        if tasks is None:
            raise EnvDefinitionError("a generator function needs tasks=[Task(...), ...].", "tasks")
        self.solve = None if solve is None else _checked_solver(solve)
        check_max_steps(max_steps)
        self.id = id
        self.play = play
        self.splits = _checked_splits(tasks)
        self.max_steps = max_steps
        # the arguments that gymnasium.make may be given, for callers that look them up
        known = {p.name: p for p in inspect.signature(GeneratorEnv).parameters.values()}
        taken = [known["max_steps"].replace(default=max_steps), known["render_mode"]]
        if isinstance(tasks, Mapping):
            taken.append(known["split"].replace(default=_TRAIN))
        self.__signature__ = inspect.Signature(taken)

    @property
    def held_out_splits(self) -> tuple[str, str]:
        """See ``TextEnv``: the split after ``train``, and the last one. If there are only two, checkpoints
        are chosen on ``train``: the other one is for results alone."""
        names = [_TRAIN, *(name for name in self.splits if name != _TRAIN)]
        return (names[1] if len(names) > 2 else _TRAIN), names[-1]

    def __call__(self, **given: Any) -> GeneratorEnv:
        self.__signature__.bind(**given)
        kwargs = {k: value for k, value in given.items() if value is not None}
        split = kwargs.get("split", _TRAIN)
        require_choice(f"split of {self.id}", split, self.splits)
        settings: dict[str, Any] = {"max_steps": self.max_steps, "solve": self.solve, **kwargs}
        env = GeneratorEnv(self.play, self.splits[split], **settings)
        env.held_out_splits = self.held_out_splits  # type: ignore[misc]
        env._made_with = (self, (), kwargs)
        return env

    def __deepcopy__(self, memo: Any) -> GeneratorEnvFactory:
        return self  # it never changes; Gymnasium copies the specification at every make

    def __reduce__(self) -> Any:
        return registered_factory, (self.id, self.play.__module__)


def registered_factory(id: str, module: str) -> GeneratorEnvFactory:
    """The factory of a registered id; the module that registers it is imported if it was not before."""
    if id not in registry and module != "__main__":
        importlib.import_module(module)
    factory: Any = registry[id].entry_point if id in registry else None
    if not isinstance(factory, GeneratorEnvFactory):
        raise ValueError(
            f"No generator function is registered as {id!r} in this process: import the module that "
            f"registers it ({module}) before the environment is unpickled."
        )
    return factory


def checked_entry_point(
    id: Any, entry_point: Any, options: Mapping[str, Any], kwargs: Mapping[str, Any]
) -> tuple[str | Callable[..., Any], dict[str, Any]]:
    """The callable by which Gymnasium makes the environment, and its arguments."""
    try:
        match = ENV_ID_RE.fullmatch(id) if isinstance(id, str) else None
        holds = match is not None and not (match["version"] is None and "-v" in id)
        expect(holds, "the id is", id, "namespace/Name-vN, such as 'me/Maze-v0'", "id")
        if isinstance(entry_point, str | type):
            return entry_point, _checked_class(entry_point, options, kwargs)
        _check_names(kwargs, [*parameters_in(GeneratorEnv)][1:], "register_text_env")
        return GeneratorEnvFactory(id, entry_point, **{"tasks": None, **options}), dict(kwargs)
    except EnvDefinitionError as error:
        error.owner = error.owner or str(id)
        raise


def _checked_class(
    entry_point: str | type, options: Mapping[str, Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a class, or of the class that a string names."""
    for name in ("tasks", "solve"):
        if name in options:
            raise EnvDefinitionError(
                f"{name} is an option of generator functions; a class gives its tasks to "
                "super().__init__, and has a method reference_solution.",
                name,
            )
    if "max_steps" in options:
        check_max_steps(options["max_steps"])
    arguments = {**kwargs, **options}
    if isinstance(entry_point, str):
        module, sign, name = entry_point.partition(":")
        if not (sign and all(map(str.isidentifier, module.split("."))) and name.isidentifier()):
            raise EnvDefinitionError(
                f"the entry point is {entry_point!r}; expected 'module:Class', such as "
                "'me.maze:MazeEnv'.",
                "entry_point",
            )
        return arguments
    cls = entry_point.__name__
    if not issubclass(entry_point, TextEnv):
        raise EnvDefinitionError(
            f"{cls} is no subclass of TextEnv; expected one, or a generator function.",
            "entry_point",
        )
    lacking = sorted(getattr(entry_point, "__abstractmethods__", ()))
    if lacking:
        raise EnvDefinitionError(
            f"{cls} lacks {' and '.join(lacking)}; expected a class that implements both _start and "
            "_act.",
            "entry_point",
        )
    parameters = parameters_in(entry_point)
    if not takes_any(parameters):
        _check_names(arguments, parameters, f"{cls}.__init__")
    return arguments


def _check_names(given: Iterable[str], accepted: Iterable[str], whose: str) -> None:
    known = list(dict.fromkeys([*accepted, "description", "replace"]))
    for name in given:
        if name not in known:
            raise EnvDefinitionError(
                f"{whose} has no option {name!r}. {did_you_mean(name, known)}", name
            )
