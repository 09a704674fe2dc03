"""``paw replay``: a result holds, or what was changed in it is named; a hostile one costs nothing."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paw_train.cli import main
from paw_train.evaluation import evaluate_from_args, replay
from paw_train.evaluation.panels import fixed_panel, panel_title
from paw_train.settings import EnvSettings

Record = dict[str, Any]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real evaluations: two seeds of a world, one whose scores are not just success, one of a fixed panel."""
    folder = tmp_path_factory.mktemp("results")
    alfworld = ["evaluation.tasks=3", "env.kwargs.max_steps=6"]
    webshop = ["env.id=paw_gym/WebShop-v0", "evaluation.tasks=2", "evaluation.split=test"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAW_CACHE_DIR", str(folder / "cache"))
        evaluate_from_args("random", alfworld, str(folder / "alfworld"), seeds=2, quiet=True)
        evaluate_from_args("random", webshop, str(folder / "webshop"), quiet=True)
        evaluate_from_args(
            "random", ["evaluation.tasks=2"], str(folder / "sudoku"), panel="sudoku/4x4", quiet=True
        )
    return folder


@pytest.fixture
def alfworld(evaluated: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(evaluated / "alfworld", tmp_path / "alfworld"))


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        main(["replay", *map(str, arguments)])
    out = capsys.readouterr()
    return int(end.value.code or 0), " ".join((out.err + out.out).split())


def differs(capsys: pytest.CaptureFixture[str], folder: Path, what: str) -> None:
    code, text = said(capsys, folder)
    assert code == 1
    assert what in text, text
    assert "HOLDS" not in text


def changed_result(folder: Path, change: Callable[[Record], Any]) -> None:
    result = json.loads((folder / "result.json").read_text())
    change(result)
    (folder / "result.json").write_text(json.dumps(result))


def changed_episodes(folder: Path, change: Callable[[list[Record]], Any]) -> None:
    file = folder / "episodes.jsonl"
    episodes = [json.loads(line) for line in file.read_text().splitlines()]
    change(episodes)
    file.write_text("".join(json.dumps(episode) + "\n" for episode in episodes))


@pytest.mark.parametrize("which", ["alfworld", "webshop", "sudoku"])
def test_a_real_result_holds(
    evaluated: Path, capsys: pytest.CaptureFixture[str], which: str
) -> None:
    code, text = said(capsys, evaluated / which)
    assert code == 0, text
    assert "HOLDS: all" in text and "DIFFERS" not in text
    assert "NOT CHECKED: that the named model" in text
    for field in ("model_hash", "prompt_hash", "sampling", "settings.rollout", "agent_settings"):
        assert field in text.partition("NOT CHECKED")[2], field
    if which == "alfworld":
        assert "Environment: paw_gym/ALFWorld-v0, max_steps=6 " in text


def _step(**values: Any) -> Callable[[list[Record]], None]:
    return lambda episodes: episodes[4]["transitions"][2].update(values)


def _info(**values: Any) -> Callable[[list[Record]], None]:
    return lambda episodes: episodes[4]["transitions"][-1]["info"].update(values)


def _another_step(episodes: list[Record]) -> None:
    episodes[4]["transitions"].append(episodes[4]["transitions"][-1])


def _seed(episodes: list[Record]) -> None:
    episodes[4]["episode_id"] = episodes[4]["episode_id"].replace("#", "#1")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (_step(reward=1.0), "step 2: the reward is recorded as 1.0, and is 0.0"),
        (_step(next_observation="You win."), "step 2: the observation is recorded as 'You win.'"),
        (_step(observation="You win."), "step 2: the observation before it"),
        (_step(action="look"), "step 2: the observation"),
        (_step(terminated=True), "step 2: whether the rules ended the episode"),
        (_step(action_is_valid=False), "step 2: whether the action was valid"),
        (_info(env_reward=1.0), "step 5: the environment's reward"),
        (_info(success=True), "step 5: success is recorded as True"),
        (_info(score=1.0), "step 5: the score is recorded as 1.0"),
        (_seed, "the environment's seed is recorded"),
        (lambda episodes: episodes.pop(1), "is missing in episodes.jsonl"),
        (lambda episodes: episodes.append(episodes[0]), "which is not expected there"),
        (lambda episodes: episodes[4].update(task_type="easy"), "the task's type"),
    ],
)
def test_a_changed_episode_is_named(
    alfworld: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[list[Record]], None],
    what: str,
) -> None:
    changed_episodes(alfworld, change)
    differs(capsys, alfworld, what)


