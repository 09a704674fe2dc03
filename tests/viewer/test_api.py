"""The viewer's answers: against the files themselves, while a run grows, and to hostile requests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from hypothesis import given
from hypothesis import strategies as st
from servers import wait_until
from starlette.testclient import TestClient

from paw_gym.transition import Episode, Transition, read_jsonl
from paw_train.reporting.pages import blocks, changes
from paw_train.viewer.app import create_app
from paw_train.viewer.folders import find_runs

Ask = Callable[..., Any]


@pytest.fixture
def opened() -> Iterator[Callable[[Path], Ask]]:
    clients: list[TestClient] = []

    def open_run(folder: Path) -> Ask:
        client = TestClient(create_app(folder), base_url="http://127.0.0.1")
        client.__enter__()
        clients.append(client)

        def ask(name: str, status: int = 200, **parameters: Any) -> Any:
            answer = client.get(f"/api/{name}", params=parameters)
            assert answer.status_code == status, answer.text
            return answer.json()

        name = ask("runs")["runs"][0]["name"]
        wait_until(lambda: ask("pulse", run=name)["indexing"] is None)
        ask.client = client  # type: ignore[attr-defined]
        return ask

    yield open_run
    for client in clients:
        client.__exit__(None, None, None)


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


def test_lists_hold_what_the_files_do(opened: Callable[[Path], Ask], small_run: Path) -> None:
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


def test_filters_against_the_files(opened: Callable[[Path], Ask], small_run: Path) -> None:
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


def test_an_episode_is_shown_as_it_is_in_its_files(
    opened: Callable[[Path], Ask], small_run: Path
) -> None:
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


def test_a_row_is_found_in_a_long_list(opened: Callable[[Path], Ask], small_run: Path) -> None:
    ask = opened(small_run)
    rows = _listed(ask, view="turns", invalid=True)
    row = rows[len(rows) // 2]
    key = f"{row['key']}:{row['step']}"
    page = ask("list", run="small", view="turns", invalid=True, around=key, limit=20)
    assert page["at"] == len(rows) // 2
    assert page["rows"][page["at"] - page["offset"]] == row
    assert ask("list", run="small", around="nothing.7")["at"] is None


def test_a_run_is_followed_while_it_trains(
    opened: Callable[[Path], Ask], small_run: Path, tmp_path: Path
) -> None:
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


def test_damaged_files_cost_only_what_is_damaged(
    opened: Callable[[Path], Ask], tmp_path: Path
) -> None:
    run = tmp_path / "damaged"
    (run / "rollouts").mkdir(parents=True)
    (run / "tokens").mkdir()
    good = Episode("e", "t", "t#1", transitions=[
        Transition("e", "t", "t#1", 0, "p", "o", "r", "a", 1.0, "o", True, False, True, {"success": True})
    ])  # fmt: skip
    line = json.dumps(good.to_dict())
    strange = good.to_dict()
    strange["transitions"][0]["reward"] = "much"
    lines = [
        line,
        "{",
        "[1]",
        '{"env_id": 3}',
        json.dumps(strange),
        line.replace("1.0", "NaN"),
        line,
    ]
    (run / "rollouts" / "000001.jsonl").write_text("\n".join(lines) + "\n" + line[:20])
    (run / "rollouts" / "000010.jsonl").write_bytes(b"PAR1 not really\n")
    (run / "tokens" / "000001.jsonl").write_text(
        '{"episode_id": "t#1", "lambda": NaN, "steps": [{"step": 0, "observation": '
        '{"tokens": ["o"], "logprobs": [-Infinity]}}, 7]}\n[]\n'
    )
    (run / "metrics.jsonl").write_text('{"update": 1, "reward_mean": NaN}\n{"update"\n\n"x"\n')
    (run / "config.json").write_text("[")
    ask = opened(run)
    rows = ask("list", run="damaged")["rows"]
    assert {"000001.0", "000001.6"} <= {row["key"] for row in rows}
    info = ask("run", run="damaged")
    assert any("damaged" in note for note in info["notes"]) and info["settings"] == {}
    for row in rows:
        ask("episode", run="damaged", key=row["key"])
    ask("curves", run="damaged"), ask("pulse", run="damaged"), ask("runs")


def _many(folder: Path, name: str, *actions: str) -> Path:
    """A run of episodes with a turn each."""
    (folder / name / "rollouts").mkdir(parents=True)
    lines = []
    for number, action in enumerate(actions):
        turn = Transition(
            "e", "t", f"t#{action}{number}", 0, "p", "o", action, action, 1.0, "o",
            True, False, True, {"success": True},
        )  # fmt: skip
        episode = Episode("e", "t", f"t#{action}{number}", transitions=[turn])
        lines.append(json.dumps(episode.to_dict()))
    (folder / name / "rollouts" / "000001.jsonl").write_text("\n".join(lines) + "\n")
    return folder / name


def test_half_a_surrogate_pair_does_not_stop_the_index(
    opened: Callable[[Path], Ask], tmp_path: Path
) -> None:
    run = _many(tmp_path, "odd", "fine", "a\ud800b", "fine")
    ask = opened(run)
    rows = ask("list", run="odd")["rows"]
    assert len(rows) == 3 and ask("run", run="odd")["notes"] == []
    for row in rows:
        ask("episode", run="odd", key=row["key"])
    assert ask("episode", run="odd", key=rows[1]["key"])["turns"][0]["action"] == "a\ud800b"


def test_a_value_that_the_index_cannot_hold_costs_its_record_alone(
    opened: Callable[[Path], Ask], tmp_path: Path
) -> None:
    run = _many(tmp_path, "huge", "one", "two")
    first, second = (run / "rollouts" / "000001.jsonl").read_text().splitlines()
    number, kind = json.loads(first), json.loads(first)
    number["transitions"][0]["reward"] = 10**400
    kind["task_type"] = {"not": "a text"}
    lines = [first, json.dumps(number), json.dumps(kind), second]
    (run / "rollouts" / "000001.jsonl").write_text("\n".join(lines) + "\n")
    ask = opened(run)
    assert [row["key"] for row in ask("list", run="huge")["rows"]] == ["000001.0", "000001.3"]
    [note] = ask("run", run="huge")["notes"]
    assert "record 2" in note and "record 3" in note


HOSTILE = [
    "../../etc/passwd", "..%2f..%2fetc%2fpasswd", "/etc/passwd", "000001.0; DROP TABLE episodes",
    "000001.-1", "000001.99999999999999999999", ".", "", "%00", "small/../small", "é.٣",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_reaches_the_file_system(
    opened: Callable[[Path], Ask], small_run: Path, name: str
) -> None:
    ask = opened(small_run)
    ask("episode", 404, run="small", key=name)
    ask("group", 404, run="small", key=name)
    for what in ("run", "curves", "list", "pulse"):
        ask(what, 404, run=name or "?")
    answer = ask.client.get(f"/static/{name}")  # type: ignore[attr-defined]
    assert answer.status_code in (307, 404) and "root:" not in answer.text


@given(
    parameters=st.dictionaries(
        st.sampled_from(["view", "q", "outcome", "type", "invalid", "entropy", "first", "last",
                         "sort", "offset", "limit", "around", "phase", "key"]),
        st.one_of(st.text(max_size=30), st.integers().map(str), st.floats().map(str)),
    )
)  # fmt: skip
def test_no_question_breaks_it(small_run: Path, parameters: dict[str, str]) -> None:
    global _fuzzed
    if _fuzzed is None:
        _fuzzed = TestClient(create_app(small_run), base_url="http://127.0.0.1")
    for what in ("list", "episode"):
        answer = _fuzzed.get(f"/api/{what}", params={"run": "small", **parameters})
        assert answer.status_code < 500
        answer.json()


_fuzzed: TestClient | None = None


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:8765", 200), ("localhost", 200), ("[::1]:8765", 200), ("evil.example", 421),
     ("127.0.0.1.evil.example", 421), ("localhost.evil.example:8765", 421), ("", 421),
     ("192.168.0.7:8765", 200), ("named.example", 200)],
)  # fmt: skip
def test_only_its_own_names_are_answered(small_run: Path, host: str, status: int) -> None:
    client = TestClient(create_app(small_run, hosts=["named.example"]), base_url="http://127.0.0.1")
    for path in ("/", "/api/runs", "/static/main.js"):
        assert client.get(path, headers={"Host": host}).status_code == status


def test_headers_allow_nothing_from_elsewhere(small_run: Path) -> None:
    client = TestClient(create_app(small_run), base_url="http://127.0.0.1")
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


def test_a_token_is_asked_for(small_run: Path) -> None:
    client = TestClient(create_app(small_run, token="secret"), base_url="http://127.0.0.1")
    assert client.get("/api/runs").status_code == 401
    assert client.get("/api/runs", auth=("me", "secret")).status_code == 200


def test_runs_of_a_folder_are_found(small_run: Path, tmp_path: Path) -> None:
    for name in ("grid/a-seed0", "grid/b-seed0"):
        shutil.copytree(small_run, tmp_path / name)
    (tmp_path / "grid" / "logs").mkdir()
    (tmp_path / "grid" / "a-seed0" / "checkpoints" / "best").mkdir(parents=True)
    model = tmp_path / "grid" / "warm-starts" / "0" / "model"  # shared, with settings of its own
    model.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (model / name).write_text("{}")
    assert list(find_runs(tmp_path)) == ["grid/a-seed0", "grid/b-seed0"]
    with pytest.raises(ValueError, match="holds no run"):
        find_runs(tmp_path / "grid" / "logs")
    with pytest.raises(ValueError, match="no folder"):
        find_runs(tmp_path / "nowhere")


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
    code = "import sys, paw_train.viewer.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
