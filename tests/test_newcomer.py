"""The path of somebody who is new here, command by command, in an empty folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from forked import Forked

from paw_gym.transition import read_jsonl

ROOT = Path(__file__).resolve().parents[1]
ENV = "my_maze/MyMaze-v0"

EDIT = {
    # the ten lines: another thing to find, and rooms that say how far it is
    '"train": (3, 4, 6, 7, 9),': '"train": (3, 4, 5),',
    '"valid_seen": (4, 7),  #': '"valid_seen": (3, 4),  #',
    '"valid_unseen": (5, 8, 10),  #': '"valid_unseen": (6, 7),  #',
    "Find the coin in one of": "Find the lamp in one of",
    '    if action == "take coin":': '    if action == "take lamp":',
    '"You take the coin. Well done.",': '"You take the lamp. It is light.",',
    '"take coin": at == self.state["coin"],': '"take lamp": at == self.state["coin"],',
    '" A coin lies on the floor."': '" A lamp stands on the floor."',
    'else " It is empty."': "else f\" A glow comes from {abs(at - self.state['coin'])} rooms away.\"",
    '[*way, "take coin"]': '[*way, "take lamp"]',
}
BUDGET = {
    "eval": "evaluation.tasks=2",
    "train": "updates=2 threads=1 checkpoint_every=1 cloning.episodes=16 cloning.steps=6 "
    "rollout.groups=2 rollout.group_size=2 evaluation.tasks=2 evaluation.selection_tasks=2 "
    "model.scratch.hidden=32 model.scratch.layers=1 model.scratch.heads=2",
}


PAW = """
import site, sys
from paw_gym import registration
from paw_train.cli import main
site.addsitedir(sys.argv.pop(1))
registration._PLUGINS_LOADED.clear()
registration.register_all()
main()
"""
"""what trains and evaluates is spared the import of the trainer; the rest is a process as it starts"""


def shown_lines() -> list[str]:
    page = (ROOT / "docs" / "register-your-environment.md").read_text(encoding="utf-8")
    code = "".join(re.findall(r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    lines = [line.partition("#")[0].strip() for line in code.splitlines()]
    return [line for line in lines if re.search("my-maze|MyMaze|runs/maze", line)]


@pytest.mark.slow
def test_from_nothing_to_a_report(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason='pip install ".[train]"')
    pytest.importorskip("hatchling", reason="building a package offline takes hatchling")
    python, site = _own_python(tmp_path)

    def call(*command: str, fails: bool = False) -> str:
        answer = subprocess.run(
            [str(python), "-m", *command], cwd=tmp_path, env=_environment(), capture_output=True
        )
        said = " ".join((answer.stdout + answer.stderr).decode().split())
        assert (answer.returncode != 0) == fails, said
        return said

    def paw(command: str, *arguments: str, fails: bool = False) -> str:
        if command in ("new-env", "check"):
            return call("paw_train.cli", command, *arguments, fails=fails)
        ended = Forked(PAW, site, command, *arguments, folder=tmp_path, COLUMNS="200").wait()
        assert ended.code == 0, ended.output
        return " ".join(ended.output.split())

    def shown(line: str) -> str:
        program, command, *rest = line.split()
        assert program == "paw", line
        return paw(command, *rest, *BUDGET.get(command, "").split())

    new_env, install, check, evaluate, train, report = shown_lines()
    said = shown(new_env)
    assert "pip install -e my-maze" in said
    assert "pip install -e" in paw("check", ENV, fails=True), "forgotten, and told so"
    pip = ("pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation")
    assert install.split() == ["pip", "install", "-e", "my-maze"]
    call(*pip, "--disable-pip-version-check", *install.split()[2:])

    assert "4 passed" in call("pytest", "-q", "-p", "no:cacheprovider", "my-maze")

    source = tmp_path / "my-maze" / "my_maze" / "env.py"
    text = source.read_text()
    for old, new in EDIT.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    source.write_text(text.replace("take lamp", "take lmp", 1))
    assert "reference_solver" in paw("check", "MyMaze", fails=True), "a slip, and it is found"
    source.write_text(text)
    said = shown(check)
    assert "26 passed." in said and f"paw train embedded env.id={ENV}" in said
    assert "100.0 %" in shown(evaluate)
    page = (tmp_path / "my-maze" / "README.md").read_text()
    assert all(line in page for line in (evaluate, f"paw train embedded env.id={ENV}"))

    said = shown(train)
    assert "another environment: my_maze/MyMaze-v0 uses its own defaults for env.kwargs" in said
    assert "open runs/maze/report.html" in said
    metrics = [json.loads(line) for line in (tmp_path / "runs/maze/metrics.jsonl").open()]
    assert [m["update"] for m in metrics] == [1, 2]
    [before, *_] = read_jsonl(tmp_path / "runs/maze/episodes_before.jsonl")
    assert before.instruction.startswith("Find the lamp")
    assert "glow" in before.transitions[0].prompt

    assert "The report is runs/maze/report.html" in shown(report)
    page = (tmp_path / "runs/maze/report.html").read_text()
    assert "Find the lamp" in page and "2 unseen tasks" in page

    said = paw("eval", "runs/maze", "--agent", "plain", "evaluation.tasks=2")
    [path] = (tmp_path / "runs/maze").glob("eval-maze-plain-valid_unseen-*/result.json")
    assert f"Written to {path.relative_to(tmp_path)}" in said
    result = json.loads(path.read_text())
    assert (result["env_id"], result["agent"], result["n"]) == (ENV, "plain", 2)


def _own_python(folder: Path) -> tuple[Path, Path]:
    """An environment that sees the packages of this one, and takes the newcomer's; where it has them."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    here = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(ROOT)}
    (site / "here.pth").write_text("".join(f"{path}\n" for path in sorted(here)))
    return python, site


def _environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**kept, "COLUMNS": "200", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
