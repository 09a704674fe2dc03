"""A game's PDDL problem: typed objects, initial facts, and one of ALFWorld's six goals.

Identifiers come out in lower case, as PDDL is case-insensitive. A goal of another shape is refused, since
the native engine evaluates goals by hand-written rules.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from paw_gym.envs.alfworld.procedural.rooms import facts


class GameFileError(ValueError):
    """A game file is corrupt: truncated JSON, missing keys, or PDDL that does not parse."""


class UnsolvableGameError(GameFileError):
    """The game's own file says ``solvable: false``; no engine can play it."""


class UnsupportedGameError(GameFileError):
    """A game's domain, grammar or goal is none of ALFWorld's."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} It is not a game in one of ALFWorld's published forms, and the engine "
            "refuses to guess."
        )


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
        if word == "-":
            types.update(dict.fromkeys(pending, str(next(rest, ""))))
            pending = []
        else:
            pending.append(str(word))
    if pending:
        raise GameFileError(f"PDDL objects without a type: {', '.join(pending[:5])}")
    return types


def _facts(expressions: Expression) -> dict[str, list[tuple[str, ...]]]:
    found: dict[str, list[tuple[str, ...]]] = {}
    for fact in expressions:
        if isinstance(fact, str) or not fact:
            raise GameFileError(f"not a fact in the PDDL :init section: {fact!r}")
        words = [word for word in fact if isinstance(word, str)]
        if words and words[0] == "=":
            continue
        if len(words) != len(fact):
            raise GameFileError(f"nested fact in the PDDL :init section: {fact!r}")
        found.setdefault(words[0], []).append(tuple(words[1:]))
    return found


# --- goals -------------------------------------------------------------------------------------------

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
"""ALFRED's names, in the order in which ALFWorld numbers them from 1"""

TOOLS = {
    "pick_clean_then_place_in_recep": ("SinkBasin", "cleanable", "clean"),
    "pick_heat_then_place_in_recep": ("Microwave", "heatable", "hot"),
    "pick_cool_then_place_in_recep": ("Fridge", "coolable", "cool"),
}
"""receptacle type that does it, affordance the object needs, state that results"""


@dataclass(frozen=True)
class Goal:
    """The condition under which the game is won; types are display types such as "soapbar"."""

    task_type: str
    """one of `TASK_TYPES`"""
    object_type: str
    """the object to place, or to hold under the light"""
    receptacle_type: str | None = None
    """the receptacle type in which `count` objects must lie, all in one; None for the light task"""
    state: str | None = None
    """the state that the placed object must be in: "clean", "hot", "cool", or None"""
    count: int = 1
    """distinct objects needed in one receptacle: 2 for pick_two_obj_and_place"""
    lamp_type: str | None = None
    """the lamp that must be on, at the agent's location; only for the light task"""


def make_goal(task_type: str, object_type: str, target_type: str) -> Goal:
    """A goal from its task type and the types that its sentence names, as displayed."""
    if task_type == "look_at_obj_in_light":
        return Goal(task_type, object_type, lamp_type=target_type)
    state = TOOLS[task_type][2] if task_type in TOOLS else None
    count = 2 if task_type == "pick_two_obj_and_place" else 1
    return Goal(task_type, object_type, target_type, state, count)


def display_type(pddl_type: str) -> str:
    """ "soapbartype" -> "soapbar"."""
    return pddl_type.removesuffix("type")


def parse_goal(expression: Expression) -> Goal:
    """Recognises one of the six goal shapes."""
    form = _form(expression)
    task_type = _task_types().get(form)
    if task_type is not None:
        atoms = _atoms(expression)
        objects = {atom[1]: display_type(atom[2]) for atom in atoms if atom[0] == "objecttype"}
        if task_type == "look_at_obj_in_light":
            return make_goal(task_type, objects["?o"], objects["?ot"])
        receptacles = {display_type(a[2]) for a in atoms if a[0] == "receptacletype"}
        if len(set(objects.values())) == len(receptacles) == 1:
            return make_goal(task_type, *set(objects.values()), *receptacles)
    raise UnsupportedGameError(f"The goal is not one of ALFWorld's six: {form}.")


def _atoms(expression: Expression) -> list[tuple[str, ...]]:
    if all(isinstance(word, str) for word in expression):
        return [tuple(word for word in expression if isinstance(word, str))]
    parts = expression[2:] if expression[0] == "exists" else expression[1:]
    return [atom for part in parts if isinstance(part, list) for atom in _atoms(part)]


def _form(expression: Expression) -> str:
    """The text of a goal in one form: conjuncts and variables sorted, types left out."""
    head = expression[0] if expression else ""
    parts = [_form(part) if isinstance(part, list) else part for part in expression[1:]]
    if head == "and":
        return parts[0] if len(parts) == 1 else f"(and {' '.join(sorted(parts))})"
    if head == "exists":
        parts[:1] = [" ".join(sorted(map(str, words))) for words in expression[1:2]]
    if head in ("objecttype", "receptacletype"):
        parts[-1:] = ["TYPE"]
    return f"({' '.join([str(head), *parts])})"


@cache
def _task_types() -> dict[str, str]:
    """The task type of each of the six forms, which are those of ``alfworld/gen/goal_library.py``."""
    goals = {task_type: parse_expression(pddl) for task_type, pddl in facts().goal_pddl.items()}
    return {_form(goal[1]): task_type for task_type, goal in goals.items()}  # type: ignore[arg-type]
