"""What could have been known of an episode, as the viewer tells it: against the observer itself."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from starlette.testclient import TestClient

from paw_gym import RecordTransitions
from paw_gym.envs.alfworld.oracle.observer import Chance, Observer
from paw_gym.transition import Episode, read_jsonl, write_jsonl
from paw_gym.wrappers import make_agent_env
from paw_train.viewer.app import create_app
from paw_train.viewer.truth import MISSED, compared

ALFWORLD = "paw_gym/ALFWorld-v0"
_PIECES = re.compile(r"\s*\w+|\s*[^\w\s]")


def _play(folder: Path, env_id: str, **arguments: Any) -> list[Episode]:
    """Two episodes of an environment: an action that is refused, then the reference solution."""
    path = folder / "played.jsonl"
    env = RecordTransitions(make_agent_env(env_id, template="compact", **arguments), path)
    for index in range(2):
        env.reset(options={"task_index": index})
        for response in ["<action>dance</action>", *env.unwrapped.reference_solution()]:
            env.step(f"<action>{response}</action>" if "<" not in response else response)
    env.close()
    played = list(read_jsonl(path))
    path.unlink()
    return played


def _recorded(text: str, rng: random.Random) -> dict[str, Any]:
    pieces = _PIECES.findall(text)
    return {"tokens": pieces, "logprobs": [-rng.expovariate(1) for _ in pieces]}


def _write(run: Path, episodes: list[Episode]) -> None:
    """As training does: one token a word, with the probabilities of no model in particular."""
    rng = random.Random(0)
    (run / "rollouts").mkdir(parents=True)
    (run / "tokens").mkdir()
    write_jsonl(run / "rollouts" / "000001.jsonl", episodes)
    records = [
        {
            "episode_id": episode.episode_id,
            "steps": [
                {"step": t.step, "observation": _recorded(t.next_observation, rng)}
                for t in episode.transitions
            ],
        }
        for episode in episodes
    ]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (run / "tokens" / "000001.jsonl").write_text(lines)


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> list[Episode]:
    """Episodes of modified rooms."""
    return _play(tmp_path_factory.mktemp("rooms"), ALFWORLD, variation="modified")


Ask = Callable[[Path, str], dict[str, Any]]


@pytest.fixture
def truth_of(tmp_path: Path) -> Iterator[Ask]:
    """The answer to /api/truth on an episode of a run."""

    def ask(run: Path, key: str = "000001.0") -> dict[str, Any]:
        app = create_app(run, cache=tmp_path / "cache")
        with TestClient(app, base_url="http://127.0.0.1") as client:
            for _ in range(600):
                if client.get("/api/pulse", params={"run": run.name}).json()["indexing"] is None:
                    break
                time.sleep(0.05)
            answer = client.get("/api/truth", params={"run": run.name, "key": key})
            assert answer.status_code == 200, answer.text
            return dict(answer.json())

    yield ask


def _game(episode: Episode, variation: str = "modified") -> Any:
    env = make_agent_env(ALFWORLD, template="compact", variation=variation).text_env
    env.reset(options={"task_id": episode.task_id})
    return env.task.data


def test_floor_and_model_are_those_of_the_observer_and_of_the_file(
    rooms: list[Episode], truth_of: Ask, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    _write(run, rooms)
    lines = [json.loads(x) for x in (run / "tokens" / "000001.jsonl").read_text().splitlines()]
    for number, episode in enumerate(rooms):
        observer = Observer.of_game(_game(episode))
        found = truth_of(run, f"000001.{number}")
        assert found["why"] is None and len(found["turns"]) == len(episode.transitions)
        for t, turn, step in zip(
            episode.transitions, found["turns"], lines[number]["steps"], strict=True
        ):
            _, chances = observer.step(t.action)
            assert turn["floor"] == pytest.approx(-sum(math.log(c.p) for c in chances))
            sampled = [c.p for c in chances if c.what in ("location", "facing", "carried out")]
            assert turn["estimated"] == pytest.approx(-sum(map(math.log, sampled)))
            part = step["observation"]
            assert turn["model"] == pytest.approx(-math.fsum(part["logprobs"]))
            assert turn["excess"] == pytest.approx(turn["model"] - turn["floor"])
            _check_words(turn["words"], part, chances, t.next_observation)
        for name in ("floor", "model", "excess", "estimated"):
            assert found[name] == pytest.approx(sum(turn[name] for turn in found["turns"]))
        assert (
            found["floor"] > 5 and found["turns"][0]["floor"] == 0
        )  # a dance is refused for certain


def _check_words(
    words: list[dict[str, Any]], part: dict[str, Any], chances: list[Chance], text: str
) -> None:
    assert [w["p"] for w in words] == pytest.approx([c.p for c in chances])
    for word, chance in zip(words, chances, strict=True):
        shown = "".join(part["tokens"][word["first"] : word["end"]]).strip()
        assert shown == text[chance.start : chance.end].strip() and word["what"] == chance.what
        nats = -sum(part["logprobs"][word["first"] : word["end"]])
        assert word["excess"] == pytest.approx(nats + math.log(chance.p))


def test_a_word_of_several_tokens_counts_as_one_and_so_do_those_that_share_a_token() -> None:
    text = "you see a soapbar 2, and more"
    recorded = {"tokens": ["you see", " a", " soap", "bar 2", ", and", " more"],
                "logprobs": [-0.1, -0.2, -1.0, -2.0, -0.4, -3.0]}  # fmt: skip
    chances = [
        Chance(10, 17, 0.25, "object"),
        Chance(18, 19, 0.5, "number"),
        Chance(19, 20, 0.8, "more"),
    ]
    found = compared(text, recorded, chances)
    assert [(w["first"], w["end"], w["what"]) for w in found["words"]] == [
        (2, 4, "object, number"),
        (4, 5, "more"),
    ]
    assert [w["p"] for w in found["words"]] == pytest.approx([0.125, 0.8])
    assert found["floor"] == pytest.approx(-math.log(0.125 * 0.8))
    assert found["model"] == pytest.approx(6.7)
    # certain tokens are missed as well, the largest excess first; the others are below log 2
    assert [text for text, _ in found["missed"]] == ["more", "soapbar 2"]
    assert [nats for _, nats in found["missed"]] == pytest.approx([3.0, 3.0 + math.log(0.125)])
    assert min(nats for _, nats in found["missed"]) > MISSED


def test_what_is_too_rare_for_the_samples_is_left_out() -> None:
    recorded = {"tokens": ["facing", " a shelf", ".", " No"], "logprobs": [-1.0, -9.0, -0.5, -0.25]}
    chances = [Chance(7, 14, 0.0, "facing"), Chance(16, 18, 0.5, "carried out")]
    found = compared("facing a shelf. No", recorded, chances)
    rare, other = found["words"]
    assert rare["p"] is None and rare["excess"] is None and rare["estimated"] is True
    assert found["left_out"] == 1
    assert found["floor"] == pytest.approx(math.log(2)) and other["p"] == 0.5
    assert found["model"] == pytest.approx(1.75)
    json.dumps(found, allow_nan=False)


def test_of_another_environment_there_is_none(truth_of: Ask, tmp_path: Path) -> None:
    played = _play(tmp_path, "paw_gym/Sokoban-v0")
    _write(tmp_path / "run", played)
    found = truth_of(tmp_path / "run", "000001.0")
    assert "procedural games of ALFWorld alone" in found["why"] and found["turns"] == []


def test_of_a_room_as_it_is_there_is_none(truth_of: Ask, tmp_path: Path) -> None:
    _write(tmp_path / "run", _play(tmp_path, ALFWORLD, variation="real"))
    found = truth_of(tmp_path / "run", "000001.0")
    assert "room as it is" in found["why"] and found["turns"] == []


def test_the_game_is_found_without_its_arguments(truth_of: Ask, tmp_path: Path) -> None:
    """The other grammar, a given number of receptacles, the share of modified rooms among mixed ones."""
    for number, arguments in enumerate(
        [{"grammar": "move", "variation": "modified"}, {"receptacles": 6}, {"variation": "mixed"}]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        _write(folder / "run", _play(folder, ALFWORLD, **arguments))
        answers = [truth_of(folder / "run", f"000001.{i}") for i in range(2)]
        known = [answer for answer in answers if answer["why"] is None]
        assert known and all(answer["floor"] > 3 for answer in known)
        assert len(known) == 2 or arguments == {"variation": "mixed"}


def test_an_episode_that_cannot_be_played_again_says_so(
    rooms: list[Episode], truth_of: Ask, tmp_path: Path
) -> None:
    first, *rest = rooms[0].transitions
    changed = {
        "answer": [first, replace(rest[0], next_observation="You fly."), *rest[1:]],
        "opening": [replace(first, observation="You are in a forest."), *rest],
        "unrecorded": [replace(first, observation=None), *rest],
    }
    why = {
        "answer": "answers step 1 in another way",
        "opening": "opens as recorded",
        "unrecorded": "does not hold the opening text",
    }
    for name, transitions in changed.items():
        episode = replace(rooms[0], transitions=transitions)
        _write(tmp_path / name, [episode])
        found = truth_of(tmp_path / name, "000001.0")
        assert why[name] in found["why"] and found["turns"] == []
    for number, task in enumerate(
        ["procedural/train", "procedural/train/nothing/0", "procedural/a/b/x"]
    ):
        run = tmp_path / f"id{number}"
        _write(run, [replace(rooms[0], task_id=task)])
        assert truth_of(run, "000001.0")["why"]


def test_tokens_that_are_missing_or_others_are_no_error(
    rooms: list[Episode], truth_of: Ask, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    _write(run, rooms)
    path = run / "tokens" / "000001.jsonl"
    one, two = (json.loads(line) for line in path.read_text().splitlines())
    one["steps"][0]["observation"]["tokens"][0] = "Something"
    one["steps"][1]["observation"]["logprobs"][0] = -math.inf
    del one["steps"][2]["observation"]
    path.write_text(json.dumps(one) + "\n" + json.dumps(two) + "\n")
    turns = truth_of(run, "000001.0")["turns"]
    assert [turn["step"] for turn in turns][:3] == [0, 1, 3]
    assert all("not those of this observation" in turn["why"] for turn in turns[:2])
    assert turns[2]["why"] is None
    shutil.rmtree(run / "tokens")
    assert "No model's probabilities" in truth_of(run, "000001.1")["why"]


def test_the_viewer_starts_without_torch() -> None:
    code = "import sys, paw_train.viewer.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_the_page_shows_truth_beside_prediction(
    rooms: list[Episode], view: Any, pages: Any, truth_of: Ask, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    _write(run, rooms)
    expected = truth_of(run, "000001.0")
    pages.open(f"{view(run)}/#/run/episodes?ep=000001.0")
    pages.is_there(".turn-card .sums")
    cards = pages.run("""[...document.querySelectorAll(".turn-card")].map((card) =>
        [...card.querySelectorAll(".observation .tok")].map((tok) =>
            [tok.classList.contains("open"), tok.classList.contains("sampled"), tok.dataset.truth]))""")
    assert len(cards) == len(expected["turns"])
    for card, turn in zip(cards, expected["turns"], strict=True):
        words = {k: w for w in turn["words"] for k in range(w["first"], w["end"])}
        for k, (uncertain, sampled, p) in enumerate(card):
            assert uncertain == (k in words)
            assert float(p) == pytest.approx(words[k]["p"] if k in words else 1.0)
            assert sampled == (k in words and words[k]["estimated"])
    for name in ("floor", "excess", "model"):
        assert name in pages.text(".legend .truth .sums")
    pages.key("f")  # without it: the model alone
    pages.wait_for("document.querySelector('.sums, .tok.open') === null")
    pages.key("f")
    pages.is_there(".turn-card .sums")
    pages.size(420, 900)
    assert pages.run("document.documentElement.scrollWidth") == 420
    assert pages.problems() == []
