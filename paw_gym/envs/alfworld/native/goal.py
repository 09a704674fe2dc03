"""ALFWorld goals in structured form, recognised from their PDDL.

Each of the six ALFRED task types has one goal shape (``alfworld/gen/goal_library.py``). A shape
that is not one of them is refused, since the native engine evaluates goals by hand-written rules.
"""

from __future__ import annotations

from dataclasses import dataclass

from paw_gym.envs.alfworld.errors import UnsupportedGameError
from paw_gym.envs.alfworld.native.pddl import Expression, parse_expression

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
"""ALFRED's names, in the order in which ALFWorld numbers them from 1"""

_STATE_TASKS = {
    "pick_clean_then_place_in_recep": ("clean", "cleanable", "isclean"),
    "pick_heat_then_place_in_recep": ("hot", "heatable", "ishot"),
    "pick_cool_then_place_in_recep": ("cool", "coolable", "iscool"),
}
"""by task type: the wanted state, the affordance that its goal asks for, the predicate of the state"""


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
    state = _STATE_TASKS[task_type][0] if task_type in _STATE_TASKS else None
    count = 2 if task_type == "pick_two_obj_and_place" else 1
    return Goal(task_type, object_type, target_type, state, count)


def display_type(pddl_type: str) -> str:
    """ "soapbartype" -> "soapbar"."""
    return pddl_type.removesuffix("type")


def parse_goal(expression: Expression) -> Goal:
    """Recognises one of the six goal shapes."""
    shape = _shape(expression)
    for task_type, known in _SHAPES.items():
        if shape == known:
            atoms = _atoms(expression)
            objects = {atom[1]: display_type(atom[2]) for atom in atoms if atom[0] == "objecttype"}
            if task_type == "look_at_obj_in_light":
                return make_goal(task_type, objects["?o"], objects["?ot"])
            receptacles = {display_type(a[2]) for a in atoms if a[0] == "receptacletype"}
            if len(set(objects.values())) == len(receptacles) == 1:
                return make_goal(task_type, *set(objects.values()), *receptacles)
    raise UnsupportedGameError(f"The goal is not one of ALFWorld's six: {_text(expression)}.")


def _atoms(expression: Expression) -> list[tuple[str, ...]]:
    if all(isinstance(word, str) for word in expression):
        return [tuple(word for word in expression if isinstance(word, str))]
    parts = expression[2:] if expression[0] == "exists" else expression[1:]
    return [atom for part in parts if isinstance(part, list) for atom in _atoms(part)]


def _text(expression: Expression) -> str:
    return f"({' '.join(w if isinstance(w, str) else _text(w) for w in expression)})"


Shape = tuple[object, ...]


def _shape(expression: Expression) -> Shape:
    """The goal's structure, order of conjuncts and type constants aside.

    ``and`` becomes a sorted tuple, and a conjunction of one is the same as its only part.
    """
    head = expression[0] if expression else ""
    if head == "and":
        parts = [_shape(part) for part in expression[1:] if isinstance(part, list)]
        return parts[0] if len(parts) == 1 else ("and", *sorted(parts, key=repr))
    if head == "exists":
        if len(expression) != 3 or isinstance(expression[1], str) or isinstance(expression[2], str):
            return ("malformed",)
        variables = " ".join(sorted(str(word) for word in expression[1]))
        return ("exists", variables, _shape(expression[2]))
    words = [_shape(word) if isinstance(word, list) else word for word in expression]
    if head in ("objecttype", "receptacletype"):
        words[-1] = "TYPE"
    return tuple(words)


_STATE_GOAL = """(exists (?r - receptacle) (exists (?o - object) (and ({able} ?o) (objectType ?o T)
    (receptacleType ?r T) ({flag} ?o) (inReceptacle ?o ?r))))"""
_GOALS = {
    "pick_and_place_simple": """(exists (?r - receptacle) (exists (?o - object)
        (and (inReceptacle ?o ?r) (objectType ?o T) (receptacleType ?r T))))""",
    "look_at_obj_in_light": """(and
        (exists (?ot - object ?r - receptacle ?a - agent ?l - location)
            (and (objectType ?ot T) (toggleable ?ot) (isToggled ?ot)
                 (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r)))
        (exists (?o - object ?a - agent) (and (objectType ?o T) (holds ?a ?o))))""",
    "pick_two_obj_and_place": """(exists (?r - receptacle) (exists (?o1 - object)
        (and (objectType ?o1 T) (receptacleType ?r T) (inReceptacle ?o1 ?r)
             (exists (?o2 - object) (and (not (= ?o1 ?o2)) (objectType ?o2 T)
                                         (receptacleType ?r T) (inReceptacle ?o2 ?r))))))""",
    **{task: _STATE_GOAL.format(able=a, flag=f) for task, (_, a, f) in _STATE_TASKS.items()},
}
_SHAPES = {task_type: _shape(parse_expression(goal)) for task_type, goal in _GOALS.items()}
