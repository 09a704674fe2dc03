"""A package outside the repository adds to the trainer without an edit here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra `train`")

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(__file__).parent / "outside_package"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a Python in which the package is installed, as an installer would do it."""
    site = tmp_path_factory.mktemp("site")
    (site / "outside_package.py").write_bytes((PACKAGE / "outside_package.py").read_bytes())
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    name, version = project["name"], project["version"]
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    points = [
        f"[{group}]\n" + "".join(f"{key} = {place}\n" for key, place in named.items())
        for group, named in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(points))
    paths = [str(site), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


PROGRAM = """
import sys
from paw_train.agents import AGENTS
from paw_train.cli.program import app
print(*AGENTS)
for line in sys.stdin:
    try:
        app(line.split())
    except SystemExit as end:
        print("exit code", end.code, flush=True)
"""


def paw(environment: dict[str, str], folder: Path, *lines: str) -> subprocess.CompletedProcess[str]:
    """Runs command lines one after another in a process of their own."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=folder,
        env=environment,
        input="\n".join(lines),
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_a_recipe_trains_with_them_and_the_agent_is_evaluated(
    installed: dict[str, str], tmp_path: Path
) -> None:
    found = paw(
        installed,
        tmp_path,
        f"train {PACKAGE / 'recipe.yaml'}",
        "eval runs/outside --agent first_choice --out evaluation evaluation.tasks=2 "
        "env.kwargs.max_steps=3",
    )
    assert found.stdout.count("exit code 0") == 2, found.stdout + found.stderr
    run = tmp_path / "runs" / "outside"
    config = json.loads((run / "config.json").read_text())
    assert config["algorithm"]["name"] == "beats_its_group"
    assert config["world_model"]["loss"] == "squared_error"
    (metrics,) = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    assert 0.9 < metrics["wm_loss"] <= 1.0  # a model trained from scratch predicts next to nothing

    result = json.loads((tmp_path / "evaluation" / "result.json").read_text())
    assert (result["agent"], result["n"]) == ("first_choice", 2)


@pytest.mark.slow
def test_a_misspelt_name_offers_that_of_the_package_and_leaves_nothing(
    installed: dict[str, str], tmp_path: Path
) -> None:
    found = paw(
        installed,
        tmp_path,
        "train smoke algorithm.name=beats_its_grop",
        "train smoke world_model.loss=squared_eror",
        "train smoke algorithm.name=beats_its_group rollout.group_size=1",
        "eval random --agent first_choise",
    )
    listed, *printed = found.stdout.splitlines()
    assert {"first_choice", "react", "random"} <= set(listed.split())
    # the recipe's note comes first, where there is a recipe
    assert [line for line in printed if line.startswith("exit")] == ["exit code 2"] * 4
    said = " ".join(found.stderr.split())
    for name in ("beats_its_group", "squared_error", "first_choice"):
        assert f"Did you mean '{name}'" in said
    assert "beats_its_group compares the episodes of a group" in said
    assert not list(tmp_path.iterdir())
