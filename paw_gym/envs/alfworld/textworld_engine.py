"""The original ALFWorld engine (TextWorld and Fast Downward) behind the same interface as ours.

Needs the extra ``alfworld``. About 25 steps/s and 170 MB a process; it is here as the reference.

TextWorld evaluates the braces of a game's own grammar as Python. A game in which they hold more than names,
texts, ``+`` and ``or``, which is all that ALFWorld's grammars use, is refused before its first text is made.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from paw_gym.envs.alfworld.errors import GameFileError, UnsolvableGameError
from paw_gym.envs.alfworld.games import load_game

INSTALL_HINT = 'pip install ".[alfworld]" in your clone of PaW-Gym'


class CommandHistory(NamedTuple):
    """A state of the original engine: the commands that led to it."""

    commands: tuple[str, ...]


class TextWorldEngine:
    """One game in the original engine.

    Args:
        path_or_json: a ``game.tw-pddl`` file, or its JSON content.

    Raises:
        ImportError: when textworld, fast-downward-textworld or alfworld is not installed.
        UnsolvableGameError: when the game has no solution; the original cannot load such games.
        GameFileError: when its grammar holds code.
    """

    won: bool

    def __init__(self, path_or_json: str | os.PathLike[str] | Mapping[str, Any]) -> None:
        data = path_or_json if isinstance(path_or_json, Mapping) else load_game(path_or_json)
        self._env = _original_environment()
        argv = sys.argv
        try:
            self._env.load(dict(data))
        except KeyError as error:
            # Fast Downward's translation of a goal that cannot be reached lacks its variable.
            raise UnsolvableGameError(
                f"the original engine cannot load this game: {error}"
            ) from error
        finally:
            sys.argv = argv  # fast_downward.pddl2sas replaces it
        _refuse_code(self._env.unwrapped._logic)
        self._commands: list[str] = []
        self._admissible: list[str] = []
        self.won = False

    def reset(self) -> str:
        self._commands = []
        argv = sys.argv
        try:
            state = self._env.reset()
        finally:
            sys.argv = argv
        self._take_over(state)
        return str(state.feedback)

    def step(self, command: str) -> tuple[str, bool]:
        self._commands.append(command)
        state, _, _ = self._env.step(command)
        self._take_over(state)
        return str(state.feedback), self.won

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

    def _take_over(self, state: Any) -> None:
        self.won = bool(state["won"])
        self._admissible = list(state["admissible_commands"])


def _original_environment() -> Any:
    try:
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld.envs.pddl.pddl import PddlEnv
    except ImportError as error:
        raise ImportError(
            f'engine="textworld" needs the original ALFWorld packages ({error}): {INSTALL_HINT}'
        ) from error
    infos = textworld.EnvInfos(won=True, admissible_commands=True)
    return AlfredDemangler(PddlEnv(infos))


def _refuse_code(logic: Any) -> None:
    """Raises ``GameFileError`` for an expression in a parsed grammar that is more than names and texts."""
    for expression in _expressions(logic):
        if not _is_plain(expression):
            raise GameFileError(
                f"The game's grammar holds the expression {expression!r:.60}, which TextWorld would run as "
                "Python; expected names such as o.name. The file is not played."
            )


def _expressions(logic: Any) -> Iterator[str]:
    """Everything that TextWorld would evaluate: in rules, and in the templates of actions."""
    from textworld.envs.pddl.textgen import ContextSensitiveGrammar

    templates = [{"rhs": t} for a in logic.actions.values() for t in (a.template, a.feedback_rule)]
    actions = ContextSensitiveGrammar.parse(json.dumps({"templates": templates}))
    for grammar in (logic.grammar, actions):
        symbols = [s for rules in grammar._rules.values() for rule in rules for s in rule.rhs]
        while symbols:
            symbol = symbols.pop()
            inside = getattr(symbol, "expression", None) or symbol.symbol
            if not isinstance(inside, str):
                symbols.append(inside)
            elif hasattr(symbol, "expression"):
                yield inside


def _is_plain(expression: str) -> bool:
    """True if an expression is made of names, dotted names and texts, joined by ``+`` or ``or``."""
    try:
        nodes = list(ast.walk(ast.parse(expression.strip(), mode="eval")))
    except (SyntaxError, ValueError, RecursionError):
        return False
    names = (node.id if isinstance(node, ast.Name) else node.attr for node in nodes
             if isinstance(node, ast.Name | ast.Attribute))  # fmt: skip
    joined = (ast.Expression, ast.BinOp, ast.Add, ast.BoolOp, ast.Or, ast.Load)
    return not any(name.startswith("_") for name in names) and all(
        isinstance(node, (*joined, ast.Name, ast.Attribute))
        or (isinstance(node, ast.Constant) and isinstance(node.value, str))
        for node in nodes
    )
