"""An expert that acts on the text alone, in a way that a policy with a short memory can copy.

It looks through the room in one fixed order, likeliest receptacles first. Whatever it uses was said in
the current observation, in the admissible commands or in the two observations before, except that the
thing in hand is already clean, hot or cool.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Sequence
from functools import cache
from typing import NamedTuple

from paw_gym.envs.alfworld.native.problem import TASK_TYPES, Goal, make_goal
from paw_gym.envs.alfworld.procedural.placement import SCENERY, accepting_types, attraction
from paw_gym.envs.alfworld.procedural.plan import PUT_COMMANDS, TOOL_VERBS
from paw_gym.envs.alfworld.procedural.rooms import facts

OPENING_COST = 2.0
"""looking into a closed receptacle takes two commands, into any other just one"""
WINDOW = 2
"""observations before the current one that the expert may use"""

_TASK = re.compile(r"Your task is to: (.*?)\.?\s*$", re.MULTILINE)
_LISTED = re.compile(r"\ban? ([a-z]+ \d+)")
_NAME = r"([a-z]+ \d+)"
_PLACE = re.compile(
    rf"(?:On the {_NAME}, you see|The {_NAME} is (?:open|closed)|You (?:open|close) the {_NAME}\.)"
)
_EFFECTS = {
    "taken": re.compile(rf"You pick up the {_NAME} from the {_NAME}\."),
    "put": re.compile(rf"You (?:put|move) the {_NAME} (?:in/on|to) the {_NAME}\."),
    "treated": re.compile(rf"You (?:clean|heat|cool) the {_NAME} using the {_NAME}\."),
}
"""by the effect of an event, the answers that show it"""


def parse_task(text: str) -> Goal:
    """The goal that a task sentence states, alone or at the end of an opening text."""
    found = _TASK.search(text)
    sentence = (found.group(1) if found else text).strip().removesuffix(".")
    for task_type, pattern in _patterns():
        match = pattern.fullmatch(sentence)
        if match:
            words = match.groupdict()
            target = words.get("recep") or words["toggle"]
            return make_goal(task_type, words["obj"], target)
    raise ValueError(
        f"not one of ALFWorld's task sentences: {sentence!r}; expected one like 'put a hot apple in "
        "fridge' (see the templates in paw_gym/envs/alfworld/assets/facts.json)"
    )


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    words = {slot: rf"(?P<{slot}>\w+)" for slot in ("obj", "recep", "toggle")}
    return tuple(
        (task_type, re.compile(template.format(**words)))
        for task_type in TASK_TYPES
        for template in facts().templates[task_type]
    )


class Event(NamedTuple):
    """The effect of a step; names as displayed, None if it shows nothing."""

    place: str | None = None
    """the receptacle that it is about"""
    effect: str = ""
    """"taken", "put" or "treated" (cleaned, heated or cooled)"""
    thing: str | None = None


def read_event(observation: str) -> Event:
    """The effect of a step, read from its observation."""
    for effect, answer in _EFFECTS.items():
        if match := answer.search(observation):
            return Event(match[2], effect, match[1])
    match = _PLACE.search(observation)
    return Event(match[match.lastindex or 0]) if match else Event()


def type_of(name: str) -> str:
    """ "cabinet 3" -> "cabinet"."""
    return name.split(" ", 1)[0]


def number_of(name: str) -> int:
    """ "cabinet 3" -> 3."""
    return int(name.split(" ", 1)[1])


class SweepExpert:
    """Plays any ALFWorld game from its texts and admissible commands, in both grammars; after somebody else's
    actions, too, if it has read all observations since `reset`."""

    def reset(self, opening_text: str) -> None:
        """Starts an episode; a task that matches no template is a ``ValueError``."""
        self.goal: Goal = parse_task(opening_text)
        seen = re.search(r"you see (.*)", opening_text)
        self._receptacles = sorted(_LISTED.findall(seen[1] if seen else ""), key=number_of)
        self._order = [p for p in self._by_promise(self.goal.object_type) if not self._barred(p)]
        self._lamp_order = self._by_promise(self.goal.lamp_type or "")
        self._events: deque[Event] = deque(maxlen=WINDOW + 1)
        self._place: str | None = None
        self._treated = False
        """true if the thing in hand is clean, hot or cool, as the goal asks"""
        self._begun: str | None = None
        """the target receptacle in which the first of two things lies"""

    def act(self, observation: str, admissible: Collection[str]) -> str:
        """The next command, one of ``admissible``, after the observation of the last one."""
        self._read(observation)
        options = frozenset(admissible)
        examined = {option[8:] for option in options if option.startswith("examine ")}
        # of all things, only that in hand can be examined
        held = next(iter(examined.difference(self._receptacles)), None)
        if held is None:
            choice = self._search(options)
        elif (kind := type_of(held)) != self.goal.object_type:
            places = [p for p in self._by_promise(kind) if likelihood(kind, type_of(p)) > 0]
            choice = self._put(held, places, options)
        elif self.goal.lamp_type is not None:
            choice = self._light(options)
        elif self.goal.state is not None and not self._treated:
            choice = self._treat(held, options)
        else:
            targets = self._of_types({self.goal.receptacle_type or ""})
            targets.sort(key=lambda place: place != self._begun)
            choice = self._put(held, targets, options)
        return choice or "look"

    def _read(self, observation: str) -> None:
        event = read_event(observation)
        self._events.append(event)
        if event.effect in ("taken", "treated"):
            self._treated = event.effect == "treated"
        elif event.thing and type_of(event.thing) == self.goal.object_type:
            self._begun = event.place
        self._place = event.place or self._place

    def _search(self, options: Collection[str]) -> str | None:
        """Take a wanted thing that is here, else look into the next receptacle."""
        takes = [
            (number_of(thing), option)
            for option in options
            if option.startswith(f"take {self.goal.object_type} ")
            for thing, place in [option.removeprefix("take ").split(" from ")]
            if not self._barred(place)
        ]
        if takes:
            return min(takes)[1]
        if self._place in self._order and f"open {self._place}" in options:
            return f"open {self._place}"
        return self._onward(self._order, self._search_start(), options)

    def _barred(self, place: str) -> bool:
        """True for a place not to look in: things in the target are done, unless they need treatment."""
        return self.goal.state is None and type_of(place) == self.goal.receptacle_type

    def _search_start(self) -> int:
        """Index of the next one to look into: after one of two things was put down, where it was, if the
        last two observations say so (another may lie there), else the beginning."""
        if self._events[-1].effect == "put":
            sources = [event.place for event in self._events if event.effect == "taken"]
            return max((self._order.index(p) for p in sources if p in self._order), default=0)
        return self._order.index(self._place) + 1 if self._place in self._order else 0

    def _light(self, options: Collection[str]) -> str | None:
        """Use a lamp that is here, else go where lamps are likely."""
        lamp = self.goal.lamp_type or ""
        here = [option for option in options if option.startswith(f"use {lamp} ")]
        if here:
            return min(here)
        start = 0
        if self._place in self._lamp_order and self._events[-1].effect != "taken":
            start = self._lamp_order.index(self._place) + 1
        return self._onward(self._lamp_order, start, options, look_inside=False)

    def _treat(self, held: str, options: Collection[str]) -> str | None:
        verb, types = TOOL_VERBS[self.goal.state or ""]
        here = [option for option in options if option.startswith(f"{verb} {held} with ")]
        if here:
            return min(here)
        return self._onward(self._of_types(types), 0, options, look_inside=False)

    def _put(self, held: str, places: Sequence[str], options: Collection[str]) -> str | None:
        """Put the thing into the first of these places, opened if need be."""
        for place in places:
            puts = {form.format(thing=held, place=place) for form in PUT_COMMANDS.values()}
            steps = [*puts, f"open {place}", f"go to {place}"]
            for step in steps:
                if step in options:
                    return step
        return None

    def _onward(
        self, order: Sequence[str], start: int, options: Collection[str], look_inside: bool = True
    ) -> str | None:
        """Go to the next receptacle in the order, round and round. One that is used from here is no go-to
        target: it is opened if closed, else already seen."""
        for place in [*order[start:], *order[:start]]:
            if f"go to {place}" in options:
                return f"go to {place}"
            if look_inside and f"open {place}" in options:
                return f"open {place}"
        return None

    def _by_promise(self, kind: str) -> list[str]:
        """All receptacles, first those in which a thing of this type is most likely to lie."""
        return sorted(
            self._receptacles, key=lambda place: (-likelihood(kind, type_of(place)), type_of(place))
        )

    def _of_types(self, types: Collection[str]) -> list[str]:
        return [place for place in self._receptacles if type_of(place) in types]


@cache
def likelihood(kind: str, place: str) -> float:
    """The share of such things that lie in a receptacle type in official games, divided by the commands that
    a look costs; types as displayed."""
    known_kinds, known_places = _spellings()
    thing, receptacle = known_kinds.get(kind, kind), known_places.get(place, place)
    if receptacle not in accepting_types(thing):
        return 0.0
    cost = OPENING_COST if receptacle in facts().openable else 1.0
    return attraction(thing, receptacle) / cost


@cache
def _spellings() -> tuple[dict[str, str], dict[str, str]]:
    """PDDL spelling of object and receptacle types, by the displayed one."""
    contain = facts().can_contain
    kinds = frozenset().union(*contain.values(), SCENERY)
    return {kind.lower(): kind for kind in kinds}, {place.lower(): place for place in contain}
