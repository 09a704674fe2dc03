"""One policy for several worlds against a policy for each: the table, and a seed that is continued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from files import load

pytest.importorskip("torch")

from paw_train.settings.recipes import load_settings

many: Any = load("benchmarks/many_worlds.py")
ROOT = Path(__file__).resolve().parents[2]


def cell(seed: int, arm: str, tokens: int, **after: tuple[float, float]) -> dict[str, Any]:
    """A run that starts from nothing; ``after``: success and score by world."""
    ends = {world: {"n": 60, "success": a, "score": b} for world, (a, b) in after.items()}
    starts = {world: {"n": 60, "success": 0.0, "score": 0.0} for world in after}
    return {"seed": seed, "arm": arm, "tokens": tokens, "before": starts, "after": ends}


def test_differences_are_paired_by_seed_and_incomplete_seeds_are_left_out() -> None:
    cells = [
        cell(0, "mixed", 100, shop=(0.5, 0.7), maze=(0.2, 0.2)),
        cell(0, "maze", 110, maze=(0.1, 0.1)),
        cell(0, "shop", 90, shop=(0.5, 0.5)),
        cell(1, "mixed", 100, shop=(0.6, 0.8), maze=(0.4, 0.4)),
        cell(1, "maze", 90, maze=(0.1, 0.1)),
        cell(1, "shop", 90, shop=(0.6, 0.6)),
        cell(2, "mixed", 100, shop=(1.0, 1.0), maze=(1.0, 1.0)),
    ]
    lines = many.table(cells, ["shop", "maze"]).split("\n")
    assert lines[0] == "2 seeds"
    # 95 % of t with one degree of freedom is 12.706 standard errors; those of +10 and +30 are 10
    assert lines[4:] == [
        "| shop, success | 0.0 | 55.0 | 0.0 | 55.0 | +0.0 (+0.0 to +0.0) | 0.90 |",
        "| shop, score | 0.0 | 75.0 | 0.0 | 55.0 | +20.0 (+20.0 to +20.0) | 0.90 |",
        "| maze, success | 0.0 | 30.0 | 0.0 | 10.0 | +20.0 (-107.1 to +147.1) | 1.00 |",
    ]


def test_a_seed_is_continued_with_the_file_of_its_cells_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A world alone gets the tokens of the mixed run, whose folder is gone."""
    tokens = {"search-pilot": [50.0], "search": [190.0, 210.0]}
    trained: list[tuple[str, list[str]]] = []

    def run(options: Any, seed: int, name: str, settings: list[str]) -> Path:
        trained.append((name, list(settings)))
        return tmp_path / name

    monkeypatch.setattr(many, "_run", run)
    monkeypatch.setattr(many, "_column", lambda folder, name: tokens[folder.name])
    panel = {"search": {"n": 60, "success": 0.5, "score": 0.5}}
    monkeypatch.setattr(many, "_panels", lambda path, arm: panel)
    monkeypatch.setattr(
        "sys.argv",
        ["many_worlds.py", str(tmp_path), "--seeds", "3", "--cells", f"{tmp_path}/c.json"],
    )
    arms = ["alfworld", "frozen_lake", "sokoban", "webshop"]
    mixed = cell(3, "mixed", 400, **dict.fromkeys((*arms, "search"), (0.5, 0.5)))
    cells = [{**mixed, "updates": 2}, *(cell(3, arm, 400, **{arm: (0.5, 0.5)}) for arm in arms)]
    (tmp_path / "c.json").write_text(json.dumps(cells), encoding="utf-8")

    many.main()

    groups = load_settings(many.RECIPE, []).rollout.groups
    # 200 tokens an update are four times those of the recipe's groups
    assert trained == [
        ("search-pilot", ["env=search", "updates=1"]),
        ("search", ["env=search", f"rollout.groups={4 * groups}"]),
    ]
    assert "1 seed\n" in capsys.readouterr().out
    added = next(c for c in json.loads((tmp_path / "c.json").read_text()) if c["arm"] == "search")
    assert (added["tokens"], added["updates"], added["groups"]) == (400.0, 2, 4 * groups)


def test_the_page_has_the_table_of_the_committed_cells() -> None:
    cells = json.loads((ROOT / "benchmarks" / "many_worlds.json").read_text(encoding="utf-8"))
    worlds = [member.name for member in load_settings(many.RECIPE, []).members]
    lines = many.table(cells, worlds).split("\n")
    page = (ROOT / "docs" / "many-worlds.md").read_text(encoding="utf-8")
    assert f"**{lines[0]}**" in page
    assert "\n".join(lines[2:]) in page
