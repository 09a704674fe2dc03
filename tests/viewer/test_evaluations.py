"""Evaluations in the viewer, several runs beside one another, and files that are damaged or empty."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from starlette.testclient import TestClient

from paw_gym.transition import read_jsonl
from paw_train.viewer.app import create_app
from paw_train.viewer.conversation import calls, conversation, notes
from paw_train.viewer.folders import find_runs
from paw_train.viewer.measurements import differences, evaluation_of

Ask = Callable[..., Any]


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Ask]:
    """Asks a viewer of ``tmp_path / "runs"``, which is opened at the first question."""
    clients: list[TestClient] = []

    def question(name: str, status: int = 200, **parameters: Any) -> Any:
        if not clients:
            app = create_app(tmp_path / "runs")
            clients.append(TestClient(app, base_url="http://127.0.0.1"))
            clients[0].__enter__()
        answer = clients[0].get(f"/api/{name}", params=parameters)
        assert answer.status_code == status, answer.text
        return answer.json()

    yield question
    for client in clients:
        client.__exit__(None, None, None)


def test_an_evaluation_is_not_shown_as_training(tmp_path: Path, ask: Ask, made: Any) -> None:
    made.write_evaluation(tmp_path / "runs" / "eval-x")
    [run] = ask("runs")["runs"]
    assert (run["kind"], run["agent"], run["model"]) == (
        "evaluation",
        "reflexion",
        "openai:small-model",
    )
    assert (run["seed"], run["cost"], run["score"]) == (7, "$0.0421", 0.5)
    assert (run["algorithm"], run["world_model"], run["state"]) == (None, None, "finished")
    found = ask("state", run="eval-x")["evaluation"]
    assert found["overall"]["success_rate"] == pytest.approx(1 / 3)
    assert [(part["name"], part["n"]) for part in found["types"]] == [("cool", 2), ("clean", 1)]
    assert found["measured"]["truncated_rate"] == 0.25
    assert found["measured"]["something_new"] == "kept"  # of a version that this one does not know
    assert found["details"]["agent_settings"] == {"trials": 3, "examples": 2}


def test_evaluations_in_a_runs_folder_are_found(
    small_run: Path, tmp_path: Path, ask: Ask, made: Any
) -> None:
    run = tmp_path / "runs" / "trained"
    run.mkdir(parents=True)
    for name in ("config.json", "metrics.jsonl"):
        shutil.copy(small_run / name, run)
    made.write_evaluation(run / "eval-panel")
    listed = {row["name"]: row["kind"] for row in ask("runs")["runs"]}
    assert listed == {"trained": "training", "trained/eval-panel": "evaluation"}
    assert ask("runs")["first"] is None
    assert list(find_runs(run)) == ["trained", "trained/eval-panel"]


@pytest.mark.parametrize(
    "value",
    [{}, {"success_rate": None, "n": 0, "ci95": None}, {"success_rate": 2.0, "n": 3},
     {"by_type": [1], "averages": 3, "score": "x", "runs": [1, {}], "tokens": [], "pass_at_k": {"1": 2},
      "agent": 5, "settings": "none", "cost": "free"}],
)  # fmt: skip
def test_a_result_without_what_is_expected_still_has_a_page(value: dict[str, Any]) -> None:
    found = evaluation_of(value)
    assert found["overall"] is None and found["types"] == [] and found["cost"] is None
    json.dumps(found, allow_nan=False)


def test_requests_are_shown_exactly_as_sent(tmp_path: Path, made: Any) -> None:
    folder = made.write_evaluation(tmp_path / "e")
    episode = next(iter(read_jsonl(folder / "episodes.jsonl")))
    turns = conversation(episode, None)
    before: list[Any] = []
    for turn, step in zip(turns, range(2), strict=True):
        [call] = turn["calls"]
        before = [*before[: call["same"]], *call["messages"]]
        assert len(before) == 1 + 2 * step
        assert made.EXAMPLE in before[0]["content"] and made.REFLECTION in before[0]["content"]
    assert before[2]["content"] == episode.transitions[0].next_observation
    assert notes(episode)["reflections"] == [made.REFLECTION]
    assert "calls" not in notes(episode)
    for damaged in (None, 3, [3], [{}], [{"messages": 3}]):
        assert calls(damaged) == []
    assert calls([{"same": -1, "messages": [1, {"role": "user"}]}]) == [
        {"same": 0, "messages": [{"role": "user"}]}
    ]


def test_settings_that_differ(tmp_path: Path, ask: Ask, small_run: Path) -> None:
    a = {"name": "a", "seed": 0, "world_model": {"loss": "cmae", "rho": 0.2}, "env": {}}
    b = {"name": "b", "seed": 0, "world_model": {"loss": "ce"}, "env": {"split": "x"}}
    assert differences([a, b]) == [
        {"key": "world_model.loss", "values": ["cmae", "ce"]},
        {"key": "world_model.rho", "values": ["0.2", None]},
        {"key": "env.split", "values": [None, "x"]},
    ]
    assert differences([a]) == differences([]) == []
    for name in ("one", "two"):
        shutil.copytree(small_run, tmp_path / "runs" / name)
    config = tmp_path / "runs" / "two" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "seed": 5}))
    found = ask("differences", run=["one", "two"])["differences"]
    assert found == [{"key": "seed", "values": ["0", "5"]}]
    ask("differences", 404, run=["one", "nowhere"])


def test_alarms_are_told(tmp_path: Path, ask: Ask, small_run: Path) -> None:
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    shutil.copy(small_run / "config.json", run)
    rows = [
        {"update": u, "success_rate": (0.6 if u < 30 else 0.05) + u % 2 / 50} for u in range(1, 61)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    [alarm] = ask("runs")["runs"][0]["alarms"]
    assert alarm["kind"] == "success" and alarm["ongoing"] and 30 <= alarm["first"] < 46


DAMAGE = {
    "empty": b"",
    "truncated": b'{"update": 1, "success_rate": 0.5}\n{"update": 2, "succ',
    "not UTF-8": b'{"update": 1, "name": "\xff\xfe\xe9"}\n\xff\xfe\n',
    "other JSON": b"[1, 2]\n",
    "zeros": b"\x00" * 64,
}


@pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE)
def test_damaged_files_are_no_end(tmp_path: Path, ask: Ask, content: bytes) -> None:
    files = (
        "config.json",
        "metrics.jsonl",
        "validation.jsonl",
        "eval_after.json",
        "episodes.jsonl",
    )
    for folder, names in (("run", files), ("evaluation", ("result.json", "episodes.jsonl"))):
        for name in names:
            path = tmp_path / "runs" / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    listed = {row["name"]: row for row in ask("runs")["runs"]}
    assert listed["evaluation"]["kind"] == "evaluation" and listed["run"]["kind"] == "training"
    for name in listed:
        assert ask("run", run=name)["episodes"] == 0
        ask("curves", run=name)
    assert ask("list", run="run")["rows"] == []
