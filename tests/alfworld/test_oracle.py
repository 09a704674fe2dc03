"""The ideal observer: its probabilities against enumeration, against sampled games, and in play."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator

import gymnasium as gym
import numpy as np
import pytest

import paw_gym  # noqa: F401
from paw_gym.envs.alfworld.oracle.contents import Contents, Kind, Known
from paw_gym.envs.alfworld.oracle.locations import Locations
from paw_gym.envs.alfworld.oracle.observer import Chance, Observer
from paw_gym.envs.alfworld.oracle.receptacles import Openness, Rooms
from paw_gym.envs.alfworld.procedural.generate import sample_scene
from paw_gym.envs.alfworld.procedural.rooms import rooms
from paw_gym.envs.alfworld.procedural.scene import SceneGoal

# --- a toy world whose rooms can all be written down -------------------------------------------------

KINDS = (
    Kind("cup", (0.5, 0.5, 0.0), {1: 0.5, 2: 0.5}, True),
    Kind("bowl", (0.2, 0.3, 0.5), {1: 1 / 3, 2: 1 / 3, 3: 1 / 3}, False),
    Kind("pan", (0.0, 0.75, 0.25), {1: 1.0}, False),
    Kind("pen", (0.6, 0.3, 0.1), {1: 0.5, 2: 0.5}, False),
)
PER_RECEPTACLE = (0.5, 1.5)
Room = frozenset[tuple[str, int, int]]
"""(kind, number, receptacle) of everything"""


def every_room() -> Iterator[tuple[Room, float]]:
    """Each room of the toy world by each way in which the generator gets there, with its probability."""
    # three receptacles: a uniform number from 1.5 to 4.5, rounded
    wanted = {2: 1 / 3, 3: 1 / 3, 4: 1 / 3}
    goal, *optional = KINDS
    for order in itertools.permutations(optional):
        for enough, p_enough in wanted.items():
            for first in goal.copies:
                p = p_enough / 6 * goal.copies[first]
                yield from _laid([(goal, first)], list(order), enough, 0, p)


def _laid(
    done: list[tuple[Kind, int]], left: list[Kind], enough: int, things: int, p: float
) -> Iterator[tuple[Room, float]]:
    if things >= enough or not left:
        copies = [(kind, n) for kind, count in done for n in range(1, count + 1)]
        for places in itertools.product(range(3), repeat=len(copies)):
            chance = math.prod(k.share[r] for (k, _), r in zip(copies, places, strict=True))
            if chance:
                triples = zip(copies, places, strict=True)
                yield frozenset((k.name, n, r) for (k, n), r in triples), p * chance
        return
    kind, *rest = left
    for count, chance in kind.copies.items():
        yield from _laid([*done, (kind, count)], rest, enough, things + count, p * chance)


@pytest.fixture(scope="module")
def toy_rooms() -> dict[Room, float]:
    found: Counter[Room] = Counter()
    for room, p in every_room():
        found[room] += p
    assert math.isclose(sum(found.values()), 1.0)
    return dict(found)


def listing(room: Room, receptacle: int) -> list[tuple[str, int]]:
    """As texts list it: by kind, the highest number first."""
    return sorted(((k, n) for k, n, r in room if r == receptacle), key=lambda t: (t[0], -t[1]))


@pytest.mark.parametrize("seen", [(), (1,), (2, 0)])
def test_what_lies_where_is_as_likely_as_by_enumeration(
    toy_rooms: dict[Room, float], seen: tuple[int, ...]
) -> None:
    law = Contents(KINDS, 3, PER_RECEPTACLE)
    (reading,) = [r for r in (0, 1, 2) if r not in seen][:1]
    by_history: dict[tuple[object, ...], dict[Room, float]] = {}
    for room, p in toy_rooms.items():
        key = tuple(tuple(listing(room, r)) for r in seen)
        by_history.setdefault(key, {})[room] = p
    for history in list(by_history)[::7] if seen else by_history:
        possible = by_history[history]
        known = Known()
        for r, things in zip(seen, history, strict=True):
            known = known.begin(r)
            for kind, number in things:  # type: ignore[attr-defined]
                known = known.read(kind, number)
            known = known.end()
        assert law.weight(known)[0] == pytest.approx(sum(possible.values()), rel=1e-12)
        _check_prefixes(law, known.begin(reading), possible, reading)


def _check_prefixes(law: Contents, known: Known, possible: dict[Room, float], reading: int) -> None:
    """Every beginning of every listing, with what remains of it: none, one or more."""
    by_prefix: dict[tuple[tuple[str, int], ...], list[float]] = {}
    for room, p in possible.items():
        things = listing(room, reading)
        for length in range(len(things) + 1):
            sums = by_prefix.setdefault(tuple(things[:length]), [0.0, 0.0, 0.0])
            sums[min(2, len(things) - length)] += p
    for prefix, expected in by_prefix.items():
        read = known
        for kind, number in prefix:
            read = read.read(kind, number)
        np.testing.assert_allclose(law.weight(read), expected, rtol=1e-10, atol=1e-15)


def test_a_thing_is_read_once_and_in_a_listing() -> None:
    known = Known().begin(0).read("cup", 1)
    with pytest.raises(ValueError, match="cup 1 was seen before"):
        known.read("cup", 1)
    with pytest.raises(ValueError, match="No listing is being read"):
        Known().read("cup", 1)
    assert not Contents(KINDS, 3).weight(Known({"spoon": {1: 0}})).any()


# --- against the generator ----------------------------------------------------------------------------


def test_kinds_of_rooms_are_as_frequent_as_the_opening_says() -> None:
    """The kind of room behind an opening text: its probability against sampled games."""
    sums: dict[str, list[float]] = {}
    for seed in range(250):
        scene = sample_scene("train", "look_at_obj_in_light", seed, "modified")
        types = [r.type for r in scene.receptacles]
        by_kind = Rooms(types, scene.goal, False).by_kind(Openness.unseen())
        assert math.isclose(sum(by_kind.values()), 1.0)
        true = rooms()[scene.room].kind
        assert by_kind[true] > 0
        for kind, p in by_kind.items():
            line = sums.setdefault(kind, [0.0, 0.0])
            line[0] += (kind == true) - p
            line[1] += p * (1 - p)
    assert sums.keys() == {"bedroom", "living_room"}  # which are alike, so there is some doubt
    assert all(variance > 1 and gap**2 <= 16 * variance for gap, variance in sums.values())


def test_rooms_that_cannot_be_are_refused() -> None:
    goal = SceneGoal("pick_and_place_simple", "Mug", "Shelf", "put a mug on shelf.")
    with pytest.raises(ValueError, match="No modified room has these receptacles: Toilet"):
        Rooms(["Toilet"] * 7, goal, False)


def test_places_are_shared_as_in_sampled_games() -> None:
    """Pairs that share a place, and numbers of places, against games of the generator."""
    shared = expected = variance = 0.0
    for seed in range(300):
        scene = sample_scene("train", "pick_heat_then_place_in_recep", seed, "modified")
        types = [r.type for r in scene.receptacles]
        law = Locations(types, scene.goal, samples=400, seed=seed)
        a, b = random.Random(seed).sample(range(len(types)), 2)
        p = law.shares({}, a, b)
        shared += scene.receptacles[a].cell == scene.receptacles[b].cell
        expected += p
        variance += p * (1 - p)
        total = sum(law.number({a: 2}, b, n) for n in range(1, len(types) + 2))
        assert total == pytest.approx(1.0)
    assert abs(shared - expected) <= 4 * math.sqrt(variance)


def test_every_company_at_a_place_has_a_probability() -> None:
    """All companies of a small room: together certain, none impossible, the frequent ones as counted."""
    types = ["CabinetType", "DrawerType", "ShelfType", "FridgeType", "CounterTopType"]
    goal = sample_scene("train", "pick_heat_then_place_in_recep", 0, "modified").goal
    law, known = Locations(types, goal, samples=20_000, seed=1), {0: 3, 2: 1}
    sampled = law._given(known)
    same = sampled.place == sampled.place[:, [0]]
    total = 0.0
    for size in range(4):
        for others in itertools.combinations((1, 3, 4), size):
            p = law.together(known, 0, (0, *others))
            wanted = np.isin(np.arange(5), (0, *others))
            counted = ((same == wanted).all(axis=1) * sampled.weight).sum() / sampled.weight.sum()
            assert p > 0
            assert p == pytest.approx(counted, abs=0.01)
            total += p
    assert total == pytest.approx(1.0, abs=0.01)
    assert law.together(known, 0, (0, 2)) == 0  # whose place has another number


BINARY = {"empty": "nothing", "closed": "The", "more": ",", "last": "and", "carried out": "You"}
"""of each open question with two answers, the first word of one of them"""


@pytest.mark.slow
def test_its_probabilities_are_calibrated_in_play() -> None:
    """In 25 games: yes-or-no questions are answered yes as often as it says, within four deviations."""
    env = gym.make("paw_gym/ALFWorld-v0", variation="modified").unwrapped
    sums = {what: [0.0, 0.0, 0.0] for what in BINARY}
    likely = {"object": [0.0, 0.0], "number": [0.0, 0.0], "location": [0.0, 0.0]}
    for index in range(25):
        env.reset(options={"task_index": index})
        observer = Observer.of_game(env.task.data, samples=1000)
        rng = random.Random(index)
        names = list(observer.engine.game.receptacles)
        for _ in range(25):
            # chosen without a look at what is admissible, which tells what shares a place
            name = rng.choice(names)
            action = rng.choice(
                [f"go to {name}", f"go to {name}", f"open {name}", f"examine {name}"]
            )
            observation, *_ = env.step(action)
            text, chances = observer.step(action)
            assert text == observation
            for chance in chances:
                _count(chance, text, sums, likely)
    for what, (yes, expected, variance) in sums.items():
        assert yes > 0 and abs(yes - expected) <= 4 * math.sqrt(variance), what
    for what, (nats, count) in likely.items():
        assert count > 100 and 0 < nats / count < 3, what


def _count(
    chance: Chance, text: str, sums: dict[str, list[float]], likely: dict[str, list[float]]
) -> None:
    assert 0 < chance.p < 1 and 0 <= chance.start < chance.end <= len(text)
    if chance.what == "facing":
        return
    if chance.what in likely:
        likely[chance.what][0] -= math.log(chance.p)
        likely[chance.what][1] += 1
        return
    yes = text[chance.start : chance.end] == BINARY[chance.what]
    p = chance.p if yes else 1 - chance.p
    for i, value in enumerate((float(yes), p, p * (1 - p))):
        sums[chance.what][i] += value


# --- what it is certain of ----------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["train", "valid_unseen"])
def test_it_plays_the_same_game_and_what_was_seen_is_certain(split: str) -> None:
    env = gym.make("paw_gym/ALFWorld-v0", split=split, variation="modified").unwrapped
    for index in range(6):
        env.reset(options={"task_index": index})
        observer = Observer.of_game(env.task.data, samples=200)
        actions = env.reference_solution()
        visited = set()
        for action in actions:
            text, chances = observer.step(action)
            assert text == env.step(action)[0]
            if action in visited:
                assert chances == []
            visited.add(action)
        assert observer.engine.won
        observer.step("look")
        for action in ("inventory", "look", "fly away"):
            assert observer.step(action)[1] == []


def test_a_refused_way_tells_that_one_is_there() -> None:
    """The second time the same refusal is no surprise."""
    env = gym.make("paw_gym/ALFWorld-v0", variation="modified").unwrapped
    found = 0
    for index in range(15):
        env.reset(options={"task_index": index})
        observer = Observer.of_game(env.task.data, samples=500)
        game = observer.engine.game
        pair = next((at for at in game.receptacles_at if len(at) > 1), None)
        if pair is None:
            continue
        found += 1
        observer.step(f"go to {game.receptacles[pair[0]]}")
        way = f"go to {game.receptacles[pair[1]]}"
        _, chances = observer.step(way)
        assert [c.what for c in chances] == ["carried out"] and chances[0].p < 0.5
        assert observer.step(way)[1] == []
    assert found > 1


def test_games_of_other_laws_are_refused() -> None:
    env = gym.make("paw_gym/ALFWorld-v0", split="valid_unseen").unwrapped  # rooms as they are
    env.reset(options={"task_index": 0})
    with pytest.raises(ValueError, match="in a room as it is"):
        Observer.of_game(env.task.data)
    with pytest.raises(ValueError, match="procedural games only"):
        Observer.of_game(object())  # type: ignore[arg-type]
