"""The smallest way to write an environment: a generator function over a list of tasks."""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

import numpy as np
from gymnasium.envs.registration import ENV_ID_RE

from paw_gym.core import Outcome, Task, TaskSet, TextEnv
from paw_gym.internals import validation
from paw_gym.internals.constructors import parameters_in, takes_any
from paw_gym.internals.naming import did_you_mean
from paw_gym.internals.validation import EnvDefinitionError, check_max_steps, found

Play = Callable[[Task, np.random.Generator], Generator[Outcome, str, None]]
Solve = Callable[[Task, np.random.Generator], Iterable[str]]
_TRAIN = "train"
"""split that training samples from, and that an environment is made with by default"""


class GeneratorEnv(TextEnv):
    """A text environment whose episodes are generators: they yield outcomes and are sent actions.

    A generator cannot be copied, so a state is the actions so far and the generator's seed, and
    restoring plays them again.

    Args:
        play: ``play(task, rng)``, the generator function.
        split: name of the split that the tasks form, for messages.
        solve: ``solve(task, rng)``, a solution from the start of a task as a list of actions. ``rng``
            samples the same as the ``rng`` of ``play``. ``None``: no reference solver.
    """

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
        self._solve = None if solve is None else checked_solver(solve)
        self._episode: Generator[Outcome, str, None] | None = None

    @property
    def env_id(self) -> str:
        """The registered id, or the function's name."""
        return self.spec.id if self.spec is not None else _name(self._play)

    def _start(self, task: Task) -> Outcome:
        seed = int(self.np_random.integers(2**63))
        self.state = {"seed": seed, "actions": []}
        return self._open(task, seed)

    def _open(self, task: Task, seed: int) -> Outcome:
        self._episode = self._play(task, np.random.default_rng(seed))
        return self._next(None)

    def _act(self, action: str) -> Outcome:
        self.state["actions"].append(action)
        return self._next(action)

    def _next(self, action: str | None) -> Outcome:
        if self._episode is None:
            raise RuntimeError("No episode was started: call reset() first.")
        try:
            return next(self._episode) if action is None else self._episode.send(action)
        except StopIteration:
            missing = (
                "a first Outcome: yield one to start the episode."
                if action is None
                else "a last Outcome: yield one with terminated=True to end the episode."
            )
            raise EnvDefinitionError(
                f"{_name(self._play)} returned without {missing}", "yield", self.env_id
            ) from None

    def _set_state(self, state: Any) -> None:
        self.state = copy.deepcopy(state)
        self._open(self.task, state["seed"])
        for action in state["actions"]:
            self._next(action)

    def reference_solution(self) -> list[str]:
        """The solver's remaining actions; after other actions, those that still lead to success."""
        if self._solve is None:
            raise NotImplementedError(
                f"{self.env_id} has no reference solver: register it with solve=..., a function "
                "solve(task, rng) that returns the actions of a solution."
            )
        answer = self._solve(self.task, np.random.default_rng(self.state["seed"]))
        self._named(validation.check_actions, answer, f"solve for task {self.task.id!r}")
        plan, done = list(answer), self.state["actions"]
        if plan[: len(done)] == done:
            return plan[len(done) :]
        endings = (plan[kept:] for kept in range(_matched(plan, done), -1, -1))
        return next((ending for ending in endings if self._leads_to_success(ending)), [])

    def _leads_to_success(self, actions: list[str]) -> bool:
        """True if the episode would end in success, tried on a second generator."""
        episode = self._play(self.task, np.random.default_rng(self.state["seed"]))
        outcome = next(episode, None)
        for action in [*self.state["actions"], *actions]:
            if outcome is None or outcome.terminated or outcome.truncated:
                return False
            try:
                outcome = episode.send(action)
            except StopIteration:
                return False
        return outcome is not None and bool(outcome.terminated and outcome.success)


def _matched(plan: list[str], done: list[str]) -> int:
    """How many actions of the plan were taken in order, with or without others in between."""
    count = 0
    for action in done:
        if count < len(plan) and action == plan[count]:
            count += 1
    return count


