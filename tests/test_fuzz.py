"""Whatever a file or an argument holds, each reader gives its value or its own error: never another one.

Bounded: a fixed number of examples each, of at most some hundred bytes. Elsewhere: responses of models
(tests/gym/test_prompts.py), lists of products (tests/webshop/test_catalogue.py), requests to the
servers (tests/env_servers), archives (tests/gym/test_data.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from paw_gym.envs.alfworld.experts import parse_task, read_event
from paw_gym.envs.alfworld.games import parse_game
from paw_gym.envs.alfworld.native.problem import GameFileError, parse_goal, parse_problem
from paw_gym.envs.alfworld.native.rules import recognise_grammar
from paw_gym.envs.search_qa.questions import read_questions
from paw_gym.envs.webshop.goals import given_goals, given_prices
from paw_gym.export import read_episodes
from paw_gym.internals.files import truncate_jsonl
from paw_gym.prompts import PromptTemplate
from paw_gym.retrieval.corpus import Corpus
from paw_gym.transition import Episode, Transition, read_jsonl, read_parquet
from paw_train.cli.scaffold import Names
from paw_train.cli.shared import parse_settings
from paw_train.reporting.run.data import load_run
from paw_train.settings import Settings, load_settings

fuzz = settings(max_examples=60, suppress_health_check=list(HealthCheck), deadline=None)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@st.composite
def mutated(draw: st.DrawFn, valid: bytes) -> bytes:
    """A valid text with some bytes changed, cut out or put in twice; or anything at all."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.binary(max_size=80))
    text = bytearray(valid)
    for _ in range(draw(st.integers(1, 4))):
        at, until = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
        kind = draw(st.integers(0, 3))
        if kind == 0:
            text[at : at + 1] = draw(st.binary(min_size=1, max_size=2))
        elif kind == 1:
            del text[at : min(until, at + 20)]
        elif kind == 2:
            text[at:at] = text[at : min(until, at + 20)]
        else:
            text[at:at] = draw(st.sampled_from([b"null", b"[", b"{}", b'"', b"1e999", b"(", b"-"]))
    return bytes(text)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def only(errors: Any, call: Callable[[], Any]) -> None:
    """Calls; one of these errors will do if it says something."""
    try:
        call()
    except errors as error:
        assert str(error).strip()


_TURN = Transition("e", "t", "x", 0, "p", "o", "r", "a", 1.0, "o", True, False, True)
EPISODE = json.dumps(Episode("e", "t", "x", "d", transitions=[_TURN]).to_dict()).encode()
DEEP = b"[" * 1500
GAME = json.dumps({"pddl_domain": "d", "grammar": "g", "pddl_problem": "(define)"}).encode()
PROBLEM = b"""(define (problem p) (:domain alfred) (:objects Bed_1 - object BedType - rtype)
(:init (= (totalCost) 0) (receptacleType Bed_1 BedType) (inReceptacle Pen_1 Bed_1))
(:goal (and (exists (?r - receptacle) (receptacleType ?r BedType)))))"""
GRAMMAR = (
    b"""grammar :: \"\"\" { "intro": [ { "rhs": "-= Hi =- Your task is to: go on." } ] } \"\"\" """
)
GOALS = json.dumps(
    [{"asin": "B0", "instruction_text": "find me", "attributes": ["x"], "price_upper": 40.0,
      "goal_options": {"color": "red"}, "instruction_attributes": ["x"], "category": "c",
      "query": "q", "product_category": "a > b", "name": "n", "weight": 1}]
).encode()  # fmt: skip
PASSAGES = b'{"id": "1", "contents": "\\"Title\\"\\ntext"}\n{"id": "2", "contents": "more"}\n'
TEMPLATE = b'first = "{instruction}"\nstep = "{history}"\nown_tags = ["search"]\n'
RECIPE = b"""name: x
updates: 3
env: {id: paw_gym/ALFWorld-v0, kwargs: {max_steps: 6}}
rollout: {groups: 2, group_size: 2}
world_model: {enabled: true}
optimizer: {lr: 1.0e-3, weight_decay: 0.1}
"""


def text(read: Callable[[str], Any]) -> Callable[[Path], Any]:
    return lambda file: read(file.read_bytes().decode("utf-8", "replace"))


def _problem(said: str) -> None:
    parse_goal(parse_problem(said).goal)


def _corpus(file: Path) -> None:
    assert all(isinstance(found.contents, str) for found in Corpus.open(file))


def _parquet(file: Path) -> None:
    pytest.importorskip("pyarrow")
    list(read_parquet(file))


def _state(file: Path) -> None:
    pytest.importorskip("torch")
    from paw_train.policies.local.checkpoint import _read_state

    _read_state(file)


@dataclass
class Reader:
    """How a file is read, and a valid one."""

    read: Callable[[Path], Any]
    valid: bytes
    errors: tuple[type[Exception], ...] = (ValueError,)
    others: tuple[bytes, ...] = ()
    """that are not valid"""
    name: str = "file"


