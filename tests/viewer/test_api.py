"""The viewer's answers: against the files, while a run grows, of damaged files, to hostile requests."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import said
from servers import wait_until
from starlette.testclient import TestClient

from paw_gym.transition import Episode, Transition, read_jsonl
from paw_train.reporting.pages import blocks, changes
from paw_train.viewer.app import create_app
from paw_train.viewer.folders import find_runs
from paw_train.viewer.measurements import differences, evaluation_of, settings_of
from paw_train.viewer.store import calls, conversation, notes

from .conftest import ADDRESS, Ask, Opened
from .made_evaluation import EXAMPLE, REFLECTION, write_evaluation


def _episodes(run: Path) -> dict[str, tuple[int, Episode, dict[str, Any]]]:
    """By key: update, episode, token record; straight from the files."""
    found = {}
    for path in sorted((run / "rollouts").glob("*.jsonl")):
        lines = (run / "tokens" / path.name).read_text().splitlines()
        records = {r["episode_id"]: r for r in map(json.loads, lines)}
        for number, episode in enumerate(read_jsonl(path)):
            key = f"{path.stem}.{number}"
            found[key] = (int(path.stem), episode, records[episode.episode_id])
    return found


def _listed(ask: Ask, **filters: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while True:
        page = ask("list", run="small", offset=len(rows), limit=150, **filters)
        rows += page["rows"]
        if len(rows) >= page["total"]:
            assert len(rows) == page["total"]
            return rows


def test_lists_hold_what_the_files_do(opened: Opened, small_run: Path) -> None:
    ask, files = opened(small_run), _episodes(small_run)
    assert [row["key"] for row in _listed(ask)] == list(files)
    turns = [(key, t.step) for key, (_, e, _) in files.items() for t in e.transitions]
    assert [(row["key"], row["step"]) for row in _listed(ask, view="turns")] == turns
    groups = _listed(ask, view="groups")
    assert [row["key"] for row in groups] == list(files)[::4]
    assert all(row["n"] == 4 and len(row["outcomes"].split(",")) == 4 for row in groups)
    newest = [row["update"] for row in _listed(ask, sort="newest")]
    assert newest == sorted(newest, reverse=True)
    for row in _listed(ask)[::17]:
        update, episode, record = files[row["key"]]
        assert (row["update"], row["steps"]) == (update, len(episode.transitions))
        assert row["ret"] == episode.total_reward and row["lam"] == record["lambda"]
        assert row["entropy"] == max(s["entropy"] for s in record["steps"])
        assert row["selected"] == sum(s["selected"] for s in record["steps"])


def test_filters_against_the_files(opened: Opened, small_run: Path) -> None:
    ask, files = opened(small_run), _episodes(small_run)

    def wanted(test: Callable[[int, Episode, Any], bool]) -> list[str]:
        return [key for key, parts in files.items() if test(*parts)]

    def keys(**filters: Any) -> list[str]:
        return [row["key"] for row in _listed(ask, **filters)]

    assert keys(outcome="failed") == wanted(lambda u, e, r: not e.success) != []
    assert keys(invalid=True) == wanted(
        lambda u, e, r: any(not t.action_is_valid for t in e.transitions)
    )
    kind = "look_at_obj_in_light"
    assert keys(type=kind) == wanted(lambda u, e, r: e.task_type == kind) != []
    assert keys(env="paw_gym/ALFWorld-v0") == list(files) != [] == keys(env="paw_gym/WebShop-v0")
    assert keys(first=3, last=5) == wanted(lambda u, e, r: 3 <= u <= 5) != []
    assert keys(entropy=0.3) == wanted(lambda u, e, r: any(s["entropy"] >= 0.3 for s in r["steps"]))
    words = "a Candle 2"
    assert keys(q=words) == wanted(
        lambda u, e, r: any(words.lower() in t.next_observation.lower() for t in e.transitions)
    ) != []  # fmt: skip
    assert keys(q="%' OR 1=1 --") == [] == keys(q="_____")
    turns = _listed(ask, view="turns", entropy=0.25, outcome="failed", invalid=True)
    expected = [
        (key, t.step)
        for key, (_, e, r) in files.items()
        for t, s in zip(e.transitions, r["steps"], strict=True)
        if not e.success and not t.action_is_valid and s["entropy"] >= 0.25
    ]
    assert [(row["key"], row["step"]) for row in turns] == expected != []
    by_surprise = [row["surprise"] for row in _listed(ask, view="turns", sort="surprise")]
    assert by_surprise == sorted(by_surprise, reverse=True)


def test_an_episode_is_shown_as_it_is_in_its_files(opened: Opened, small_run: Path) -> None:
    ask, files = opened(small_run), _episodes(small_run)
    for key in list(files)[::31]:
        _, episode, record = files[key]
        shown = ask("episode", run="small", key=key)
        assert shown["lambda"] == record["lambda"] and shown["rho"] == record["rho"]
        assert shown["return"] == episode.total_reward and key in shown["group"]
        for turn, t, step in zip(shown["turns"], episode.transitions, record["steps"], strict=True):
            assert turn["observation"] == t.next_observation and turn["action"] == t.action
            assert turn["tokens"] == step and turn["admissible"] == step["admissible"]
            assert "\n".join(text for _, text in turn["prompt"]) == t.prompt
        beside = ask("group", run="small", key=key)["episodes"]
        assert [e["key"] for e in beside] == shown["group"]
        assert {e["task_id"] for e in beside} == {episode.task_id}


def test_a_row_is_found_in_a_long_list(opened: Opened, small_run: Path) -> None:
    ask = opened(small_run)
    rows = _listed(ask, view="turns", invalid=True)
    row = rows[len(rows) // 2]
    key = f"{row['key']}:{row['step']}"
    page = ask("list", run="small", view="turns", invalid=True, around=key, limit=20)
    assert page["at"] == len(rows) // 2
    assert page["rows"][page["at"] - page["offset"]] == row
    assert ask("list", run="small", around="nothing.7")["at"] is None


def test_a_run_is_followed_while_it_trains(opened: Opened, small_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "small"
    run.mkdir()
    for name in ("rollouts", "tokens"):
        (run / name).mkdir()
        shutil.copy(small_run / name / "000001.jsonl", run / name)
    lines = (small_run / "metrics.jsonl").read_text().splitlines(keepends=True)
    shutil.copy(small_run / "config.json", run)
    (run / "metrics.jsonl").write_text(lines[0] + lines[1][:40])
    ask = opened(run)
    assert ask("run", run="small")["episodes"] == 8
    assert ask("curves", run="small")["update"] == [1]
    assert ask("pulse", run="small")["state"] == "training"
    before = ask("pulse", run="small")
    for name in ("tokens", "rollouts"):  # as training does: tokens first
        shutil.copy(small_run / name / "000002.jsonl", run / name)
    (run / "metrics.jsonl").write_text("".join(lines[:2]))
    wait_until(lambda: ask("run", run="small")["episodes"] == 16)
    assert ask("curves", run="small")["update"] == [1, 2]
    after = ask("pulse", run="small")
    assert after["episodes"] > before["episodes"] and after["curves"] != before["curves"]
    # a resumed run plays an update again
    shutil.copy(small_run / "tokens" / "000003.jsonl", run / "tokens" / "000002.jsonl")
    shutil.copy(small_run / "rollouts" / "000003.jsonl", run / "rollouts" / "new.part")
    os.replace(run / "rollouts" / "new.part", run / "rollouts" / "000002.jsonl")
    wanted = _episodes(small_run)["000003.0"][1].episode_id
    client = ask.client  # type: ignore[attr-defined]

    def shown() -> Any:  # between the old file and its new index: refused, never mixed up
        answer = client.get("/api/episode", params={"run": "small", "key": "000002.0"})
        assert answer.status_code in (200, 409)
        return answer.json()

    wait_until(lambda: shown().get("episode_id") == wanted)
    (run / "rollouts" / "000002.jsonl").unlink()
    wait_until(lambda: ask("run", run="small")["episodes"] == 8)
    ask("episode", 404, run="small", key="000002.0")


def _recorded(turn: dict[str, Any] | None = None, **changes: Any) -> str:
    step = Transition(
        "e", "t", "t#1", 0, "p", "o", "r", "a", 1.0, "o", True, False, True, {"success": True}
    )
    episode = Episode("e", "t", "t#1", transitions=[step]).to_dict()
    episode["transitions"][0] |= turn or {}
    return json.dumps(episode | changes)


def test_damaged_files_cost_only_what_is_damaged(opened: Opened, tmp_path: Path) -> None:
    run = tmp_path / "damaged"
    for name in ("rollouts", "tokens"):
        (run / name).mkdir(parents=True)
    good, half = _recorded(), {"action": "a\ud800b"}  # half a surrogate pair
    kept = [good, _recorded({"reward": math.nan}), _recorded(half), good]
    lost = [
        "{", "[1]", '{"env_id": 3}', _recorded({"reward": "much"}),
        _recorded({"reward": 10**400}), _recorded(task_type={"not": "a text"}),
    ]  # fmt: skip
    (run / "rollouts" / "000001.jsonl").write_text("\n".join([*kept, *lost, good, good[:20]]))
    (run / "rollouts" / "000010.jsonl").write_bytes(b"PAR1 not really\n")
    (run / "tokens" / "000001.jsonl").write_text(
        '{"episode_id": "t#1", "lambda": NaN, "steps": [{"step": 0, "observation": '
        '{"tokens": ["o"], "logprobs": [-Infinity]}}, 7]}\n[]\n'
    )
    (run / "metrics.jsonl").write_text('{"update": 1, "reward_mean": NaN}\n{"update"\n\n"x"\n')
    (run / "config.json").write_text("[")
    ask = opened(run)
    rows = ask("list", run="damaged")["rows"]
    assert {f"000001.{number}" for number in (0, 2, 3, 10)} <= {row["key"] for row in rows}
    info = ask("run", run="damaged")
    assert info["settings"] == {}
    for number in range(5, 11):
        assert any(f"record {number}" in note for note in info["notes"])
    for row in rows:
        ask("episode", run="damaged", key=row["key"])
    assert ask("episode", run="damaged", key="000001.2")["turns"][0]["action"] == "a\ud800b"
    ask("curves", run="damaged"), ask("pulse", run="damaged"), ask("runs")


def test_equal_task_ids_of_two_environments_are_two_groups(opened: Opened, tmp_path: Path) -> None:
    run = tmp_path / "two"
    run.mkdir()
    lines = [_recorded(env_id=name) for name in ("test/A-v0", "test/B-v0", "test/A-v0")]
    (run / "episodes_before.jsonl").write_text("\n".join([*lines, ""]))
    ask = opened(run)
    assert [row["n"] for row in ask("list", run="two", view="groups")["rows"]] == [2, 1]


HOSTILE = [
    "../../etc/passwd", "..%2f..%2fetc%2fpasswd", "/etc/passwd", "000001.0; DROP TABLE episodes",
    "000001.-1", "000001.99999999999999999999", ".", "", "%00", "small/../small", "é.٣",
]  # fmt: skip


def test_no_name_reaches_the_file_system(opened: Opened, small_run: Path) -> None:
    ask = opened(small_run)
    for name in HOSTILE:
        ask("episode", 404, run="small", key=name)
        ask("group", 404, run="small", key=name)
        for what in ("run", "curves", "list", "pulse"):
            ask(what, 404, run=name or "?")
        answer = ask.client.get(f"/static/{name}")  # type: ignore[attr-defined]
        assert answer.status_code in (307, 404) and "root:" not in answer.text


@pytest.fixture(scope="module")
def client(small_run: Path) -> TestClient:
    return TestClient(create_app(small_run), ADDRESS)


@given(
    parameters=st.dictionaries(
        st.sampled_from(["view", "q", "outcome", "type", "invalid", "entropy", "first", "last",
                         "sort", "offset", "limit", "around", "phase", "key"]),
        st.one_of(st.text(max_size=30), st.integers().map(str), st.floats().map(str)),
    )
)  # fmt: skip
def test_no_question_breaks_it(client: TestClient, parameters: dict[str, str]) -> None:
    for what in ("list", "episode"):
        answer = client.get(f"/api/{what}", params={"run": "small", **parameters})
        assert answer.status_code < 500
        answer.json()


def test_its_own_names_are_answered(small_run: Path) -> None:
    client = TestClient(create_app(small_run, hosts=["named.example"]), ADDRESS)
    for host in ("localhost", "[::1]:8765", "192.168.0.7:8765", "named.example"):
        for path in ("/", "/api/runs", "/static/main.js"):
            assert client.get(path, headers={"Host": host}).status_code == 200
    for host in ("localhost.evil.example:8765", ""):
        assert client.get("/", headers={"Host": host}).status_code == 421


def test_headers_allow_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "<style" not in page.text and "onclick" not in page.text and "http" not in page.text
    names = [part.split('"')[0] for part in page.text.split('"/static/')[1:]]
    assert len(names) > 5
    for name in names:
        assert client.get(f"/static/{name}").status_code == 200
    assert client.post("/api/runs").status_code == 405
    assert client.get("/docs").status_code == client.get("/openapi.json").status_code == 404


def test_runs_of_a_folder_are_found(small_run: Path, opened: Opened, tmp_path: Path) -> None:
    for name in ("grid/a-seed0", "grid/b-seed0"):
        (tmp_path / name).mkdir(parents=True)
        shutil.copy(small_run / "config.json", tmp_path / name)
    write_evaluation(tmp_path / "grid" / "b-seed0" / "eval-panel")
    (tmp_path / "grid" / "logs").mkdir()
    (tmp_path / "grid" / "a-seed0" / "checkpoints" / "best").mkdir(parents=True)
    model = tmp_path / "grid" / "warm-starts" / "0" / "model"  # shared, with settings of its own
    model.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (model / name).write_text("{}")
    ask = opened(tmp_path)
    assert {row["name"]: row["kind"] for row in ask("runs")["runs"]} == {
        "grid/a-seed0": "training",
        "grid/b-seed0": "training",
        "grid/b-seed0/eval-panel": "evaluation",
    }
    assert ask("runs")["first"] is None
    assert list(find_runs(tmp_path / "grid" / "b-seed0")) == ["b-seed0", "b-seed0/eval-panel"]


@given(st.lists(st.text("ab\n", max_size=8), max_size=12), st.lists(st.text("ab\n", max_size=8)))
def test_a_prompts_parts_are_the_prompt(old: list[str], new: list[str]) -> None:
    earlier, text = "\n".join(old), "\n".join(new)
    parts = changes(earlier, text)
    assert "\n".join(part for _, part in parts) == text
    if earlier == text and text:
        assert [kind for kind, _ in parts] == ["same"]


@given(st.lists(st.sampled_from(["<think>", "</think>", "<action>", "</action>", "x", "<", "\n"])))
def test_a_responses_parts_are_the_response(pieces: list[str]) -> None:
    text = "".join(pieces)
    whole = "".join(t if kind == "text" else f"<{kind}>{t}</{kind}>" for kind, t in blocks(text))
    assert whole == text


def test_the_viewer_starts_without_torch() -> None:
    code = "import sys, paw_train.viewer.app; print('torch' in sys.modules)"
    assert said("-c", code) == "False"


def test_an_evaluation_is_not_shown_as_training(tmp_path: Path, opened: Opened) -> None:
    write_evaluation(tmp_path / "eval-x")
    ask = opened(tmp_path)
    [run] = ask("runs")["runs"]
    wanted = {
        "kind": "evaluation",
        "agent": "reflexion",
        "model": "openai:small-model",
        "seed": 7,
        "cost": "$0.0421",
        "score": 0.5,
        "algorithm": None,
        "world_model": None,
        "state": "finished",
    }
    assert {name: run[name] for name in wanted} == wanted
    found = ask("state", run="eval-x")["evaluation"]
    assert found["overall"]["success_rate"] == pytest.approx(1 / 3)
    assert [(part["name"], part["n"]) for part in found["types"]] == [("cool", 2), ("clean", 1)]
    assert found["measured"]["truncated_rate"] == 0.25
    assert found["measured"]["something_new"] == "kept"  # of a version that this one does not know
    assert found["details"]["agent_settings"] == {"trials": 3, "examples": 2}


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


def test_requests_are_shown_exactly_as_sent(tmp_path: Path) -> None:
    folder = write_evaluation(tmp_path / "e")
    episode = next(iter(read_jsonl(folder / "episodes.jsonl")))
    turns = conversation(episode, {})
    before: list[Any] = []
    for turn, step in zip(turns, range(2), strict=True):
        [call] = turn["calls"]
        before = [*before[: call["same"]], *call["messages"]]
        assert len(before) == 1 + 2 * step
        assert EXAMPLE in before[0]["content"] and REFLECTION in before[0]["content"]
    assert before[2]["content"] == episode.transitions[0].next_observation
    assert notes(episode)["reflections"] == [REFLECTION]
    assert "calls" not in notes(episode)
    for damaged in (None, 3, [3], [{}], [{"messages": 3}]):
        assert calls(damaged) == []
    assert calls([{"same": -1, "messages": [1, {"role": "user"}]}]) == [
        {"same": 0, "messages": [{"role": "user"}]}
    ]


def test_settings_that_differ(tmp_path: Path, opened: Opened) -> None:
    a: dict[str, Any] = {
        "name": "a",
        "seed": 0,
        "world_model": {"loss": "cmae", "rho": 0.2},
        "env": {},
    }
    b: dict[str, Any] = {
        "name": "b",
        "seed": 0,
        "world_model": {"loss": "ce"},
        "env": {"split": "x"},
    }
    for settings in (a, b):
        (tmp_path / settings["name"]).mkdir()
        (tmp_path / settings["name"] / "config.json").write_text(json.dumps(settings))
    ask = opened(tmp_path)
    assert ask("differences", run=["a", "b"])["differences"] == [
        {"key": "world_model.loss", "values": ["cmae", "ce"]},
        {"key": "world_model.rho", "values": ["0.2", None]},
        {"key": "env.split", "values": [None, "x"]},
    ]
    assert differences([a]) == differences([]) == []
    forms = [settings_of({"action_format": form}) for form in ("tags", "tools")]
    assert [one["key"] for one in differences(forms)] == ["action_format"]
    ask("differences", 404, run=["a", "nowhere"])


def test_alarms_are_told(tmp_path: Path, opened: Opened, small_run: Path) -> None:
    shutil.copy(small_run / "config.json", tmp_path)
    rows = [
        {"update": u, "success_rate": (0.6 if u < 30 else 0.05) + u % 2 / 50} for u in range(1, 61)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    [alarm] = opened(tmp_path)("runs")["runs"][0]["alarms"]
    assert alarm["title"] == "Success has collapsed" and alarm["ongoing"]
    assert 30 <= alarm["first"] < 46


DAMAGE = {
    "empty": b"",
    "truncated": b'{"update": 1, "success_rate": 0.5}\n{"update": 2, "succ',
    "not UTF-8": b'{"update": 1, "name": "\xff\xfe\xe9"}\n\xff\xfe\n',
    "other JSON": b"[1, 2]\n",
    "zeros": b"\x00" * 64,
}


@pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE)
def test_damaged_files_are_no_end(tmp_path: Path, opened: Opened, content: bytes) -> None:
    run = "config.json metrics.jsonl validation.jsonl eval_after.json episodes.jsonl"
    for folder, names in (("run", run), ("evaluation", "result.json episodes.jsonl")):
        (tmp_path / folder).mkdir()
        for name in names.split():
            (tmp_path / folder / name).write_bytes(content)
    ask = opened(tmp_path)
    listed = {row["name"]: row for row in ask("runs")["runs"]}
    assert listed["evaluation"]["kind"] == "evaluation" and listed["run"]["kind"] == "training"
    for name in listed:
        assert ask("run", run=name)["episodes"] == 0
        ask("curves", run=name)
    assert ask("list", run="run")["rows"] == []
