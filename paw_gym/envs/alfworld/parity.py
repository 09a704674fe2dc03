"""Compare the native ALFWorld engine with the original, step by step.

Used by the tests and by ``benchmarks/alfworld_parity.py``; also the tool for anyone who wants to know
whether the two agree on games of their own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paw_gym.envs.alfworld.native.compiled import CompiledGame
from paw_gym.envs.alfworld.native.engine import Engine, NativeEngine
from paw_gym.envs.alfworld.procedural.plan import solve

Walker = Callable[[Sequence[str]], str | None]
"""chooses the next command from the admissible ones; None ends the walk"""

_JUNK = (
    "",
    "   ",
    "LOOK",
    " look ",
    "look\n",
    "go to",
    "take all",
    "help",
    "examine loc 1",
    "use x",
)
_INSPECTING = frozenset({"look", "inventory", "examine"})


class ParityError(AssertionError):
    """The engines disagree; the message holds the commands that show it."""


def compare(native: Engine, original: Engine, walker: Walker) -> int:
    """Play both engines with the same commands from the start."""
    commands: list[str] = []
    _same("opening text", native.reset(), original.reset(), commands)
    while True:
        admissible = original.admissible_commands()
        _same("admissible commands", native.admissible_commands(), admissible, commands)
        _same("won", native.won, original.won, commands)
        command = walker(admissible)
        if command is None:
            return len(commands)
        commands.append(command)
        _same("observation and end", native.step(command), original.step(command), commands)


def _same(what: str, native: object, original: object, commands: Sequence[str]) -> None:
    if native != original:
        raise ParityError(
            f"{what} after {list(commands)}:\n native:   {native!r}\n original: {original!r}"
        )


def random_walker(steps: int, seed: int) -> Walker:
    """Samples half of its commands uniformly and half by verb first, so that rare verbs get used; one
    command in twenty is junk."""
    rng = random.Random(seed)
    left = steps

    def walk(admissible: Sequence[str]) -> str | None:
        nonlocal left
        if left == 0:
            return None
        left -= 1
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
        for seen in (c for c in engine.admissible_commands() if c.split()[0] in _INSPECTING):
            walk.append(seen)
        engine.step(command)
        walk.append(command)
    return walk


def with_newer_grammar(data: Mapping[str, Any], domain: str, grammar: str) -> dict[str, Any]:
    """The same game with another domain and grammar, its own task text put in."""
    task = CompiledGame.from_json(data).task.removesuffix(".")
    return {**data, "pddl_domain": domain, "grammar": grammar.replace("UNKNOWN GOAL", task)}
