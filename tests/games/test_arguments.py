"""Wrong arguments of the worlds are named, and so is the package that one needs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from paw_gym.envs import babyai, scienceworld, textworld, textworld_express
from paw_gym.registration import make_text_env

PACKAGES = {
    "BabyAI": "minigrid",
    "ScienceWorld": "scienceworld",
    "TextWorld": "textworld",
    "TextWorldExpress": "textworld_express",
    "Tau2": "tau2",
}
ENDPOINT = {"user": "endpoint", "user_model": "m", "user_url": "http://h"}
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("2048", {"size": 2}, "size is 3 to 5, got 2"),
    ("2048", {"target": 100}, "target is one of 16, 32, .*2048, got 100"),
    ("2048", {"target": 256.0}, "target is one of 16, 32, .*2048, got 256.0"),
    ("2048", {"size": 3, "target": 2048}, "largest possible tile is 1024"),
    ("ALFWorld", {"engine": "nativ"}, "'nativ'. Did you mean 'native'"),
    ("ALFWorld", {"grammar": "throw"}, "Unknown grammar 'throw'. Valid: 'put', 'move'"),
    ("ALFWorld", {"variation": "odd"}, "'odd'. Valid: 'real', 'modified', 'mixed'"),
    ("ALFWorld", {"split": "test"}, "'test'. Valid: 'train', 'valid_seen', 'valid_unseen'"),
    ("BabyAI", {"level": "GoToLokal"}, "'GoToLokal'. Did you mean 'GoToLocal'"),
    ("ScienceWorld", {"task": "boiling"}, "'boiling'. Did you mean 'boil'"),
    ("ScienceWorld", {"split": "dev"}, "Unknown split 'dev'"),
    ("ScienceWorld", {"simplifications": "easy,openDoor"}, "Unknown simplification 'openDoor'"),
    ("ScienceWorld", {"simplifications": None}, "Unknown simplification 'None'"),
    ("ScienceWorld", {"variations": -1}, "variations is -1; expected"),
    ("SearchQA", {"difficulty": "hardd"}, "Did you mean 'hard'"),
    ("SearchQA", {"num_passages": 10}, "num_passages is 200"),
    ("SearchQA", {"num_questions": 10**6}, "raise num_passages"),
    ("SearchQA", {"num_questions": -1}, "num_questions is -1; expected"),
    ("SearchQA", {"reward": "em"}, "Unknown reward"),
    ("SearchQA", {"top_k": 0}, "top_k"),
    ("SearchQA", {"dataset": "nq"}, "needs data_dir"),
    ("Sokoban", {"size": 4}, "size is 5 to 10, got 4"),
    ("Sokoban", {"boxes": 9}, "boxes is 1 to 3, got 9"),
    ("Sokoban", {"boxes": True}, "boxes is a whole number, 1 to 3, got True"),
    ("Sudoku", {"size": 4.0}, "size is 4 or 9, got 4.0"),
    ("Sudoku", {"givens": 6.0}, "givens .* is a whole number, 4 to 14, got 6.0"),
    ("Sudoku", {"size": 9, "givens": 8}, "size 9 is 28 to 75, got 8"),
    ("Tau2", {"domain": "airlines"}, "'airlines'. Did you mean 'airline'"),
    ("Tau2", {"domain": "retail", "split": "tests"}, "Unknown retail split 'tests'.*'test'"),
    ("Tau2", {"user": "script"}, "'script'. Did you mean 'scripted'"),
    ("Tau2", {"user_model": "m"}, "go with user='endpoint'"),
    ("Tau2", {"user": "endpoint", "user_model": "m"}, "user_model.*user_url"),
    (
        "Tau2",
        {**ENDPOINT, "user_settings": {"temprature": 1}},
        "Unknown user setting 'temprature'.*'temperature'",
    ),
    ("TextWorld", {"game": "cookin"}, "'cookin'. Did you mean 'cooking'"),
    ("TextWorld", {"settings": {"levl": 3}}, "setting of treasure_hunter 'levl'.*'level'"),
    ("TextWorld", {"settings": {"level": "3"}}, "settings.level is a whole number, got '3'"),
    ("TextWorld", {"instructions": "all"}, "Unknown instructions 'all'"),
    ("TextWorldExpress", {"game": "coins"}, "'coins'. Did you mean 'coin'"),
    ("TextWorldExpress", {"game": "coin", "params": "numRooms=3"}, "params of coin: .*numRooms"),
    ("TextWorldExpress", {"params": "numLocations=many"}, "params is a str .*=many'"),
    ("ToyText", {"game": "taksi"}, "'taksi'. Did you mean 'taxi'"),
    ("ToyText", {"size": 3}, "size is 4 to 10, got 3"),
    ("ToyText", {"size": [4, 5]}, r"size is a whole number, 4 to 10, got \[4, 5\]"),
    ("ToyText", {"slippery": "false"}, "slippery is True or False, got 'false'"),
    ("ToyText", {"game": "taxi", "slippery": True}, "slippery is for frozen_lake"),
]


@pytest.mark.parametrize(("world", "kwargs", "message"), WRONG)
def test_wrong_arguments_are_named(
    monkeypatch: pytest.MonkeyPatch, world: str, kwargs: dict[str, Any], message: str
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    if world in PACKAGES:
        pytest.importorskip(PACKAGES[world])
    with pytest.raises(ValueError, match=message):
        make_text_env(f"paw_gym/{world}-v0", **kwargs)


@pytest.mark.parametrize("world", ["BabyAI", "TextWorld", "Sokoban", "ALFWorld"])
def test_a_solution_before_a_reset_is_refused(world: str) -> None:
    if world in PACKAGES:
        pytest.importorskip(PACKAGES[world])
    with pytest.raises(RuntimeError, match="call reset"):
        make_text_env(f"paw_gym/{world}-v0").unwrapped.reference_solution()


@pytest.mark.parametrize(
    ("package", "start"),
    [
        ("minigrid", babyai.levels.__wrapped__),
        ("scienceworld", scienceworld.Engine),
        ("textworld", textworld.version),
        ("textworld_express", textworld_express.new_engine),
    ],
)
def test_a_package_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, package: str, start: Callable[[], object]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"package '{package}', .*pip install '.\[\w+\]'"):
        start()