def _name(function: Any) -> str:
    return getattr(function, "__name__", repr(function))


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    return True


def checked_solver(solve: Any) -> Solve:
    """The solver as a function of (task, rng), even if it takes only the task."""
    if callable(solve):
        if _takes(solve, 2):
            return solve  # type: ignore[no-any-return]
        if _takes(solve, 1):
            return lambda task, rng: solve(task)
    raise EnvDefinitionError(
        f"solve is {validation.found(solve)}; expected a function solve(task, rng) that returns a "
        "list of actions.",
        "solve",
    )


def _checked_splits(tasks: Any) -> dict[str, list[Task]]:
    """The tasks of each split; a plain list is the split ``train``."""
    named = {f"tasks[{name!r}]": name for name in tasks} if isinstance(tasks, Mapping) else {}
    splits = {
        name: validation.listed_tasks(tasks[name] if named else tasks, where)
        for where, name in (named or {"tasks": _TRAIN}).items()
    }
    if _TRAIN not in splits:
        raise EnvDefinitionError(
            f"tasks has the splits {', '.join(map(repr, splits))}; expected 'train', which training "
            "samples from, and held-out ones.",
            "tasks",
        )
    home: dict[str, str] = {}
    for where, (name, listed) in zip(named or ["tasks"], splits.items(), strict=True):
        if not listed:
            raise EnvDefinitionError(f"{where} is empty; expected at least one Task.", "tasks")
        for task in listed:
            if home.setdefault(task.id, name) != name:
                raise EnvDefinitionError(
                    f"task {task.id!r} is in the splits {home[task.id]!r} and {name!r}; expected each "
                    "task in one.",
                    "tasks",
                )
    return splits


class GeneratorEnvFactory:
    """Makes ``GeneratorEnv`` objects for ``gymnasium.make``; pickles by its id.

    Args:
        play: the generator function; its attribute ``solve`` is the solver if none is given.
        tasks: the tasks, or ``{split: tasks}`` with a split ``train``.
    """

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
        if solve is not None:
            checked_solver(solve)
        validation.check_max_steps(max_steps)
        self.id = id
        self.play = play
        self.splits = _checked_splits(tasks)
        self.max_steps = max_steps
        self._solve = solve
        # the arguments that gymnasium.make may be given, for callers that look them up
        known = {p.name: p for p in inspect.signature(GeneratorEnv).parameters.values()}
        taken = [known["max_steps"].replace(default=max_steps), known["render_mode"]]
        if isinstance(tasks, Mapping):
            taken.append(known["split"].replace(default=_TRAIN))
        self.__signature__ = inspect.Signature(taken)

    @property
    def held_out_splits(self) -> tuple[str, str]:
        """See ``TextEnv``: the split after ``train``, and the last one.

        If there are only two, checkpoints are chosen on ``train``: the other one is for results alone.
        """
        names = [_TRAIN, *(name for name in self.splits if name != _TRAIN)]
        return (names[1] if len(names) > 2 else _TRAIN), names[-1]

    def __call__(self, **given: Any) -> GeneratorEnv:
        self.__signature__.bind(**given)
        kwargs = {k: value for k, value in given.items() if value is not None}
        split = kwargs.get("split", _TRAIN)
        if split not in self.splits:
            raise ValueError(
                f"{self.id} has no split {split!r}. {did_you_mean(split, self.splits)}"
            )
        # a solver may also be given as the function's attribute, which is set after registration
        solve = self._solve or getattr(self.play, "solve", None)
        settings: dict[str, Any] = {"max_steps": self.max_steps, "solve": solve, **kwargs}
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
    from gymnasium.envs.registration import registry

    if id not in registry and module != "__main__":
        importlib.import_module(module)
    factory: Any = registry[id].entry_point if id in registry else None
    if not isinstance(factory, GeneratorEnvFactory):
        raise ValueError(
            f"No generator function is registered as {id!r} in this process: import the module that "
            f"registers it ({module}) before the environment is unpickled."
        )
    return factory


