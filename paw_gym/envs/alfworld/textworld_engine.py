"""The original ALFWorld engine (TextWorld and Fast Downward), and a comparison of ours with it.

Needs the extra ``alfworld``. About 25 steps/s and 170 MB a process; it is here as the reference.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from paw_gym.envs.alfworld.native.compiled import CompiledGame
from paw_gym.envs.alfworld.native.engine import Engine, NativeEngine
from paw_gym.envs.alfworld.native.problem import UnsolvableGameError
from paw_gym.envs.alfworld.native.rules import recognise_grammar
from paw_gym.envs.alfworld.procedural.plan import solve
from paw_gym.internals.constructors import need

T = TypeVar("T")


class CommandHistory(NamedTuple):
    """A state of the original engine: the commands that led to it."""

    commands: tuple[str, ...]


class TextWorldEngine:
    """One game, the JSON content of a ``game.tw-pddl``, in the original engine."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        # TextWorld runs what stands in a grammar's braces as Python
        recognise_grammar(data["grammar"])
        for package in ("textworld", "fast_downward", "alfworld"):
            need(package, "alfworld", 'engine="textworld"')
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld.envs.pddl.pddl import PddlEnv

        infos = textworld.EnvInfos(won=True, admissible_commands=True)
        self._env: Any = AlfredDemangler(PddlEnv(infos))
        try:
            _with_own_arguments(lambda: self._env.load(dict(data)))
        except KeyError as error:
            # Fast Downward's translation of a goal that cannot be reached lacks its variable.
            raise UnsolvableGameError(
                f"the original engine cannot load this game: {error}"
            ) from error
        self._commands: list[str] = []
        self._admissible: list[str] = []
        self.won = False

    def reset(self) -> str:
        self._commands = []
        return self._take_over(_with_own_arguments(self._env.reset))

    def step(self, command: str) -> tuple[str, bool]:
        self._commands.append(command)
        state, _, _ = self._env.step(command)
        return self._take_over(state), self.won

    def admissible_commands(self) -> list[str]:
        return list(self._admissible)

    def save_state(self) -> CommandHistory:
        return CommandHistory(tuple(self._commands))

    def restore_state(self, state: object) -> None:
        """Replay the saved commands from the start (the original has no snapshots)."""
        if not isinstance(state, CommandHistory):
            raise TypeError(
                f"expected a CommandHistory of save_state(), got {type(state).__name__}"
            )
        self.reset()
        for command in state.commands:
            self.step(command)

    def _take_over(self, state: Any) -> str:
        self.won = bool(state["won"])
        self._admissible = list(state["admissible_commands"])
        return str(state.feedback)


def _with_own_arguments(call: Callable[[], T]) -> T:
    """Keeps ``sys.argv``, which ``fast_downward.pddl2sas`` replaces."""
    argv = sys.argv
    try:
        return call()
    finally:
        sys.argv = argv


# --- ours against it ---------------------------------------------------------------------------------

Walker = Callable[[Sequence[str]], str | None]
"""chooses the next command from the admissible ones; None ends the walk"""

_JUNK = (
    *("", "   ", "LOOK", " look ", "look\n"),
    *("go to", "take all", "help", "examine loc 1", "use x"),
)
_INSPECTING = frozenset({"look", "inventory", "examine"})


class ParityError(AssertionError):
    """The engines disagree; the message holds the commands that show it."""


def compare(native: Engine, original: Engine, walker: Walker) -> int:
    """Play both engines with the same commands from the start; returns how many."""
    commands: list[str] = []
    answers: list[object] = [native.reset(), original.reset()]
    while True:
        admissible = original.admissible_commands()
        ours = (answers[0], native.won, native.admissible_commands())
        theirs = (answers[1], original.won, admissible)
        if ours != theirs:
            raise ParityError(f"after {commands}:\n native:   {ours}\n original: {theirs}")
        command = walker(admissible)
        if command is None:
            return len(commands)
        commands.append(command)
        answers = [native.step(command), original.step(command)]


def random_walker(steps: int, seed: int) -> Walker:
    """Samples half of its commands uniformly and half by verb first, so that rare verbs get used; one
    command in twenty is junk."""
    rng, rest = random.Random(seed), iter(range(steps))

    def walk(admissible: Sequence[str]) -> str | None:
        if next(rest, None) is None:
            return None
        share = rng.random()
        if share < 0.05:
            return rng.choice(_JUNK)
        if share < 0.5:
            return rng.choice(admissible)
        verb = rng.choice(sorted({command.split()[0] for command in admissible}))
        return rng.choice([c for c in admissible if c.split()[0] == verb])

    return walk


def script_walker(commands: Sequence[str]) -> Walker:
    """Plays the given commands in order."""
    rest = iter(commands)
    return lambda admissible: next(rest, None)


def winning_commands(game: CompiledGame) -> list[str]:
    """A walk to the goal that looks, checks the inventory and examines all it can at every stop."""
    engine = NativeEngine(game)
    walk: list[str] = []
    for command in solve(engine):
        walk += [c for c in engine.admissible_commands() if c.split()[0] in _INSPECTING]
        engine.step(command)
        walk.append(command)
    return walk


def with_newer_grammar(data: Mapping[str, Any], domain: str, grammar: str) -> dict[str, Any]:
    """The same game with another domain and grammar, its own task text put in."""
    task = CompiledGame.from_json(data).task.removesuffix(".")
    return {**data, "pddl_domain": domain, "grammar": grammar.replace("UNKNOWN GOAL", task)}
