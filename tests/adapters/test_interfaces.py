"""benchmarks/interfaces.py on a few tasks: no interface differs, and one that did would be noticed."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def interfaces() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "interfaces", ROOT / "benchmarks" / "interfaces.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_interface_gives_the_same(interfaces: ModuleType) -> None:
    kwargs = {"split": "valid_seen", "max_steps": 12}
    rows = interfaces.compare(kwargs, 3, 8, [1, 2], skip=["gateway"])
    run = [row for row in rows if "not_run" not in row]
    assert {row["interface"] for row in run} >= {"our API", "TRL tools", "verl-agent manager"}
    assert all(row["episodes"] == 3 and row["steps"] > 10 for row in run)
    assert [row["differences"] for row in run] == [[]] * len(run)


def test_a_difference_is_found(interfaces: ModuleType) -> None:
    jobs, wanted, shown = interfaces.recorded({"split": "valid_seen"}, 2, 4)
    assert [r.rewards for r in wanted] == [r.rewards for r in shown]
    assert any(reward < 0 for record in wanted for reward in record.rewards)
    found = interfaces.our_api(jobs, {"split": "valid_seen"})
    assert interfaces.differences(found, wanted) == []
    found[1].rewards[2] += 1e-6
    found[0].observations[1] += " "
    found[0].score = 0.5
    lines = interfaces.differences(found, wanted)
    assert [line.partition(": ")[2].split()[0] for line in lines] == [
        "observations",
        "score",
        "rewards",
    ]
    assert interfaces.differences(found[:1], wanted)[0] == "1 of 2 episodes"


def test_directories_are_shuffled(interfaces: ModuleType, tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number:02}").mkdir()
    plain = sorted(os.listdir(tmp_path))
    orders = []
    for seed in (1, 2):
        with interfaces.shuffled_directories(seed):
            listed = os.listdir(tmp_path)
            assert listed == [entry.name for entry in os.scandir(tmp_path)]
            assert listed == next(os.walk(tmp_path))[1]
            orders.append(listed)
    assert orders[0] != orders[1] and sorted(orders[0]) == plain
