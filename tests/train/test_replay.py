"""``paw replay``: a result holds, or what was changed is named; a hostile one costs nothing."""

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
Change = Callable[[Record, list[Record]], Any]
"""of a result and its episodes"""
Said = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real evaluations: of two seeds, with scores that are not just success, of a fixed panel."""
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


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """(exit code, words) of ``paw replay``."""

    def said(*arguments: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as end:
            main(["replay", *map(str, arguments)])
        out = capsys.readouterr()
        return int(end.value.code or 0), " ".join((out.err + out.out).split())

    return said


def changed(folder: Path, change: Change) -> None:
    files = folder / "result.json", folder / "episodes.jsonl"
    result = json.loads(files[0].read_text())
    episodes = [json.loads(line) for line in files[1].read_text().splitlines()]
    change(result, episodes)
    files[0].write_text(json.dumps(result))
    files[1].write_text("".join(json.dumps(episode) + "\n" for episode in episodes))


@pytest.mark.parametrize("which", ["alfworld", "webshop", "sudoku"])
def test_a_real_result_holds(evaluated: Path, said: Said, which: str) -> None:
    code, text = said(evaluated / which)
    assert code == 0, text
    assert "HOLDS: all" in text and "DIFFERS" not in text
    assert "NOT CHECKED: that the named model" in text
    rest = text.partition("NOT CHECKED")[2]
    for field in ("model_hash", "prompt_hash", "sampling", "settings.rollout", "agent_settings"):
        assert field in rest, field
    for field in ("success_rate", "ci95", " n,", "mean_reward", "mean_steps", "successes"):
        assert field not in rest, field
    if which == "alfworld":
        assert "Environment: paw_gym/ALFWorld-v0, max_steps=6 " in text


def _step(**values: Any) -> Change:
    return lambda r, e: e[4]["transitions"][2].update(values)


def _info(**values: Any) -> Change:
    return lambda r, e: e[4]["transitions"][-1]["info"].update(values)


def _env(**values: Any) -> Change:
    return lambda r, e: r["settings"]["env"].update(values)


def _seed(result: Record, episodes: list[Record]) -> None:
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
        (lambda r, e: e.pop(1), "is missing in episodes.jsonl"),
        (lambda r, e: e.append(e[0]), "which is not expected there"),
        (lambda r, e: e[4].update(task_type="easy"), "the task's type"),
        (lambda r, e: r.update(success_rate=0.9), "success_rate is recorded as 0.9, and is 0.0"),
        (lambda r, e: r["score"].update(ci95=[0.2, 0.3]), "score is recorded as"),
        (lambda r, e: r["runs"][0].update(successes="111"), "runs is recorded as"),
        (lambda r, e: r["runs"][1].update(seed=7), "the environment's seed is recorded"),
        (lambda r, e: r["settings"].update(panel_seed=7), "panel_hash is recorded as"),
        (_env(invalid_penalty=5.0), "panel is recorded as"),
        (_env(kwargs={"max_steps": 9}), "environment.arguments."),
        (lambda r, e: r["environment"].update(behaviour="0" * 64), "environment.behaviour"),
        (lambda r, e: r.update(panel="alfworld/procedural"), "panel is recorded as 'alfworld/proc"),
        (lambda r, e: r.update(panel="sudoku/4x4"), "panel: sudoku/4x4 is of paw_gym/Sudoku-v0"),
        (lambda r, e: r.update(panel="alfworld/valid_seen"), "alfworld, which was not used"),
        (lambda r, e: r.update(complete=False), "complete is recorded as False"),
        (
            lambda r, e: e[4]["transitions"].append(e[4]["transitions"][-1]),
            "the environment ended the episode before it",
        ),
        (lambda r, e: e[4]["transitions"].pop(), "why 1 episode(s) ended before the environment"),
    ],
)
def test_what_was_changed_is_named(alfworld: Path, said: Said, change: Change, what: str) -> None:
    changed(alfworld, change)
    code, text = said(alfworld)
    assert code == 1 and what in text and "HOLDS" not in text, text


def test_another_reward_is_in_the_panels_name_and_said() -> None:
    env = EnvSettings(id="paw_gym/Sudoku-v0", invalid_penalty=5.0)
    title = panel_title("sudoku/4x4", env, "test", 200, 1234, [str(n) for n in range(200)])
    assert title == "sudoku/4x4 (invalid_penalty=5.0)"
    assert fixed_panel(title) == fixed_panel("sudoku/4x4[3] (changed)") == "sudoku/4x4"
    assert "invalid_penalty=5.0" in replay._changed(env)


def test_a_renamed_model_holds_and_nobody_looked(alfworld: Path, said: Said) -> None:
    changed(alfworld, lambda r, e: r.update(model="a much better one"))
    code, text = said(alfworld)
    assert code == 0
    assert "that the named model, prompts and settings gave these actions" in text
    assert ", model, " in text.partition("NOT CHECKED")[2]


def test_of_missing_episodes_the_others_are_checked(alfworld: Path, said: Said) -> None:
    def change(result: Record, episodes: list[Record]) -> None:
        last = result["runs"][1]
        last["successes"] = last["successes"][:-1] + "-"
        episodes.pop()

    changed(alfworld, change)
    text = said(alfworld)[1]
    assert "is missing in" not in text
    assert "complete is recorded as True, and is False" in text


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (_env(id="evil:me/X-v0"), "add --import evil"),
        (_env(template="/etc/passwd"), "names a path"),
        (_env(kwargs={"data_dir": "/d"}), "env.kwargs.data_dir=/d"),
        (lambda r, e: r["environment"].update(split="../../x"), "as its split"),
        (_env(id="paw_gym/Remote-v0"), "whose answers prove nothing"),
        (lambda r, e: r.pop("environment"), "does not record its environment"),
        (lambda r, e: r.update(runs=3), "is not a whole result"),
        (lambda r, e: r.update(runs=[]), "holds no episode that could be replayed"),
        (lambda r, e: r["settings"].update(env=[]), "does not describe"),
    ],
)
def test_a_hostile_result_reaches_nothing(
    alfworld: Path, monkeypatch: pytest.MonkeyPatch, said: Said, change: Change, what: str
) -> None:
    (alfworld / "evil.py").write_text("open('ran', 'w').close()\n")
    monkeypatch.chdir(alfworld)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    changed(alfworld, change)
    code, text = said(".")
    assert code == 2 and what in text, text
    assert not (alfworld / "ran").exists()
