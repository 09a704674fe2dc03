"""The reference solver: it plans on the engine's state and wins every solvable game."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paw_gym.envs.alfworld.native.compiled import CompiledGame
from paw_gym.envs.alfworld.native.engine import NativeEngine
from paw_gym.envs.alfworld.procedural.plan import NoPlanError, plan
from paw_gym.envs.alfworld.procedural.worlds import world_of_engine

__all__ = ["NoPlanError", "solve"]


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
