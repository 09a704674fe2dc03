"""The experts: one that knows everything, one that knows what the text says.

`PrivilegedExpert` is the reference solver: it plans on the engine's state and wins every solvable game.
`SweepExpert` makes the demonstrations: it plays by the text alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paw_gym.envs.alfworld.experts.sweep import SweepExpert
from paw_gym.envs.alfworld.native.compiled import CompiledGame
from paw_gym.envs.alfworld.native.engine import NativeEngine
from paw_gym.envs.alfworld.procedural.plan import NoPlanError, plan
from paw_gym.envs.alfworld.procedural.worlds import world_of_engine

__all__ = ["NoPlanError", "PrivilegedExpert", "SweepExpert", "solve"]


def solve(game: NativeEngine | CompiledGame | Mapping[str, Any]) -> list[str]:
    """A short sequence of commands to the goal, from full knowledge.

    Args:
        game: an engine in whatever state, which stays as it is; or a game, from its start: compiled, or
            the JSON content of a `game.tw-pddl`.

    Returns:
        commands; empty when the goal is reached already.

    Raises:
        NoPlanError: when the goal is out of reach from here.
    """
    if isinstance(game, Mapping):
        game = CompiledGame.from_json(game)
    engine = NativeEngine(game) if isinstance(game, CompiledGame) else game
    return plan(world_of_engine(engine), engine.game.goal)


class PrivilegedExpert:
    """Says the next command towards the goal, from any state of a game."""

    def next_command(self, engine: NativeEngine) -> str:
        """The first command of a short way to the goal; `look` when it is reached.

        Raises:
            NoPlanError: when the goal is out of reach from here.
        """
        return next(iter(solve(engine)), "look")