_OWN_OPTIONS = ("tasks", "max_steps", "solve", "description", "replace")
"""options of ``register_text_env`` itself"""


def checked_entry_point(
    id: Any, entry_point: Any, options: Mapping[str, Any], kwargs: Mapping[str, Any]
) -> tuple[str | Callable[..., Any], dict[str, Any]]:
    """The callable by which Gymnasium makes the environment, and its arguments."""
    try:
        _check_id(id)
        if isinstance(entry_point, str):
            return _check_string(entry_point), _of_class(options, kwargs)
        if isinstance(entry_point, type):
            return _checked_class(entry_point, options, kwargs)
        return _factory(id, entry_point, options, kwargs)
    except EnvDefinitionError as error:
        error.owner = error.owner or str(id)
        raise


def _check_id(id: Any) -> None:
    match = ENV_ID_RE.fullmatch(id) if isinstance(id, str) else None
    if match is None or (match["version"] is None and "-v" in id):
        raise EnvDefinitionError(
            f"the id is {found(id)}; expected namespace/Name-vN, such as 'me/Maze-v0'.", "id"
        )


def _check_string(entry_point: str) -> str:
    module, sign, name = entry_point.partition(":")
    if not (sign and all(map(str.isidentifier, module.split("."))) and name.isidentifier()):
        raise EnvDefinitionError(
            f"the entry point is {entry_point!r}; expected 'module:Class', such as 'me.maze:MazeEnv'.",
            "entry_point",
        )
    return entry_point


def _of_class(options: Mapping[str, Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    for name in ("tasks", "solve"):
        if name in options:
            raise EnvDefinitionError(
                f"{name} is an option of generator functions; expected none for a class, which has "
                + (
                    "its tasks from super().__init__."
                    if name == "tasks"
                    else "a method reference_solution."
                ),
                name,
            )
    budget = {name: options[name] for name in ("max_steps",) if name in options}
    if budget:
        check_max_steps(budget["max_steps"])
    return {**kwargs, **budget}


def _checked_class(
    cls: type, options: Mapping[str, Any], kwargs: Mapping[str, Any]
) -> tuple[type, dict[str, Any]]:
    if not issubclass(cls, TextEnv):
        raise EnvDefinitionError(
            f"{cls.__name__} is no subclass of TextEnv; expected one, or a generator function.",
            "entry_point",
        )
    lacking = sorted(getattr(cls, "__abstractmethods__", ()))
    if lacking:
        raise EnvDefinitionError(
            f"{cls.__name__} lacks {' and '.join(lacking)}; expected a class that implements both "
            "_start and _act.",
            "entry_point",
        )
    arguments = _of_class(options, kwargs)
    parameters = parameters_in(cls)
    if not takes_any(parameters):
        _check_names(arguments, parameters, f"{cls.__name__}.__init__", ("description", "replace"))
    return cls, arguments


def _factory(
    id: str, function: Any, options: Mapping[str, Any], kwargs: Mapping[str, Any]
) -> tuple[GeneratorEnvFactory, dict[str, Any]]:
    if isinstance(function, TextEnv):
        raise EnvDefinitionError(
            f"the entry point is {found(function)}; expected the class itself, not an environment "
            "that was made of it.",
            "entry_point",
        )
    accepted = [name for name in parameters_in(GeneratorEnv) if name != "play"]
    _check_names(kwargs, accepted, "register_text_env", _OWN_OPTIONS)
    given = {"tasks": None, **options}
    return GeneratorEnvFactory(id, function, **given), dict(kwargs)


def _check_names(
    given: Iterable[str], accepted: Iterable[str], whose: str, more: Iterable[str]
) -> None:
    known = list(dict.fromkeys([*accepted, *more]))
    for name in given:
        if name not in known:
            raise EnvDefinitionError(
                f"{whose} has no option {name!r}. {did_you_mean(name, known)}", name
            )
