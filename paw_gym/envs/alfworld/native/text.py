"""ALFWorld's texts that depend on the state, as its grammar words them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paw_gym.envs.alfworld.native.compiled import CompiledGame, bits

if TYPE_CHECKING:
    from paw_gym.envs.alfworld.native.engine import NativeEngine

_VIEWS_KEPT = 2048
"""per game, about 0.2 kB each"""


def listing(names: Sequence[str]) -> str:
    """The original's list: "nothing", "a", or "a, b, and c" (", and " between two as well)."""
    if not names:
        return "nothing"
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])}, and {names[-1]}"


def opening(game: CompiledGame) -> str:
    """The text at reset: the room, then the task."""
    known = game.memo.get("opening")
    if known is None:
        if game.receptacles_at[game.start]:
            room = surroundings(game, game.start, game.objects_at, [0] * len(game.receptacles))
        else:
            placed = [
                f"a {name}"
                for name, place in zip(game.receptacles, game.receptacle_location, strict=True)
                if place is not None
            ]
            room = _middle_of_room(placed)
        known = f"-= Welcome to TextWorld, ALFRED! =-\n\n{room}\n\nYour task is to: {game.task}"
        game.memo["opening"] = known
    return str(known)


def surroundings(
    game: CompiledGame, location: int, objects_at: Sequence[int], taken_from: Sequence[int]
) -> str:
    """The answer to ``look``.

    In the middle of the room the original binds its query to the agent's own location, so a look
    there finds no receptacle, unlike the opening text.
    """
    here = game.receptacles_at[location]
    if not here:
        return _middle_of_room([])
    floor = [
        f"a {game.objects[o]}"
        for o in bits(objects_at[location])
        for r in here
        if taken_from[r] >> o & 1
    ]
    facing = listing([game.receptacles[r] for r in here])
    return f"You are facing the {facing}. Next to it, you see {listing(floor)}."


def _middle_of_room(seen: Sequence[str]) -> str:
    around = listing(seen)
    return f"You are in the middle of a room. Looking quickly around you, you see {around}."


def receptacle_view(game: CompiledGame, receptacle: int, is_open: int, content: int) -> str:
    """The answer to ``examine``, ``open`` and ``go to`` about a receptacle."""
    key = (receptacle, is_open, content)
    views = game.views
    view = views.get(key)
    if view is None:
        if len(views) >= _VIEWS_KEPT:
            views.clear()
        view = views[key] = _receptacle_view(game, receptacle, is_open, content)
    return view


def _receptacle_view(game: CompiledGame, receptacle: int, is_open: int, content: int) -> str:
    name = game.receptacles[receptacle]
    openable = game.openable >> receptacle & 1
    if openable and not is_open:
        return f"The {name} is closed."
    seen = listing([f"a {game.objects[o]}" for o in bits(content)])
    if openable:
        return f"The {name} is open. In it, you see {seen}."
    return f"On the {name}, you see {seen}."


def object_view(engine: NativeEngine, o: int) -> str:
    """The answer to ``examine`` about an object; the first applicable description wins.

    "hot" and "cool" never occur together, and a sliced object is described as such only together with
    another state or as something that can be sliced.
    """
    game = engine.game
    name = game.objects[o]
    if game.hollow >> o & 1:
        inner = listing([f"a {game.objects[i]}" for i in bits(game.inside[o])])
        return f"This is a normal {name}. In it, you see {inner}."
    clean, hot, cool = engine.clean >> o & 1, engine.hot >> o & 1, engine.cool >> o & 1
    sliced = engine.sliced >> o & 1
    temperature = "hot" if hot else "cool" if cool else ""
    if sliced and (clean or temperature):
        words = " and ".join(word for word in (temperature, "clean" if clean else "") if word)
        return f"This is a {words} sliced {name}."
    if clean and temperature:
        return f"This is a {temperature} and clean {name}."
    if hot:
        return f"This is a hot {name}."
    if clean:
        return f"This is a clean {name}."
    if cool:
        return f"This is a cold {name}."
    if game.toggleable >> o & 1 and engine.toggled >> o & 1:
        return f"This {name} is on."
    if game.sliceable >> o & 1 and sliced:
        return f"This is a sliced {name}."
    return f"There's nothing special about {name}."
