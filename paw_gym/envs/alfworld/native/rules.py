"""The domain and the grammar of a game file, recognised by content.

ALFWorld's text and rules live inside every game file. Two domains and two grammars are in use:
those of the published games (``json_2.1.1``) and those of the ``alfworld`` 0.4 wheel
(``alfred.pddl``, ``alfred.twl2``). Anything else is refused: near-miss text would be silently wrong text.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from paw_gym.envs.alfworld.native.problem import GameFileError, UnsupportedGameError

_COMMENT = re.compile(r";[^\n]*")
_JSON_STRING = r'((?:[^"\\]|\\.)*)'
_TASK = re.compile(rf'("rhs": "Your task is to: ){_JSON_STRING}"')
_HELP = re.compile(rf'"help\.feedback": \[\s*\{{\s*"rhs": "{_JSON_STRING}"')
_GRAMMAR_SYNTAX = re.compile(r'[;|"<>\[\]#{}\\]')
"""characters that the original's text generator treats as syntax inside a template"""


@dataclass(frozen=True)
class Domain:
    """The differences between the known PDDL domains."""

    cleaning_types: frozenset[str]
    """receptacle types that clean, in PDDL spelling"""
    has_help: bool
    """true if the action ``help`` exists"""


@dataclass(frozen=True)
class Grammar:
    """The differences between the known grammars."""

    version: str
    """"put" or "move", after the command that puts an object down"""
    put_command: str
    put_feedback: str
    arrive_names_location: bool
    """"You arrive at loc 7." (True) or "You arrive at shelf 2." (False)"""


_DOMAINS = {
    "2bb2c5c7591ba4452d38c74721bd09a10c9d72c9ec3f5b2fb7cd8f9b57ae6a64": Domain(
        frozenset({"sinktype", "sinkbasintype"}), has_help=False
    ),
    "da18d44ab1bcf831f61e90b88a99ad5766d8bbb562b6f87839b4b6ace4f796fe": Domain(
        frozenset({"sinkbasintype"}), has_help=True
    ),
}
_GRAMMARS = {
    "37715147a9b916b8dfdefb88fba286238899ca2daedd621e54d92c1331d7c1e5": Grammar(
        "put", "put {o} in/on {r}", "You put the {o} in/on the {r}.", arrive_names_location=True
    ),
    "21df8efa6d1537796ad3f430af9b838714200daf2a24c78967e9c87b697e271e": Grammar(
        "move", "move {o} to {r}", "You move the {o} to the {r}.", arrive_names_location=False
    ),
}


def recognise_domain(pddl_domain: str) -> Domain:
    """Find the known domain; comments, letter case and spacing do not matter."""
    code = " ".join(_COMMENT.sub("", pddl_domain).lower().split())
    domain = _DOMAINS.get(_digest(code))
    if domain is None:
        raise UnsupportedGameError("The game's PDDL domain is none of the known ALFWorld domains.")
    return domain


def recognise_grammar(grammar: str) -> tuple[Grammar, str]:
    """Find the known grammar, the task text embedded in it aside."""
    task = task_text(grammar)
    if task is None:
        raise GameFileError('the grammar holds no text "Your task is to: ..."')
    lines = _TASK.sub(r'\1"', grammar, count=1).replace("\r\n", "\n").strip().split("\n")
    known = _GRAMMARS.get(_digest("\n".join(line.rstrip() for line in lines)))
    if known is None:
        raise UnsupportedGameError("The game's grammar is none of the known ALFWorld grammars.")
    if _GRAMMAR_SYNTAX.search(task):
        raise UnsupportedGameError(f"The task text holds characters of grammar syntax: {task!r}.")
    return known, task


def task_text(grammar: str) -> str | None:
    """The text after "Your task is to: " in any grammar; None if there is none."""
    match = _TASK.search(grammar)
    return str(json.loads(f'"{match.group(2)}"')) if match else None


def help_text(grammar: str) -> str | None:
    """The answer to ``help``, or None if the grammar has none. As in the original's parser, white space is
    dropped before the first word and kept at the end."""
    match = _HELP.search(grammar)
    return json.loads(f'"{match.group(1)}"').lstrip() if match else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
