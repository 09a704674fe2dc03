"""Search QA in ``paw eval``: results by data set, and the averages that papers give."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from scripted import ScriptedPolicy

from paw_train.environments import agent_env_maker
from paw_train.evaluation import PanelRun, Plan, evaluate_from_args, make_panel
from paw_train.evaluation.terminal import Display
from paw_train.settings import EnvSettings
from paw_train.settings.rollout import RolloutSettings

QUESTIONS = {"nq": (2, 8), "hotpotqa": (1, 2), "popqa": (3, 4), "musique": (0, 5), "mine": (5, 5)}
"""data set: (questions whose answer is yes, all of them)"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, (yes, count) in QUESTIONS.items():
        (tmp_path / name).mkdir()
        lines = [
            {"id": str(i), "question": f"Is {name} {i} so?", "answer": "yes" if i < yes else "no"}
            for i in range(count)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / name / "dev.jsonl").write_text(text, encoding="utf-8")
    (tmp_path / "corpus.jsonl").write_text('{"id": "0", "contents": "\\"A\\"\\nb"}\n')
    return tmp_path


def _plan(folder: Path, dataset: list[str], seeds: tuple[int, ...] = (0,)) -> Plan:
    kwargs = {"dataset": dataset, "data_dir": str(folder)}
    env = EnvSettings(id="paw_gym/SearchQA-v0", kwargs=kwargs, history_length=None)
    tasks = agent_env_maker(env, "dev")().tasks
    return Plan(env, "dev", make_panel(tasks, "all of them", 99, 0), 0, RolloutSettings(), seeds)


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_averages_are_those_computed_by_hand(folder: Path, seeds: tuple[int, ...]) -> None:
    yes_man = ScriptedPolicy(lambda _: "<think>.</think><answer>Yes!</answer>")
    result, _ = PanelRun(_plan(folder, list(QUESTIONS), seeds), yes_man, records=False).evaluate()
    assert {k: (v["n"], v["success_rate"]) for k, v in result["by_type"].items()} == {
        name: (count, yes / count) for name, (yes, count) in QUESTIONS.items()
    }
    found = result["averages"]
    assert {k: v["success_rate"] for k, v in found.items()} == pytest.approx(
        {
            "in_domain": (0.25 + 0.5) / 2,
            "out_of_domain": (0.75 + 0.0) / 2,
            "average": (0.25 + 0.5 + 0.75 + 0.0) / 4,  # not of all 24 questions: that is 11 / 24
        }
    )
    assert result["success_rate"] == pytest.approx(11 / 24)
    assert {k: (v["n"], v["types"]) for k, v in found.items()} == {
        "in_domain": (10, ["nq", "hotpotqa"]),
        "out_of_domain": (9, ["popqa", "musique"]),
        "average": (19, ["nq", "popqa", "hotpotqa", "musique"]),
    }
    if len(seeds) == 1:  # of 2 in 8 and 1 in 2, Wilson: 0.0715-0.5907, 0.0945-0.9055
        assert found["in_domain"]["ci95"] == pytest.approx([0.15349, 0.63981], abs=1e-4)


def test_they_are_in_the_file_and_in_the_printed_table(folder: Path, tmp_path: Path) -> None:
    kwargs = {"env.kwargs.dataset": "nq+hotpotqa+popqa", "env.kwargs.data_dir": folder}
    few = {"env.id": "paw_gym/SearchQA-v0", "evaluation.split": "dev", "evaluation.tasks": 99}
    overrides = [f"{key}={value}" for key, value in {**few, **kwargs}.items()]
    path = evaluate_from_args("expert", overrides, str(tmp_path / "out"))
    result = json.loads(path.read_text(encoding="utf-8"))
    assert {v["success_rate"] for v in result["averages"].values()} == {1.0}
    display, text = Display(), io.StringIO()
    display.console = Console(file=text, width=120)
    display.result(result)
    rows = [line.split("│") for line in text.getvalue().splitlines() if "│" in line]
    table = {cells[1].strip(): [cell.strip() for cell in cells[2:4]] for cells in rows}
    assert table["nq"] == ["8", "100.0 %"]
    assert table["mean of 2: in_domain"] == ["10", "100.0 %"]
    assert table["mean of 3: average"] == ["14", "100.0 %"]
