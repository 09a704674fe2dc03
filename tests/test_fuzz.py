"""Whatever a file or an argument holds, each reader gives its value or its own error: never another one.

Bounded: a fixed number of examples each, of at most some hundred bytes. Elsewhere: responses of models
(tests/gym/test_prompts.py), lists of products (tests/webshop/test_catalogue.py), requests to the
servers (tests/env_servers), archives (tests/gym/test_unpack.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from paw_gym.data.manifest import Manifest
from paw_gym.envs.alfworld.errors import GameFileError
from paw_gym.envs.alfworld.experts import parse_task, read_event
from paw_gym.envs.alfworld.games import parse_game
from paw_gym.envs.alfworld.native.goal import parse_goal
from paw_gym.envs.alfworld.native.pddl import parse_problem
from paw_gym.envs.alfworld.native.rules import recognise_grammar
from paw_gym.envs.search_qa.questions import read_questions
from paw_gym.envs.webshop.goals import given_goals, given_prices
from paw_gym.export import read_episodes
from paw_gym.prompts import PromptTemplate
from paw_gym.retrieval.corpus import Corpus
from paw_gym.transition import read_jsonl, read_parquet
from paw_train.cli.arguments import parse_settings
from paw_train.cli.scaffold import Names

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


def only(errors: type[Exception] | tuple[type[Exception], ...], call: Callable[[], Any]) -> Any:
    """Calls; one of these errors will do if it says something."""
    try:
        return call()
    except errors as error:
        assert str(error).strip()
        return None


EPISODE = json.dumps(
    {
        "env_id": "e", "task_id": "t", "episode_id": "x", "task_type": "d", "instruction": "",
        "group": 0, "context_mode": "window", "error": None,
        "transitions": [
            {
                "env_id": "e", "task_id": "t", "episode_id": "x", "step": 0, "prompt": "p",
                "response": "r", "action": "a", "reward": 1.0, "next_observation": "o",
                "terminated": True, "truncated": False, "action_is_valid": True,
                "info": {"success": True},
            }
        ],
    }
).encode()  # fmt: skip
DEEP = b"[" * 1500


@fuzz
@given(mutated(EPISODE + b"\n" + EPISODE))
@example(DEEP)
@example(b'{"transitions": 3}')
@example(b'{"env_id": "e", "task_id": "t", "episode_id": "x", "transitions": {"a": 1}}')
def test_episodes(place: Path, raw: bytes) -> None:
    file = place / "e.jsonl"
    file.write_bytes(raw)
    only(ValueError, lambda: list(read_jsonl(file)))
    only(ValueError, lambda: list(read_episodes(file)))


@fuzz
@given(st.binary(max_size=60))
@example(b"PAR1\x00\x00\x00\x00PAR1")
def test_parquet(place: Path, raw: bytes) -> None:
    pytest.importorskip("pyarrow")
    file = place / "e.parquet"
    file.write_bytes(raw)
    only((ValueError, OSError), lambda: list(read_parquet(file)))


GAME = json.dumps({"pddl_domain": "d", "grammar": "g", "pddl_problem": "(define)"}).encode()
PROBLEM = b"""(define (problem p) (:domain alfred) (:objects Bed_1 - object BedType - rtype)
(:init (= (totalCost) 0) (receptacleType Bed_1 BedType) (inReceptacle Pen_1 Bed_1))
(:goal (and (exists (?r - receptacle) (receptacleType ?r BedType)))))"""


@fuzz
@given(mutated(GAME), mutated(PROBLEM))
@example(DEEP, b"(" * 1500 + b")" * 1500)
def test_game_files(raw: bytes, problem: bytes) -> None:
    only(GameFileError, lambda: parse_game(raw, "game"))
    parsed = only(GameFileError, lambda: parse_problem(problem.decode("utf-8", "replace")))
    if parsed is not None:
        only(GameFileError, lambda: parse_goal(parsed.goal))


@fuzz
@given(
    mutated(
        b'grammar :: """ { "intro": [ { "rhs": "-= Welcome =- Your task is to: put a pen in desk." } ] } """'
    )
)
def test_grammars_and_wording(raw: bytes) -> None:
    text = raw.decode("utf-8", "replace")
    only(GameFileError, lambda: recognise_grammar(text))
    only(ValueError, lambda: parse_task(text))
    read_event(text)


GOALS = json.dumps(
    [{"asin": "B0", "instruction_text": "find me", "attributes": ["x"], "price_upper": 40.0,
      "goal_options": {"color": "red"}, "instruction_attributes": ["x"], "category": "c",
      "query": "q", "product_category": "a > b", "name": "n", "weight": 1}]
)  # fmt: skip


@fuzz
@given(mutated(GOALS.encode()), values)
@example(b'[{"asin": "B0"}]', [3])
@example(DEEP, {"a": "x"})
def test_goals_and_prices(raw: bytes, value: Any) -> None:
    text = "[" + raw.decode("utf-8", "replace")[1:]
    only(ValueError, lambda: given_goals(text))
    only(ValueError, lambda: given_goals(value))
    only(ValueError, lambda: given_prices("{" + text))
    only(ValueError, lambda: given_prices(value))


PASSAGES = b'{"id": "1", "contents": "\\"Title\\"\\ntext"}\n{"id": "2", "contents": "more"}\n'


@fuzz
@given(mutated(PASSAGES), st.sampled_from(["raise", "skip"]))
@example(DEEP, "skip")
def test_corpora(place: Path, raw: bytes, on_error: str) -> None:
    file = place / "corpus.jsonl"
    file.write_bytes(raw)
    corpus = only(ValueError, lambda: Corpus.open(file, on_error))
    if corpus is not None:
        assert all(isinstance(passage.contents, str) for passage in corpus)


QUESTIONS = b'{"id": "q1", "question": "who?", "golden_answers": ["me"]}\n'


@fuzz
@given(mutated(QUESTIONS))
@example(DEEP)
def test_questions(place: Path, raw: bytes) -> None:
    file = place / "dev.jsonl"
    file.write_bytes(raw)
    only(ValueError, lambda: read_questions(file))


@fuzz
@given(mutated(b'title = "t"\n[[files]]\nname = "a.zip"\nurls = ["http://x"]\n'))
@example(b'title = "t"\nfiles = [3]')
@example(b'title = "t"\n[[files]]\nname = 3\nurls = 4')
@example(b'title = "t"\nfiles = "ab"')
def test_manifests_and_templates(raw: bytes) -> None:
    text = raw.decode("utf-8", "replace")
    only(ValueError, lambda: Manifest.parse(text, "m"))
    only(ValueError, lambda: PromptTemplate.parse(text, "t"))


@fuzz
@given(mutated(b"split=[a, {b: 1}]"), st.text(max_size=12))
@example(b"a=" + DEEP, "")
def test_arguments(raw: bytes, name: str) -> None:
    only(ValueError, lambda: parse_settings([raw.decode("utf-8", "replace")]))
    only(ValueError, lambda: Names.of(name))


RECIPE = b"""name: x
updates: 3
env: {id: paw_gym/ALFWorld-v0, kwargs: {max_steps: 6}}
rollout: {groups: 2, group_size: 2}
world_model: {enabled: true}
optimizer: {lr: 1.0e-3, weight_decay: 0.1}
"""


class TestTraining:
    @settings(fuzz, max_examples=20)
    @given(mutated(RECIPE), st.text(max_size=10), values)
    @example(b"a: [", "b", 3)
    @example(b"a: &a [*a]", "b", 3)
    @example(b"base: x\nenv: 3", "updates", [1])
    @example(DEEP, "optimizer.lr", "[")
    def test_recipes_and_overrides(self, place: Path, raw: bytes, key: str, value: Any) -> None:
        from paw_train.settings import load_settings

        file = place / "mine.yaml"
        file.write_bytes(raw)
        only(ValueError, lambda: load_settings(file))
        only(ValueError, lambda: load_settings("smoke", [f"{key}={value}"]))
        file.write_bytes(RECIPE)
        for known in ("updates", "optimizer.lr", "env.kwargs", "world_model", "model.path"):
            only(ValueError, lambda known=known: load_settings(file, [f"{known}={value}"]))

    @fuzz
    @given(values)
    def test_settings_of_a_record(self, value: Any) -> None:
        from paw_train.settings import Settings

        only(ValueError, lambda: Settings.read(value))
        only(ValueError, lambda: Settings.read({"env": value, "rollout": value}))

    @fuzz
    @given(st.binary(max_size=200))
    def test_training_states(self, place: Path, raw: bytes) -> None:
        from paw_gym.internals.files import truncate_jsonl
        from paw_train.policies.checkpoints import STATE_FILE
        from paw_train.policies.local.checkpoint import _read_state

        (place / STATE_FILE).write_bytes(raw)
        only(ValueError, lambda: _read_state(place / STATE_FILE))
        log = place / "metrics.jsonl"
        log.write_bytes(raw)
        only(ValueError, lambda: truncate_jsonl(log, "update", 3))

    def test_code_in_a_training_state_is_not_run(self, place: Path) -> None:
        from paw_train.policies.local.checkpoint import _read_state

        class Evil:
            def __reduce__(self) -> tuple[Any, ...]:
                return (Path.touch, (place / "pwned",))

        import torch

        torch.save({"signature": "x", "evil": Evil()}, place / "evil.pt")
        with pytest.raises(ValueError, match="cannot be read"):
            _read_state(place / "evil.pt")
        assert not (place / "pwned").exists()

    @fuzz
    @given(
        st.lists(mutated(b'{"update": 1, "success": 0.5, "reward": 0.1}'), min_size=3, max_size=3)
    )
    @example([b"3", b"[]", b'{"update": "x"}'])
    @example([b'{"n": 0}', b'{"update": null}', DEEP])
    def test_a_report_is_made_of_whatever_lies_there(self, place: Path, raw: list[bytes]) -> None:
        from paw_train.reporting.run.data import load_run

        folder = place / "run"
        folder.mkdir(exist_ok=True)
        for name in ("config.json", "eval_before.json", "eval_after.json", "noise_gradient.json"):
            (folder / name).write_bytes(raw[0])
        for name in ("metrics.jsonl", "validation.jsonl", "warmstart.jsonl"):
            (folder / name).write_bytes(raw[1] + b"\n" + raw[2])
        (folder / "episodes_before.jsonl").write_bytes(raw[2])
        load_run(folder)
