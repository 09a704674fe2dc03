"""Compare the native ALFWorld engine with the original, step by step.

Used by the tests and by ``benchmarks/alfworld_parity.py``; also the tool for anyone who wants to know
whether the two agree on games of their own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paw_gym.envs.alfworld.compiled import CompiledGame, bits
from paw_gym.envs.alfworld.engine import Engine, NativeEngine

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


class ParityError(AssertionError):
    """The engines disagree; the message holds the commands that show it."""


def compare(native: Engine, original: Engine, walker: Walker) -> int:
    """Play both engines with the same commands from the start.

    Returns:
        Number of steps compared. At each: the observation, whether the game is won, and the admissible
        commands, all exactly.

    Raises:
        ParityError: at the first difference.
    """
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
    """Draws half of its commands uniformly and half by verb first, so that rare verbs get used; one
    command in twenty is junk."""
    rng = random.Random(seed)
    left = steps

    def walk(admissible: Sequence[str]) -> str | None:
        nonlocal left
        if left == 0:
            return None
        left -= 1
        draw = rng.random()
        if draw < 0.05:
            return rng.choice(_JUNK)
        if draw < 0.5:
            return rng.choice(admissible)
        verb = rng.choice(sorted({command.split()[0] for command in admissible}))
        return rng.choice([c for c in admissible if c.split()[0] == verb])

    return walk


def script_walker(commands: Sequence[str]) -> Walker:
    """Plays the given commands in order."""
    rest = iter(commands)
    return lambda admissible: next(rest, None)


def winning_commands(game: CompiledGame, inspect: bool = False) -> list[str]:
    """A plan that wins, made with full knowledge of the game.

    Args:
        inspect: look, check the inventory and examine the held object after every change.

    Raises:
        ValueError: when the simple plan (fetch, treat, place) does not win.
    """
    objects = [o for o in bits(game.goal_objects & game.pickupable) if _sources(game, o)]
    if game.goal.lamp_type is not None:
        plans = (_light_plan(game, o, r) for o in objects for r in _lamp_spots(game))
    else:
        plans = (_place_plan(game, objects, target) for target in game.goal_receptacles)
    for plan in plans:
        engine = NativeEngine(game)
        commands = _performed(engine, plan, inspect)
        if engine.won:
            return commands
    raise ValueError(f"no simple plan wins: {game.task}")


Step = tuple[str, int, int]
"""(verb, object, receptacle)"""


def _sources(game: CompiledGame, o: int) -> list[int]:
    return [
        r
        for r, content in enumerate(game.contents)
        if content >> o & 1 and game.receptacle_location[r] is not None
    ]


def _lamp_spots(game: CompiledGame) -> list[int]:
    return [r for r, content in enumerate(game.contents) if content & game.goal_lamps]


def _light_plan(game: CompiledGame, o: int, spot: int) -> list[Step]:
    lamp = bits(game.contents[spot] & game.goal_lamps)[0]
    return [("take", o, _sources(game, o)[0]), ("use", lamp, spot)]


def _place_plan(game: CompiledGame, objects: Sequence[int], target: int) -> list[Step]:
    treat = {"clean": game.cleaners, "hot": game.heaters, "cool": game.coolers}
    verbs = {"clean": "clean", "hot": "heat", "cool": "cool"}
    plan: list[Step] = []
    state = game.goal.state
    missing = game.goal.count - (
        0 if state else (game.contents[target] & game.goal_objects).bit_count()
    )
    usable = [
        o
        for o in objects
        if game.accepts[target] >> o & 1 and (state or not game.contents[target] >> o & 1)
    ]
    for o in usable[:missing]:
        plan.append(("take", o, _sources(game, o)[0]))
        if state:
            plan.append((verbs[state], o, (bits(treat[state]) or (target,))[0]))
        plan.append(("put", o, target))
    return plan


def _performed(engine: NativeEngine, plan: Sequence[Step], inspect: bool) -> list[str]:
    done: list[str] = []

    def do(command: str) -> None:
        engine.step(command)
        done.append(command)

    for verb, o, r in plan:
        game = engine.game
        thing, place = game.objects[o], game.receptacles[r]
        if game.receptacle_location[r] != engine.location:
            do(f"go to {place}")
        if f"open {place}" in engine.admissible_commands():
            do(f"open {place}")
        do(
            {
                "take": f"take {thing} from {place}",
                "put": game.grammar.put_command.format(o=thing, r=place),
                "use": f"use {thing}",
            }.get(verb, f"{verb} {thing} with {place}")
        )
        if inspect and not engine.won:
            for command in ("look", "inventory", f"examine {thing}", f"examine {place}"):
                do(command)
    return done


def with_newer_grammar(data: Mapping[str, Any], domain: str, grammar: str) -> dict[str, Any]:
    """The same game with another domain and grammar, its own task text put in.

    Args:
        data: JSON content of a game.
        domain: text of ``alfred.pddl``.
        grammar: text of ``alfred.twl2``, with "UNKNOWN GOAL" where the task goes.
    """
    task = CompiledGame.from_json(data).task.removesuffix(".")
    return {**data, "pddl_domain": domain, "grammar": grammar.replace("UNKNOWN GOAL", task)}
