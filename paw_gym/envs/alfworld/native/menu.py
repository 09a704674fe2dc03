"""The admissible commands of a situation of an ALFWorld game: the PDDL preconditions, written by hand.

A situation is only what the preconditions look at: where the agent is, what it holds, what is open
and what lies there. So the same few menus serve all episodes of a game, and they are kept with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from paw_gym.envs.alfworld.native.compiled import CompiledGame, bits

_MENUS_KEPT = 1024
"""per game, about 2 kB each; random play of 50 steps meets fewer than a hundred"""


class Verb(IntEnum):
    """The actions; those from GO on change the state."""

    LOOK = 0
    INVENTORY = 1
    HELP = 2
    EXAMINE_RECEPTACLE = 3
    EXAMINE_OBJECT = 4
    GO = 5
    OPEN = 6
    CLOSE = 7
    TAKE = 8
    PUT = 9
    CLEAN = 10
    HEAT = 11
    COOL = 12
    USE = 13
    SLICE = 14


class Action(NamedTuple):
    """One admissible command, ready to apply."""

    verb: Verb
    receptacle: int = -1
    object: int = -1
    location: int = -1
    text: str = ""
    """the answer, or its fixed beginning where what follows depends on the state"""


class Menu(NamedTuple):
    """The admissible commands of one situation."""

    actions: dict[str, Action]
    commands: tuple[str, ...]
    """the keys of `actions`, sorted"""


def menu_for(
    game: CompiledGame,
    location: int,
    held: int,
    contents: Sequence[int],
    objects_at: Sequence[int],
    opened: int,
) -> Menu:
    """The menu of a situation, from the game's memory if it has been met before."""
    here = game.receptacles_at[location]
    sliceable = (
        objects_at[location] & game.sliceable if held >= 0 and game.knives >> held & 1 else 0
    )
    # With something in hand, only lamps matter among what lies here; this keeps the menus few.
    relevant = -1 if held < 0 else game.toggleable
    key = (location, held, sliceable, *((contents[r] & relevant, opened >> r & 1) for r in here))
    menus = game.menus
    menu = menus.get(key)
    if menu is None:
        if len(menus) >= _MENUS_KEPT:
            menus.clear()
        lying = {r: contents[r] for r in here}
        menu = menus[key] = _build(game, location, held, lying, sliceable, opened)
    return menu


def _build(
    game: CompiledGame, location: int, held: int, lying: dict[int, int], sliceable: int, opened: int
) -> Menu:
    actions = {
        command: action
        for command, action in _anywhere(game).items()
        if action.location != location
    }
    carried = "not carrying anything" if held < 0 else f"carrying: a {game.objects[held]}"
    actions["inventory"] = Action(Verb.INVENTORY, text=f"You are {carried}.")
    if held >= 0:
        actions[f"examine {game.objects[held]}"] = Action(Verb.EXAMINE_OBJECT, object=held)
    for r, content in lying.items():
        name = game.receptacles[r]
        actions[f"examine {name}"] = Action(Verb.EXAMINE_RECEPTACLE, r)
        accessible = not game.openable >> r & 1 or opened >> r & 1
        if game.openable >> r & 1:
            if accessible:
                actions[f"close {name}"] = Action(Verb.CLOSE, r, text=f"You close the {name}.")
            else:
                actions[f"open {name}"] = Action(Verb.OPEN, r, text=f"You open the {name}. ")
        for o in bits(content & game.pickupable) if accessible and held < 0 else ():
            thing = game.objects[o]
            answer = f"You pick up the {thing} from the {name}."
            actions[f"take {thing} from {name}"] = Action(Verb.TAKE, r, o, text=answer)
        for o in bits(content & game.toggleable):
            lamp = game.objects[o]
            actions[f"use {lamp}"] = Action(Verb.USE, object=o, text=f"You turn on the {lamp}.")
        if held >= 0:
            actions.update(_with_receptacle(game, r, held, bool(accessible)))
    for o in bits(sliceable):
        knife, food = game.objects[held], game.objects[o]
        actions[f"slice {food} with {knife}"] = Action(
            Verb.SLICE, object=o, text=f"You sliced the {food} with the {knife}."
        )
    return Menu(actions, tuple(sorted(actions)))


def _anywhere(game: CompiledGame) -> dict[str, Action]:
    """look, help and every go-to; shared by all menus of the game, so built once."""
    known: dict[str, Action] | None = game.memo.get("anywhere")
    if known is not None:
        return known
    actions = {"look": Action(Verb.LOOK)}
    if game.help is not None:
        actions["help"] = Action(Verb.HELP, text=game.help)
    for r, place in enumerate(game.receptacle_location):
        if place is not None:
            name = game.receptacles[r]
            target = game.locations[place] if game.grammar.arrive_names_location else name
            actions[f"go to {name}"] = Action(
                Verb.GO, r, location=place, text=f"You arrive at {target}. "
            )
    game.memo["anywhere"] = actions
    return actions


def _with_receptacle(game: CompiledGame, r: int, held: int, accessible: bool) -> dict[str, Action]:
    """Put, clean, heat and cool: what the held object and a receptacle here allow."""
    names = {"o": game.objects[held], "r": game.receptacles[r]}
    actions = {}
    if accessible and game.accepts[r] >> held & 1:
        command = game.grammar.put_command.format(**names)
        answer = game.grammar.put_feedback.format(**names)
        actions[command] = Action(Verb.PUT, r, held, text=answer)
    for verb, objects, receptacles in (
        (Verb.CLEAN, game.cleanable, game.cleaners),
        (Verb.HEAT, game.heatable, game.heaters),
        (Verb.COOL, game.coolable, game.coolers),
    ):
        if objects >> held & 1 and receptacles >> r & 1:
            word = verb.name.lower()
            answer = f"You {word} the {names['o']} using the {names['r']}."
            actions[f"{word} {names['o']} with {names['r']}"] = Action(verb, r, held, text=answer)
    return actions
