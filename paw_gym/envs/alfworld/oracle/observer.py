"""An ideal observer of procedural ALFWorld: it knows the generator and the history, and nothing else.

For every next observation it tells with which probability each of its words follows from what was seen
before. What a world model can learn at best is this distribution; its entropy is the floor of its loss.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paw_gym.envs.alfworld.native.compiled import CompiledGame, bits
from paw_gym.envs.alfworld.native.engine import NativeEngine
from paw_gym.envs.alfworld.native.menu import Action, Verb
from paw_gym.envs.alfworld.oracle.contents import Array, Contents, Known, listing_order
from paw_gym.envs.alfworld.oracle.locations import Locations
from paw_gym.envs.alfworld.oracle.receptacles import Openness, Rooms
from paw_gym.envs.alfworld.procedural.generate import game_json, sample_scene, shown_types
from paw_gym.envs.alfworld.procedural.placement import real_receptacles, types_of_kind
from paw_gym.envs.alfworld.procedural.rooms import facts, rooms
from paw_gym.envs.alfworld.procedural.scene import Scene

if TYPE_CHECKING:
    from paw_gym.envs.alfworld.env import ProceduralGame

_NAME = re.compile(r"[a-z]+ \d+")
_PLACED = re.compile(r"a ([a-z]+) (\d+)")
_ROUNDING = 1e-9
_NO_CHANCES = frozenset({Verb.INVENTORY, Verb.HELP, Verb.EXAMINE_OBJECT})
"""actions whose answer follows from what was seen"""
_SAMPLED = frozenset({"carried out", "location", "facing"})
"""chances that depend on who shares a place with whom, which is summed over samples"""


@dataclass(frozen=True, slots=True)
class Chance:
    """A stretch of an observation that did not follow from the history, with its probability."""

    start: int
    end: int
    """[start, end) in characters"""
    p: float
    """given the history, the action, and the text before ``start``"""
    what: str
    """"carried out", "location", "facing", "closed", "empty", "object", "number", "more" or "last\""""

    @property
    def estimated(self) -> bool:
        """True if ``p`` is an estimate over samples, which is 0 where none is like the game, or exact."""
        return self.what in _SAMPLED


