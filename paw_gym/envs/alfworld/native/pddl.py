"""Read the PDDL of one ALFWorld problem: typed objects, initial facts, goal.

Only the shape of a problem file is known here; what the predicates mean is in ``compiled.py``.
Identifiers come out in lower case, as PDDL is case-insensitive.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from paw_gym.envs.alfworld.errors import GameFileError

Expression = list["Expression | str"]
"""A parsed s-expression: nested lists of lower-case words."""

_COMMENT = re.compile(r";[^\n]*")
_TOKEN = re.compile(r"[()]|[^\s()]+")


@dataclass(frozen=True)
class Problem:
    """One parsed ``pddl_problem``."""

    objects: dict[str, str]
    """type of each declared object, by id"""
    facts: dict[str, list[tuple[str, ...]]]
    """arguments of the initial facts, by predicate, in file order; ``(= ...)`` left out"""
    goal: Expression
    """the expression inside ``(:goal ...)``"""


def parse_expression(text: str) -> Expression:
    """Parse one parenthesised expression; comments dropped, words in lower case."""
    root: Expression = []
    stack = [root]
    for token in _TOKEN.findall(_COMMENT.sub("", text).lower()):
        if token == "(":
            inner: Expression = []
            stack[-1].append(inner)
            stack.append(inner)
        elif token == ")":
            stack.pop()
            if not stack:
                raise GameFileError("the PDDL has a ')' that nothing opened")
        else:
            stack[-1].append(token)
    if len(stack) != 1:
        raise GameFileError(f"the PDDL ends with {len(stack) - 1} parentheses still open")
    if len(root) != 1 or isinstance(root[0], str):
        raise GameFileError("the PDDL is not one parenthesised expression")
    return root[0]


def parse_problem(text: str) -> Problem:
    """Parse a ``(define (problem ...) (:objects ...) (:init ...) (:goal ...))``."""
    sections: dict[str, Expression] = {}
    for part in parse_expression(text)[1:]:
        if isinstance(part, list) and part and isinstance(part[0], str):
            sections[part[0]] = part[1:]
    missing = [name for name in (":objects", ":init", ":goal") if name not in sections]
    if missing:
        raise GameFileError(f"the PDDL problem has no {' and no '.join(missing)} section")
    goal = sections[":goal"]
    if len(goal) != 1 or isinstance(goal[0], str):
        raise GameFileError("the PDDL goal is not one parenthesised expression")
    return Problem(_typed(sections[":objects"]), _facts(sections[":init"]), goal[0])


def _typed(words: Expression) -> dict[str, str]:
    types: dict[str, str] = {}
    pending: list[str] = []
    rest = iter(words)
    for word in rest:
        if not isinstance(word, str):
            raise GameFileError(f"unexpected parenthesis among the PDDL objects: {word}")
        if word == "-":
            type_name = next(rest, None)
            if not isinstance(type_name, str):
                raise GameFileError("the PDDL objects end in '-' without a type")
            types.update(dict.fromkeys(pending, type_name))
            pending = []
        else:
            pending.append(word)
    if pending:
        raise GameFileError(f"PDDL objects without a type: {', '.join(pending[:5])}")
    return types


def _facts(expressions: Expression) -> dict[str, list[tuple[str, ...]]]:
    facts: dict[str, list[tuple[str, ...]]] = {}
    for fact in expressions:
        if isinstance(fact, str) or not fact:
            raise GameFileError(f"not a fact in the PDDL :init section: {fact!r}")
        words = [word for word in fact if isinstance(word, str)]
        if words and words[0] == "=":
            continue
        if len(words) != len(fact):
            raise GameFileError(f"nested fact in the PDDL :init section: {fact!r}")
        facts.setdefault(words[0], []).append(tuple(words[1:]))
    return facts