def test_a_step_after_the_end_is_refused(
    alfworld: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed_episodes(alfworld, _another_step)
    code, text = said(capsys, alfworld)
    assert code == 2 and "7 steps, and the environment ends an episode after 6" in text


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda r: r.update(success_rate=0.9), "success_rate is recorded as 0.9, and is 0.0"),
        (lambda r: r.update(ci95=[0.0, 0.1]), "ci95 is recorded as [0.0, 0.1]"),
        (lambda r: r.update(n=30), "n is recorded as 30, and is 3"),
        (lambda r: r.update(mean_reward=50.0), "mean_reward is recorded as 50.0, and is 0.0"),
        (lambda r: r["score"].update(ci95=[0.2, 0.3]), "score is recorded as"),
        (lambda r: r["runs"][0].update(successes="111"), "runs is recorded as"),
        (lambda r: r["runs"][1].update(seed=7), "the environment's seed is recorded"),
        (lambda r: r["settings"].update(panel_seed=7), "panel_hash is recorded as"),
        (lambda r: r["settings"]["env"].update(invalid_penalty=5.0), "panel is recorded as"),
        (lambda r: r["settings"]["env"]["kwargs"].update(max_steps=9), "environment.arguments."),
        (lambda r: r["environment"]["arguments"].update(max_steps=50), "environment.arguments."),
        (lambda r: r["environment"].update(behaviour="0" * 64), "environment.behaviour"),
        (lambda r: r.update(panel="alfworld/procedural"), "panel is recorded as 'alfworld/proc"),
        (lambda r: r.update(panel="sudoku/4x4"), "panel: sudoku/4x4 is of paw_gym/Sudoku-v0"),
        (lambda r: r.update(panel="alfworld/valid_seen"), "data set alfworld, which was not used"),
        (lambda r: r.update(complete=False), "complete is recorded as False"),
    ],
)
def test_a_changed_number_is_named(
    alfworld: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Record], None],
    what: str,
) -> None:
    changed_result(alfworld, change)
    differs(capsys, alfworld, what)


def test_another_reward_is_in_the_panels_name_and_said() -> None:
    env = EnvSettings(id="paw_gym/Sudoku-v0", invalid_penalty=5.0)
    title = panel_title("sudoku/4x4", env, "test", 200, 1234, [str(n) for n in range(200)])
    assert title == "sudoku/4x4 (invalid_penalty=5.0)"
    assert fixed_panel(title) == fixed_panel("sudoku/4x4[3] (changed)") == "sudoku/4x4"
    assert "invalid_penalty=5.0" in replay._changed(env)


def test_a_renamed_model_holds_and_the_line_says_that_nobody_looked(
    alfworld: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed_result(alfworld, lambda r: r.update(model="a much better one"))
    code, text = said(capsys, alfworld)
    assert code == 0
    assert "that the named model, prompts and settings gave these actions" in text
    assert ", model, " in text.partition("NOT CHECKED")[2]


def test_episodes_that_were_cut_short_are_counted(
    alfworld: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed_episodes(alfworld, lambda episodes: episodes[4]["transitions"].pop())
    text = said(capsys, alfworld)[1]
    assert "why 1 episode(s) ended before the environment ended them" in text


def test_a_result_with_missing_episodes_is_checked_as_far_as_it_goes(
    evaluated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(evaluated / "webshop", tmp_path / "webshop"))
    changed_episodes(folder, lambda episodes: episodes.pop())
    changed_result(
        folder, lambda r: r["runs"][0].update(successes=r["runs"][0]["successes"][0] + "-")
    )
    text = said(capsys, folder)[1]
    assert "is missing in" not in text
    assert "complete is recorded as True, and is False" in text


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda r: r["settings"]["env"].update(id="evil:me/X-v0"), "add --import evil"),
        (lambda r: r["settings"]["env"].update(template="/etc/passwd"), "names a path"),
        (lambda r: r["settings"]["env"]["kwargs"].update(data_dir="/d"), "env.kwargs.data_dir=/d"),
        (lambda r: r["environment"].update(split="../../x"), "as its split"),
        (lambda r: r["settings"]["env"].update(id="paw_gym/Remote-v0"), "proves"),
        (lambda r: r.pop("environment"), "does not record its environment"),
        (lambda r: r.update(runs=[{"seed": 1, "successes": ""}] * 400_000), "claims more than"),
        (lambda r: r.update(runs=3), "is not a whole result"),
        (lambda r: r["settings"].update(env=[]), "does not describe its environment"),
    ],
)
def test_a_hostile_result_reaches_nothing(
    alfworld: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Record], None],
    what: str,
) -> None:
    (alfworld / "evil.py").write_text("open('ran', 'w').close()\n")
    monkeypatch.chdir(alfworld)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    changed_result(alfworld, change)
    code, text = said(capsys, ".")
    assert code == 2, text
    assert what.replace("proves", "whose answers prove nothing") in text
    assert not (alfworld / "ran").exists()


def test_what_is_read_is_bounded(
    alfworld: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(replay, "LARGEST_EPISODE", 1000)
    code, text = said(capsys, alfworld)
    assert code == 2 and "line 1 is longer than" in text
    monkeypatch.setattr(replay, "LARGEST_RESULT", 1000)
    code, text = said(capsys, alfworld)
    assert code == 2 and "which no result does" in text
