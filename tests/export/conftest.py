"""Episodes of a real environment in a run's folder, and the program as it is typed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from paw_gym import Episode
from paw_gym.export import expert_episodes
from paw_gym.transition import write_jsonl, write_parquet
from paw_train.cli.program import app


@pytest.fixture(scope="session")
def played() -> list[Episode]:
    """Four ALFWorld games by the expert, two of them cut short, and one in conversation mode."""
    whole = list(expert_episodes("paw_gym/ALFWorld-v0", 2, seed=3, split="train"))
    cut = list(expert_episodes("paw_gym/ALFWorld-v0", 2, seed=4, split="train", max_steps=2))
    dialogue = list(
        expert_episodes("paw_gym/ALFWorld-v0", 1, seed=5, split="train", mode="conversation")
    )
    assert [e.success for e in (*whole, *cut, *dialogue)] == [True, True, False, False, True]
    return [*whole, *cut, *dialogue]


@pytest.fixture
def run(tmp_path: Path, played: list[Episode]) -> Path:
    """A run's folder with episodes of training in both forms, and of the evaluations."""
    folder = tmp_path / "run"
    (folder / "rollouts").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"name": "run"}))
    (folder / "metrics.jsonl").write_text(json.dumps({"update": 1}) + "\n")
    write_jsonl(folder / "episodes_before.jsonl", played[3:4])
    write_jsonl(folder / "episodes_after.jsonl", played[4:])
    write_jsonl(folder / "rollouts" / "000001.jsonl", played[:1])
    write_parquet(folder / "rollouts" / "000002.parquet", played[1:3])
    return folder


@pytest.fixture
def paw(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """``paw("export", ...)`` in the test's folder."""
    monkeypatch.chdir(tmp_path)

    def call(*args: str) -> Result:
        return CliRunner().invoke(app, list(args))

    return call