class Observer:
    """Plays one procedural game of a modified room and says what could be known of each answer.

    What is approximated: that an action on a receptacle which was never visited is refused is taken for the
    chance that it stands elsewhere; what ``look`` shows to share a place is one stretch; and who shares
    a place with whom is summed over samples (``Locations``).

    Args:
        scene: of the game; the observer uses what the opening text tells of it, and the engine the rest.
        unseen: whether it is of the split ``valid_unseen``, which has rooms of its own.
        grammar: "put" or "move".
        asked: number of receptacles that the generator was asked for.
        samples: of ``Locations``.

    Attributes:
        engine: the game as it stands.
    """

    def __init__(
        self,
        scene: Scene,
        unseen: bool,
        grammar: str = "put",
        asked: int | None = None,
        samples: int = 4000,
    ) -> None:
        game = CompiledGame.from_json(game_json(scene, grammar))
        self.engine = NativeEngine(game)
        names, types = scene.names(), {r.id: r.type for r in scene.receptacles}
        type_of = {names[entity]: kind for entity, kind in types.items()}
        self._types = [type_of[name] for name in game.receptacles]
        self._index = {name: i for i, name in enumerate(game.receptacles)}
        self._rooms = Rooms(self._types, scene.goal, unseen, asked)
        self._laws = {
            kind: Contents.of(self._types, shown_types(types_of_kind(kind)), scene.goal)
            for kind in self._rooms.by_kind(Openness.unseen())
        }
        self._places = Locations(self._types, scene.goal, samples)
        self._openness = Openness.unseen()
        self._known = Known()
        self._numbers: dict[int, int] = {}
        """of the places of receptacles that were visited"""
        self._apart: set[tuple[int, int]] = set()
        """receptacles on which an action was refused, with the number of the place"""
        self._faced: set[int] = set()
        """numbers of the places in which the agent has looked around"""
        self._looked: set[int] = set()
        """receptacles that are known to open, or not to"""

    @classmethod
    def of_game(cls, game: ProceduralGame, samples: int = 4000) -> Observer:
        """Of a task's data (``Task.data``) in ``paw_gym/ALFWorld-v0``.

        Where splits are mixed, the observer is told that the room is a modified one.
        """
        arguments = getattr(game, "arguments", None)
        if arguments is None:
            raise ValueError(f"The observer plays procedural games only, got {game!r}.")
        split, task_type, seed, grammar, variation, asked = arguments
        scene = sample_scene(split, task_type, seed, variation, asked)
        if scene.receptacles == real_receptacles(rooms()[scene.room]):
            raise ValueError(
                f"Game {seed} of {task_type} is in a room as it is, and the observer knows the law of "
                "modified rooms only (variation='modified')."
            )
        return cls(scene, split == "valid_unseen", grammar, asked, samples)

    def step(self, command: str) -> tuple[str, list[Chance]]:
        """Takes an action.

        Args:
            command: what the agent does; what is not admissible is refused, as in the environment.

        Returns:
            The observation, and the stretches of it that are not certain, in order.
        """
        engine = self.engine
        action, here = engine.action_of(command), self._here()
        before = list(engine.contents)
        answer, _ = engine.step(command)
        return answer, [
            chance
            for chance in self._chances(command, action, here, answer, before)
            if chance.p < 1 - _ROUNDING
        ]

    # --- what each kind of answer leaves open ------------------------------------------------------

    def _chances(
        self, command: str, action: Action | None, here: int | None, answer: str, before: list[int]
    ) -> Iterator[Chance]:
        first = answer.index(" ") if " " in answer else len(answer)
        if action is None:
            yield Chance(0, first, self._refused(command, here), "carried out")
            return
        if action.verb in _NO_CHANCES:
            return
        if action.verb is Verb.LOOK:
            yield from self._facing(here, answer)
            return
        r = action.receptacle
        if r < 0 or (r in self._numbers and action.verb not in (Verb.GO, Verb.OPEN)):
            if r >= 0 and action.verb is Verb.EXAMINE_RECEPTACLE:
                yield from self._view(r, answer, 0, before)
            return
        if action.verb is Verb.GO:
            yield from self._arrival(r, here, answer, first)
        elif r not in self._numbers and here is not None:
            # it is at hand though it was never gone to: it shares this place
            yield Chance(0, first, self._places.shares(self._numbers, r, here), "carried out")
            self._numbers[r] = self._numbers[here]
        if action.verb in (Verb.GO, Verb.OPEN, Verb.EXAMINE_RECEPTACLE):
            yield from self._view(r, answer, len(action.text), before)

    def _refused(self, command: str, here: int | None) -> float:
        """Probability that a command is refused which was; and what that tells."""
        strange = next(
            (
                self._index[name]
                for name in _NAME.findall(command)
                if name in self._index and self._index[name] not in self._numbers
            ),
            None,
        )
        if here is None or strange is None:
            return 1.0
        number = self._numbers[here]
        if (strange, number) in self._apart:
            return 1.0
        shared = self._places.shares(self._numbers, strange, here)
        if command.strip() == f"go to {self.engine.game.receptacles[strange]}":
            self._numbers[strange] = number  # one cannot go to where one stands
            return shared
        self._apart.add((strange, number))
        return 1.0 - shared

    def _arrival(self, r: int, here: int | None, answer: str, first: int) -> Iterator[Chance]:
        number = self._number_of_place(r)
        if r in self._numbers:
            return
        elsewhere = 1.0
        if here is not None:
            elsewhere = 1.0 - self._places.shares(self._numbers, r, here)
            yield Chance(0, first, elsewhere, "carried out")
        p = self._places.number(self._numbers, r, number) / elsewhere
        self._numbers[r] = number
        match = re.search(r"loc (\d+)", answer)
        if match:  # the other grammar names the receptacle
            yield Chance(*match.span(1), p, "location")

    def _facing(self, here: int | None, answer: str) -> Iterator[Chance]:
        if here is None:
            return
        place = self.engine.game.receptacle_location[here]
        assert place is not None
        number = self._numbers[here]
        if number in self._faced:
            return
        self._faced.add(number)
        members = self.engine.game.receptacles_at[place]
        start = len("You are facing the ")
        p = self._places.together(self._numbers, here, members)
        yield Chance(start, answer.index(". Next to it"), p, "facing")
        self._numbers.update(dict.fromkeys(members, number))

    def _view(self, r: int, answer: str, start: int, before: list[int]) -> Iterator[Chance]:
        game, kind = self.engine.game, self._types[r]
        opens = bool(game.openable >> r & 1)
        if r not in self._looked:
            self._looked.add(r)
            known = self._openness.with_one(kind, opens)
            if kind in facts().openable:
                p = self._weigh(known, self._known).sum() / self._now()
                yield Chance(start, answer.index(" ", start), p, "closed")
            self._openness = known
        if r in self._known.seen or (opens and not self.engine.opened >> r & 1):
            return
        if before[r] != game.contents[r]:
            # something was put there before it was looked at: its listing is not ours to foretell
            self._remember(r)
            return
        yield from self._listing(r, answer, answer.index("you see ", start) + len("you see "))

    def _listing(self, r: int, answer: str, start: int) -> Iterator[Chance]:
        known = self._known.begin(r)
        left = self._weigh(self._openness, known)
        first = answer[start:].split(" ")[0].rstrip(".")
        allowed = [0] if first == "nothing" else [1, 2]
        yield Chance(start, start + len(first), _share(left, allowed), "empty")
        for match in _PLACED.finditer(answer, start):
            kind, number = match[1], int(match[2])
            yield from self._thing(known, left, allowed, match)
            known = known.read(kind, number)
            left = self._weigh(self._openness, known)
            allowed = _after(allowed)
            at = match.end()
            goes_on = answer[at] == ","
            now = [e for e in allowed if (e > 0) == goes_on]
            yield Chance(at, at + 1, _share(left, now, allowed), "more")
            allowed = now
            if goes_on:
                last = answer.startswith(", and ", at)
                now = [1] if last else [2]
                end = at + (5 if last else 3)
                yield Chance(at + 2, end, _share(left, now, allowed), "last")
                allowed = now
        self._known = known.end()

    def _thing(
        self, known: Known, left: Array, allowed: list[int], match: re.Match[str]
    ) -> Iterator[Chance]:
        kind, number = match[1], int(match[2])
        highest = max(law.numbers(kind) for law in self._laws.values())
        if known.frontier == listing_order(kind) and known.lowest is not None:
            highest = min(highest, known.lowest - 1)
        taken = known.where.get(kind, {})
        after = _after(allowed)
        weights = {
            n: float(self._weigh(self._openness, known.read(kind, n))[after].sum())
            for n in range(1, highest + 1)
            if n not in taken
        }
        total = sum(weights.values())
        yield Chance(*match.span(1), total / float(left[allowed].sum()), "object")
        yield Chance(*match.span(2), weights[number] / total, "number")

    # --- what is known -----------------------------------------------------------------------------

    def _weigh(self, openness: Openness, known: Known) -> Array:
        """[3] probability of all that is known, by what remains in the listing."""
        total: Array = np.zeros(3)
        for kind, weight in self._rooms.by_kind(openness).items():
            total = total + weight * self._laws[kind].weight(known)
        return total

    def _now(self) -> float:
        return float(self._weigh(self._openness, self._known).sum())

    def _remember(self, r: int) -> None:
        game = self.engine.game
        known = self._known.begin(r)
        for o in bits(game.contents[r]):
            kind, number = game.objects[o].split()
            if int(number) not in known.where.get(kind, {}):
                known = known.read(kind, int(number))
        self._known = known.end()

    def _here(self) -> int | None:
        """A receptacle whose place is the agent's; ``None``: it has not gone anywhere yet."""
        at = self.engine.game.receptacles_at[self.engine.location]
        return next((r for r in at if r in self._numbers), None)

    def _number_of_place(self, r: int) -> int:
        game = self.engine.game
        place = game.receptacle_location[r]
        assert place is not None
        return int(game.locations[place].split()[1])


def _after(allowed: list[int]) -> list[int]:
    """How many things may remain after one of the listing was read."""
    return sorted({rest for e in allowed for rest in ((0,) if e == 1 else (1, 2))})


def _share(weights: Array, part: list[int], whole: list[int] | None = None) -> float:
    total = weights.sum() if whole is None else weights[whole].sum()
    return float(weights[part].sum() / total)