UNLIKE_EPISODES = (
    b'{"transitions": 3}',
    b'{"env_id": "e", "task_id": "t", "episode_id": "x", "transitions": {"a": 1}}',
)
UNLIKE_RECIPES = (b"a: [", b"a: &a [*a]", b"base: x\nenv: 3")
READERS = {
    "episodes": Reader(lambda f: list(read_jsonl(f)), EPISODE, others=UNLIKE_EPISODES),
    "export": Reader(
        lambda f: list(read_episodes(f)), EPISODE, others=UNLIKE_EPISODES, name="e.jsonl"
    ),
    "parquet": Reader(_parquet, b"PAR1\x00\x00\x00\x00PAR1", (ValueError, OSError)),
    "game": Reader(lambda f: parse_game(f.read_bytes(), "game"), GAME, (GameFileError,)),
    "problem": Reader(text(_problem), PROBLEM, (GameFileError,), (b"(" * 1500 + b")" * 1500,)),
    "grammar": Reader(text(recognise_grammar), GRAMMAR, (GameFileError,)),
    "wording": Reader(text(parse_task), GRAMMAR),
    "event": Reader(text(read_event), GRAMMAR, ()),
    "goals": Reader(text(given_goals), GOALS, others=(b'[{"asin": "B0"}]', b"[3]", b"x" * 9000)),
    "prices": Reader(text(given_prices), b'{"B0": 3.5}', others=(b'{"a": "x"}',)),
    "corpus": Reader(_corpus, PASSAGES),
    "questions": Reader(read_questions, b'{"id": "q", "question": "?", "golden_answers": ["a"]}\n'),
    "template": Reader(text(lambda t: PromptTemplate.parse(t, "t")), TEMPLATE),
    "argument": Reader(
        text(lambda t: parse_settings([t])), b"split=[a, {b: 1}]", others=(b"a=" + DEEP,)
    ),
    "recipe": Reader(load_settings, RECIPE, others=UNLIKE_RECIPES, name="mine.yaml"),
    "log": Reader(lambda f: truncate_jsonl(f, "update", 3), b'{"update": 1}\n{"update": 4}\n'),
    "state": Reader(_state, b"PK\x03\x04"),
}


@pytest.mark.parametrize("kind", READERS)
@fuzz
@given(st.data())
def test_a_file(place: Path, kind: str, data: st.DataObject) -> None:
    reader = READERS[kind]
    file = place / reader.name
    file.write_bytes(data.draw(mutated(reader.valid)))
    only(reader.errors, lambda: reader.read(file))


@pytest.mark.parametrize("kind", READERS)
def test_a_file_that_is_known_to_be_bad(place: Path, kind: str) -> None:
    reader = READERS[kind]
    for raw in (DEEP, *reader.others):
        (place / reader.name).write_bytes(raw)
        only(reader.errors, lambda: reader.read(place / reader.name))


@settings(fuzz, max_examples=30)
@given(values, st.text(max_size=12))
@example([1], "optimizer.lr")
@example({"a": "x"}, "")
def test_a_value(place: Path, value: Any, name: str) -> None:
    file = place / "valid.yaml"
    file.write_bytes(RECIPE)
    for known in ("updates", "optimizer.lr", "env.kwargs", "world_model", "model.path", name):
        only(ValueError, lambda known=known: load_settings(file, [f"{known}={value}"]))
    for read in (given_goals, given_prices, Settings.read):
        only(ValueError, lambda read=read: read(value))
    only(ValueError, lambda: Settings.read({"env": value, "rollout": value}))
    only(ValueError, lambda: Names.of(name))


def test_code_in_a_training_state_is_not_run(place: Path) -> None:
    torch = pytest.importorskip("torch")

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (place / "pwned",))

    torch.save({"signature": "x", "evil": Evil()}, place / "evil.pt")
    with pytest.raises(ValueError, match="cannot be read"):
        _state(place / "evil.pt")
    assert not (place / "pwned").exists()


@fuzz
@given(st.lists(mutated(b'{"update": 1, "success": 0.5, "reward": 0.1}'), min_size=3, max_size=3))
@example([b"3", b"[]", b'{"update": "x"}'])
@example([b'{"n": 0}', b'{"update": null}', DEEP])
def test_a_report_is_made_of_whatever_lies_there(place: Path, raw: list[bytes]) -> None:
    folder = place / "run"
    folder.mkdir(exist_ok=True)
    for name in ("config.json", "eval_before.json", "eval_after.json"):
        (folder / name).write_bytes(raw[0])
    for name in ("metrics.jsonl", "validation.jsonl", "warmstart.jsonl"):
        (folder / name).write_bytes(raw[1] + b"\n" + raw[2])
    (folder / "episodes_before.jsonl").write_bytes(raw[2])
    load_run(folder)
