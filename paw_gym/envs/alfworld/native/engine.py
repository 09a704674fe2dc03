"""The native ALFWorld engine: the original's text and rules, about a thousand times faster.

It steps on bit masks (`CompiledGame`) with the domain's rules written by hand. Menus and views are worked
out once for each situation and kept with the game.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from paw_gym.envs.alfworld.native.compiled import CompiledGame, bits
from paw_gym.envs.alfworld.native.menu import Action, Menu, Verb, menu_for

NOTHING_HAPPENS = "Nothing happens."
_VIEWS_KEPT = 2048
"""per game, about 0.2 kB each"""


class Engine(Protocol):
    """The interface of both engines. One engine plays one game, any number of times."""

    won: bool
    """true if the goal holds now"""

    def reset(self) -> str:
        """Goes back to the start; returns the opening text, which ends with the task."""

    def step(self, command: str) -> tuple[str, bool]:
        """Tries a command, white space around it aside; returns the answer and whether the game is won."""

    def admissible_commands(self) -> list[str]:
        """The commands that work now, sorted; all others get the answer "Nothing happens."."""

    def save_state(self) -> object:
        """A picklable snapshot."""

    def restore_state(self, state: object) -> None:
        """Goes back to a snapshot of the same game."""


class NativeState(NamedTuple):
    """Everything that changes during an episode of the native engine; the rest are masks."""

    game: str
    """`CompiledGame.digest`"""
    location: int
    held: int
    """index of the object in hand, -1 for empty hands"""
    contents: tuple[int, ...]
    taken_from: tuple[int, ...]
    """objects taken from a receptacle and not put back: the only ones the original "sees"
    beside it, since it looks for explicit negative facts"""
    objects_at: tuple[int, ...]
    opened: int
    clean: int
    hot: int
    cool: int
    sliced: int
    toggled: int


class NativeEngine:
    """Plays a `CompiledGame`. Cheap to construct; many engines share one game."""

    __slots__ = (*NativeState._fields, "_menu", "won")

    def __init__(self, game: CompiledGame) -> None:
        self.game = game
        self.reset()

    def reset(self) -> str:
        game = self.game
        start = NativeState(
            game.digest,
            game.start,
            -1,
            game.contents,
            (0,) * len(game.receptacles),
            game.objects_at,
            *(game.opened, game.clean, game.hot, game.cool, game.sliced, game.toggled),
        )
        self.restore_state(start)
        return self._opening()

    def step(self, command: str) -> tuple[str, bool]:
        actions = self._menu.actions
        action = actions.get(command) or actions.get(command.strip())
        if action is None:
            return NOTHING_HAPPENS, self.won
        observation = self._apply(action)
        if action.verb >= Verb.GO:
            self._refresh()
        return observation, self.won

    def admissible_commands(self) -> list[str]:
        return list(self._menu.commands)

    def save_state(self) -> NativeState:
        return NativeState(
            self.game.digest,
            self.location,
            self.held,
            tuple(self.contents),
            tuple(self.taken_from),
            tuple(self.objects_at),
            *(self.opened, self.clean, self.hot, self.cool, self.sliced, self.toggled),
        )

    def restore_state(self, state: object) -> None:
        """Goes back to a snapshot; a ``TypeError`` or ``ValueError`` if it is from another engine or game."""
        if not isinstance(state, NativeState):
            raise TypeError(f"expected a NativeState of save_state(), got {type(state).__name__}")
        if state.game != self.game.digest:
            raise ValueError("the saved state belongs to another game")
        self.location, self.held = state.location, state.held
        self.contents, self.taken_from = list(state.contents), list(state.taken_from)
        self.objects_at = list(state.objects_at)
        self.opened, self.clean, self.hot, self.cool, self.sliced, self.toggled = state[-6:]
        self._refresh()

    def _apply(self, action: Action) -> str:
        verb, r, o = action.verb, action.receptacle, action.object
        if verb is Verb.GO:
            self.location = action.location
            return action.text + self._view(r)
        if verb is Verb.EXAMINE_RECEPTACLE:
            return self._view(r)
        if verb is Verb.LOOK:
            return self._surroundings()
        if verb is Verb.EXAMINE_OBJECT:
            return self._object_view(o)
        if verb is Verb.OPEN:
            self.opened |= 1 << r
            return action.text + self._view(r)
        if verb is Verb.CLOSE:
            self.opened &= ~(1 << r)
        elif verb is Verb.TAKE:
            self.contents[r] &= ~(1 << o)
            self.taken_from[r] |= 1 << o
            self.objects_at[self.location] &= ~(1 << o)
            self.held = o
        elif verb is Verb.PUT:
            self.contents[r] |= 1 << o
            self.taken_from[r] &= ~(1 << o)
            self.objects_at[self.location] |= 1 << o
            self.held = -1
        elif verb is Verb.CLEAN:
            self.clean |= 1 << o
        elif verb is Verb.HEAT:
            self.hot |= 1 << o
            self.cool &= ~(1 << o)
        elif verb is Verb.COOL:
            self.cool |= 1 << o
            self.hot &= ~(1 << o)
        elif verb is Verb.USE:
            self.toggled |= 1 << o
        elif verb is Verb.SLICE:
            self.sliced |= 1 << o
        return action.text

    def _refresh(self) -> None:
        self._menu: Menu = menu_for(
            self.game, self.location, self.held, self.contents, self.objects_at, self.opened
        )
        self.won = self._goal_holds()

    def _goal_holds(self) -> bool:
        game = self.game
        if game.goal.lamp_type is not None:
            if self.held < 0 or not game.goal_objects >> self.held & 1:
                return False
            lit = self.toggled & game.goal_lamps
            return any(self.contents[r] & lit for r in game.receptacles_at[self.location])
        wanted = game.goal_objects
        state = game.goal.state
        if state is not None:
            wanted &= self.clean if state == "clean" else self.hot if state == "hot" else self.cool
        if not wanted:
            return False
        count = game.goal.count
        return any((self.contents[r] & wanted).bit_count() >= count for r in game.goal_receptacles)

    # --- texts that depend on the state, as ALFWorld's grammar words them ------------------------

    def _opening(self) -> str:
        """The text at reset: the room, then the task."""
        game = self.game
        known = game.memo.get("opening")
        if known is None:
            if game.receptacles_at[game.start]:
                room = self._surroundings()
            else:
                placed = zip(game.receptacles, game.receptacle_location, strict=True)
                room = _middle_of_room([f"a {name}" for name, place in placed if place is not None])
            known = f"-= Welcome to TextWorld, ALFRED! =-\n\n{room}\n\nYour task is to: {game.task}"
            game.memo["opening"] = known
        return str(known)

    def _surroundings(self) -> str:
        """The answer to ``look``. In the middle of the room it finds no receptacle, unlike the opening text:
        the original binds its query to the agent's own location."""
        game = self.game
        here = game.receptacles_at[self.location]
        if not here:
            return _middle_of_room([])
        floor = [
            f"a {game.objects[o]}"
            for o in bits(self.objects_at[self.location])
            for r in here
            if self.taken_from[r] >> o & 1
        ]
        facing = _listing([game.receptacles[r] for r in here])
        return f"You are facing the {facing}. Next to it, you see {_listing(floor)}."

    def _view(self, receptacle: int) -> str:
        """The answer to ``examine``, ``open`` and ``go to`` about a receptacle."""
        key = (receptacle, self.opened >> receptacle & 1, self.contents[receptacle])
        views = self.game.views
        view = views.get(key)
        if view is None:
            if len(views) >= _VIEWS_KEPT:
                views.clear()
            view = views[key] = _receptacle_view(self.game, *key)
        return view

    def _object_view(self, o: int) -> str:
        """The answer to ``examine`` about an object; the first applicable description wins. "hot" and "cool"
        never occur together; "sliced" is told only with another state or of what can be sliced."""
        game = self.game
        name = game.objects[o]
        if game.hollow >> o & 1:
            inner = _listing([f"a {game.objects[i]}" for i in bits(game.inside[o])])
            return f"This is a normal {name}. In it, you see {inner}."
        clean, hot, cool = self.clean >> o & 1, self.hot >> o & 1, self.cool >> o & 1
        sliced = self.sliced >> o & 1
        temperature = "hot" if hot else "cool" if cool else ""
        if sliced and (clean or temperature):
            words = " and ".join(word for word in (temperature, "clean" if clean else "") if word)
            return f"This is a {words} sliced {name}."
        if clean and temperature:
            return f"This is a {temperature} and clean {name}."
        if hot or clean or cool:
            return f"This is a {'hot' if hot else 'clean' if clean else 'cold'} {name}."
        if game.toggleable >> o & 1 and self.toggled >> o & 1:
            return f"This {name} is on."
        if game.sliceable >> o & 1 and sliced:
            return f"This is a sliced {name}."
        return f"There's nothing special about {name}."


def _listing(names: Sequence[str]) -> str:
    """The original's list: "nothing", "a", or "a, b, and c" (", and " between two as well)."""
    if not names:
        return "nothing"
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])}, and {names[-1]}"


def _middle_of_room(seen: Sequence[str]) -> str:
    around = _listing(seen)
    return f"You are in the middle of a room. Looking quickly around you, you see {around}."


def _receptacle_view(game: CompiledGame, receptacle: int, is_open: int, content: int) -> str:
    name = game.receptacles[receptacle]
    openable = game.openable >> receptacle & 1
    if openable and not is_open:
        return f"The {name} is closed."
    seen = _listing([f"a {game.objects[o]}" for o in bits(content)])
    if openable:
        return f"The {name} is open. In it, you see {seen}."
    return f"On the {name}, you see {seen}."
