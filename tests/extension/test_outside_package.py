"""A package outside the repository adds to the trainer without an edit here."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from forked import Forked
from programs import install

pytest.importorskip("torch", reason="the extra `train`")

PACKAGE = Path(__file__).parent / "outside_package"


PROGRAM = """
import sys
from paw_train.agents import AGENTS
from paw_train.cli.program import app
print(*AGENTS)
for line in sys.argv[1:]:
    try:
        app(line.split())
    except SystemExit as end:
        print("exit code", end.code, flush=True)
"""


@pytest.mark.slow
def test_a_recipe_trains_with_them_the_agent_is_evaluated_and_a_misspelt_name_offers_theirs(
    tmp_path: Path,
) -> None:
    site, here = tmp_path / "site", tmp_path / "here"
    site.mkdir()
    here.mkdir()
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    code = (PACKAGE / "outside_package.py").read_text()
    install(site, project["name"], code, project["entry-points"])
    found = Forked(
        PROGRAM,
        "train smoke algorithm.name=beats_its_grop",
        "train smoke world_model.loss=squared_eror",
        "train smoke algorithm.name=beats_its_group rollout.group_size=1",
        "eval random --agent first_choise",
        f"train {PACKAGE / 'recipe.yaml'}",
        "eval runs/outside --agent first_choice --out evaluation evaluation.tasks=2 "
        "env.kwargs.max_steps=3",
        folder=here,
        path=site,
    ).wait()
    listed, *printed = found.stdout.splitlines()
    assert {"first_choice", "react", "random"} <= set(listed.split())
    # the recipe's note comes first, where there is a recipe
    ends = [line for line in printed if line.startswith("exit")]
    assert ends == ["exit code 2"] * 4 + ["exit code 0"] * 2, found.output
    said = " ".join(found.stderr.split())
    for name in ("beats_its_group", "squared_error", "first_choice"):
        assert f"Did you mean '{name}'" in said
    assert "beats_its_group compares the episodes of a group" in said
    assert {path.name for path in here.iterdir()} == {"runs", "evaluation"}
    (run,) = (here / "runs").iterdir()
    assert run.name == "outside", "what is refused leaves nothing"
    config = json.loads((run / "config.json").read_text())
    assert config["algorithm"]["name"] == "beats_its_group"
    assert config["world_model"]["loss"] == "squared_error"
    (metrics,) = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    assert 0.9 < metrics["wm_loss"] <= 1.0  # a model trained from scratch predicts next to nothing

    result = json.loads((here / "evaluation" / "result.json").read_text())
    assert (result["agent"], result["n"]) == ("first_choice", 2)
