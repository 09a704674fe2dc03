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
"""ALFRED's names, in the order in which ALFWorld numbers them from 1."""

_STATE_TASKS = {
    "clean": ("pick_clean_then_place_in_recep", "cleanable", "isclean"),
    "hot": ("pick_heat_then_place_in_recep", "heatable", "ishot"),
    "cool": ("pick_cool_then_place_in_recep", "coolable", "iscool"),
}


@dataclass(frozen=True)
class Goal:
    """The condition under which the game is won; types are display types such as "soapbar"."""

    task_type: str
    """one of `TASK_TYPES`"""
    object_type: str
    """the object to place, or to hold under the light"""
    receptacle_type: str | None = None
    """where `count` objects must lie, all in the same receptacle; None for the light task"""
    state: str | None = None
    """what the placed object must be: "clean", "hot", "cool", or None"""
    count: int = 1
    """distinct objects needed in one receptacle: 2 for pick_two_obj_and_place"""
    lamp_type: str | None = None
    """the lamp that must be on, at the agent's location; only for the light task"""


def display_type(pddl_type: str) -> str:
    """ "soapbartype" -> "soapbar"."""
    return pddl_type.removesuffix("type")


def parse_goal(expression: Expression) -> Goal:
    """Recognise one of the six goal shapes.

    Raises:
        UnsupportedGameError: when the goal has any other shape.
    """
    # The atoms say which task it would be; the shape says whether it is exactly that. Atoms alone would
    # take a goal with a condition more, or with "or" in the place of "and", for one of the six.
    atoms = _atoms(expression)
    goal = _light_goal(atoms) or _place_goal(atoms)
    if goal is None or _shape(expression) not in _SHAPES[goal.task_type]:
        raise UnsupportedGameError(f"The goal is not one of ALFWorld's six: {_text(expression)}.")
    return goal


def _place_goal(atoms: list[tuple[str, ...]]) -> Goal | None:
    by_name = _by_name(atoms)
    objects = {args[-1] for args in by_name.get("objecttype", ())}
    receptacles = {args[-1] for args in by_name.get("receptacletype", ())}
    if len(objects) != 1 or len(receptacles) != 1:
        return None
    object_type, receptacle_type = display_type(objects.pop()), display_type(receptacles.pop())
    for state, (task_type, _, flag) in _STATE_TASKS.items():
        if flag in by_name:
            return Goal(task_type, object_type, receptacle_type, state)
    if "=" in by_name:
        return Goal("pick_two_obj_and_place", object_type, receptacle_type, count=2)
    return Goal("pick_and_place_simple", object_type, receptacle_type)


def _light_goal(atoms: list[tuple[str, ...]]) -> Goal | None:
    # a variable's type decides its part: the toggled one is the lamp, the held one the object
    by_name = _by_name(atoms)
    types = {args[0]: args[-1] for args in by_name.get("objecttype", ())}
    lamps = [args[0] for args in by_name.get("istoggled", ())]
    held = [args[-1] for args in by_name.get("holds", ())]
    if len(lamps) != 1 or len(held) != 1 or {lamps[0], held[0]} != set(types):
        return None
    lamp_type, object_type = display_type(types[lamps[0]]), display_type(types[held[0]])
    return Goal("look_at_obj_in_light", object_type, lamp_type=lamp_type)


def _by_name(atoms: list[tuple[str, ...]]) -> dict[str, list[tuple[str, ...]]]:
    by_name: dict[str, list[tuple[str, ...]]] = {}
    for atom in atoms:
        by_name.setdefault(atom[0], []).append(atom[1:])
    return by_name


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
    head = expression[0]
    if head == "and":
        parts = sorted(
            (_shape(part) for part in expression[1:] if isinstance(part, list)), key=repr
        )
        return parts[0] if len(parts) == 1 else ("and", *parts)
    if head == "exists":
        variables, body = expression[1:]
        if not isinstance(variables, list) or not isinstance(body, list):
            return ("malformed",)
        return ("exists", " ".join(sorted(str(word) for word in variables)), _shape(body))
    words = [_shape(word) if isinstance(word, list) else word for word in expression]
    if head in ("objecttype", "receptacletype"):
        words[-1] = "TYPE"
    return tuple(words)


def _shapes(*sources: str) -> frozenset[Shape]:
    return frozenset(_shape(parse_expression(source)) for source in sources)


_STATE_GOAL = """(exists (?r - receptacle) (exists (?o - object) (and ({able} ?o) (objectType ?o T)
    (receptacleType ?r T) ({flag} ?o) (inReceptacle ?o ?r))))"""

_SHAPES = {
    "pick_and_place_simple": _shapes(
        """(exists (?r - receptacle) (exists (?o - object)
            (and (inReceptacle ?o ?r) (objectType ?o T) (receptacleType ?r T))))"""
    ),
    "look_at_obj_in_light": _shapes(
        """(and (exists (?ot - object ?r - receptacle ?a - agent ?l - location)
                (and (objectType ?ot T) (toggleable ?ot) (isToggled ?ot)
                     (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r)))
            (exists (?o - object ?a - agent) (and (objectType ?o T) (holds ?a ?o))))"""
    ),
    "pick_two_obj_and_place": _shapes(
        """(exists (?r - receptacle) (exists (?o1 - object)
            (and (objectType ?o1 T) (receptacleType ?r T) (inReceptacle ?o1 ?r)
                 (exists (?o2 - object) (and (not (= ?o1 ?o2)) (objectType ?o2 T)
                                             (receptacleType ?r T) (inReceptacle ?o2 ?r))))))"""
    ),
    **{
        task_type: _shapes(_STATE_GOAL.format(able=able, flag=flag))
        for task_type, able, flag in _STATE_TASKS.values()
    },
}
