"""Procedural games: reproducible, solvable, sensible, and split without overlap."""

import functools
import importlib.util
import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from files import load

from paw_gym.envs.alfworld.native.compiled import CompiledGame, bits
from paw_gym.envs.alfworld.native.engine import NativeEngine
from paw_gym.envs.alfworld.native.problem import TASK_TYPES
from paw_gym.envs.alfworld.procedural.generate import SPLITS, generate_game, share_of
from paw_gym.envs.alfworld.procedural.placement import SCENERY
from paw_gym.envs.alfworld.procedural.rooms import UNSEEN_ROOMS, rooms
from paw_gym.envs.alfworld.procedural.scene import placement_hash
from paw_gym.envs.alfworld.textworld_engine import compare, random_walker, script_walker

ALL_KINDS = list(itertools.product(SPLITS, TASK_TYPES))


made_once = functools.cache(generate_game)


def some_games(per_kind: int, **settings: Any) -> Iterator[dict[str, Any]]:
    for split, task_type in ALL_KINDS:
        for seed in range(per_kind):
            yield made_once(split, task_type, seed, **settings)


@pytest.mark.parametrize("grammar", ["put", "move"])
@pytest.mark.parametrize("variation", ["real", "modified"])
def test_every_game_is_won_by_its_walkthrough(grammar: str, variation: str) -> None:
    for game in some_games(4, grammar=grammar, variation=variation):
        engine = NativeEngine(CompiledGame.from_json(game))
        engine.reset()
        for command in game["walkthrough"]:
            assert not engine.won
            assert command in engine.admissible_commands()
            engine.step(command)
        assert engine.won
        assert len(game["walkthrough"]) <= 12


def test_a_game_follows_from_its_arguments_alone() -> None:
    for split, task in ALL_KINDS:
        game, again = (generate_game(split, task, 7) for _ in range(2))
        assert game == again
        newer = generate_game(split, task, 7, grammar="move")  # changes the words only
        assert newer["pddl_problem"] == game["pddl_problem"]
        assert newer["walkthrough"] != game["walkthrough"] or task == "look_at_obj_in_light"
    hashes = {game["placement_hash"] for game in some_games(20)}
    assert len(hashes) == 20 * len(ALL_KINDS)


def test_unseen_rooms_are_in_no_other_split() -> None:
    for game in itertools.chain(some_games(20), some_games(20, variation="real")):
        assert (game["room"] in UNSEEN_ROOMS) == (game["split"] == "valid_unseen")
    kinds = Counter(rooms()[number].kind for number in UNSEEN_ROOMS)
    assert kinds == dict.fromkeys(("kitchen", "living_room", "bedroom", "bathroom"), 6)
    official_unseen = {10, 219, 308, 424}
    assert official_unseen <= UNSEEN_ROOMS


def test_what_lies_where_decides_the_split() -> None:
    """Recomputed from the game that an engine sees, so two splits can never share a placement."""
    scenery = {kind.lower() for kind in SCENERY}
    for game in some_games(5):
        compiled = CompiledGame.from_json(game)
        lies_in = [(o, r) for r, mask in enumerate(compiled.contents) for o in bits(mask)]
        pairs = [(compiled.object_types[o], compiled.receptacles[r]) for o, r in lies_in]
        digest = placement_hash(game["room"], pairs)
        assert digest == game["placement_hash"]
        assert share_of(digest) == game["split"]
        assert compiled.opened == 0
        for o, r in lies_in:
            if compiled.object_types[o] not in scenery:
                assert compiled.accepts[r] >> o & 1, (compiled.objects[o], compiled.receptacles[r])


def test_an_unknown_type_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="Unknown .*'dance'") as error:
        generate_game("train", "dance", 0)
    assert all(name in str(error.value) for name in TASK_TYPES)


@pytest.mark.original
def test_assets_are_what_the_script_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("alfworld") is None:
        pytest.skip("make test-original")
    script = load("data/build_alfworld_assets.py")
    monkeypatch.setattr(sys, "argv", ["build_alfworld_assets.py", "--out", str(tmp_path)])
    script.main()
    for name in ("rooms.json", "facts.json", "engine.json"):
        assert (tmp_path / name).read_bytes() == (script.ASSETS / name).read_bytes(), name


@pytest.mark.slow
@pytest.mark.usefixtures("original_engine")
@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_the_original_engine_plays_them_alike(task_type: str) -> None:
    from paw_gym.envs.alfworld.textworld_engine import TextWorldEngine

    variant = [("put", "modified"), ("move", "real")][TASK_TYPES.index(task_type) % 2]
    game = generate_game("train", task_type, 11, *variant)
    native, original = NativeEngine(CompiledGame.from_json(game)), TextWorldEngine(game)
    compare(native, original, random_walker(8, seed=1))
    compare(native, original, script_walker(game["walkthrough"]))
    assert original.won
