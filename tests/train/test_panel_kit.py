"""``paw panel export`` and ``paw replay --panel``: every fork plays the same tasks."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from files import load

from paw_gym.registration import make_text_env
from paw_train.cli import main
from paw_train.evaluation.kit import write_kit
from paw_train.evaluation.replay import replay

Row = dict[str, Any]


def loader(kit: Path) -> Any:
    """The kit's own loader, imported as a fork would."""
    return load(str(kit / "panel_loader.py")).Panel


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kits")
    write_kit("alfworld/procedural", folder / "alfworld", ["evaluation.tasks=24"])
    write_kit("webshop/generated", folder / "webshop", ["evaluation.tasks=3"])
    write_kit("search_qa/synthetic", folder / "search", ["evaluation.tasks=3"])
    return folder


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_workers_play_each_task_once_and_in_order(kits: Path, workers: int) -> None:
    panel = loader(kits / "alfworld")()
    parts = [iter(panel.part(worker, workers)) for worker in range(workers)]
    played = [panel.game(next(parts[i % workers])) for i in range(len(panel.tasks))]
    assert played == [f"{kits}/alfworld/{task['id']}/game.tw-pddl" for task in panel.tasks]


def test_real_games_are_found_by_their_hashes(alfworld_data: Path, tmp_path: Path) -> None:
    data = f"env.kwargs.data_dir={alfworld_data}"
    about = write_kit("alfworld/valid_seen", tmp_path / "kit", [data])
    assert (about["panel"], about["tasks"]) == ("alfworld/valid_seen", 140)
    panel = loader(tmp_path / "kit")(data=alfworld_data / "json_2.1.1")
    assert len({panel.game(task) for task in panel.tasks}) == 140
    assert str(alfworld_data) not in (tmp_path / "kit" / "panel.json").read_text()
    changed = {**panel.tasks[0], "sha256": panel.tasks[1]["sha256"]}
    with pytest.raises(ValueError, match="SHA-256"):
        panel.game(changed)


class Entries(ExitStack):
    """Entries of a folder, as ``os.scandir`` gives them."""

    def __init__(self, entries: list[Any]) -> None:
        super().__init__()
        self.left = iter(entries)

    def __next__(self) -> Any:
        return next(self.left)

    def __iter__(self) -> Any:
        return self.left


@contextmanager
def directories_in_order(order: int) -> Iterator[None]:
    """Folders list their entries in an order by this seed."""
    scandir = os.scandir

    def shuffled(path: Any = ".") -> Any:
        with scandir(path) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        random.Random(f"{order}/{os.path.basename(path)}").shuffle(entries)
        return Entries(entries)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", shuffled)
        yield


@pytest.mark.original
def test_the_originals_loader_is_of_this_form(alfworld_data: Path, tmp_path: Path) -> None:
    """Prints what the documentation quotes: ``make test-original ARGS="... -s"``."""
    pytest.importorskip("alfworld", reason="the original ALFWorld")
    from alfworld.agents.environment.alfred_tw_env import AlfredTWEnv
    from textworld.gym.envs.textworld_batch import TextworldBatchGymEnv

    data = alfworld_data / "json_2.1.1" / "valid_seen"
    types = {"goal_desc_human_anns_prob": 0, "task_types": [1, 2, 3, 4, 5, 6]}
    config = {"env": types, "dataset": {"eval_id_data_path": str(data), "num_eval_games": -1}}

    def games(order: int) -> list[str]:
        with directories_in_order(order), redirect_stdout(StringIO()):
            return list(AlfredTWEnv(config, train_eval="eval_in_distribution").game_files)

    def played(order: int, workers: int, seed: int) -> list[str]:
        streams = []
        for worker in range(workers):
            env = object.__new__(TextworldBatchGymEnv)  # its order, without its engines
            env.gamefiles = listed[order]
            env.seed(seed + worker)
            streams.append(env._gamefiles_iterator)
        return [next(streams[i % workers]) for i in range(140)]

    listed = {order: games(order) for order in (1, 2)}
    assert set(listed[1]) == set(listed[2]) and len(set(listed[1])) == 140
    print(f"\nlisted elsewhere: {sum(map(str.__ne__, listed[1], listed[2]))} of 140")
    for workers in (1, 2, 8, 140):
        one = played(1, workers, 1234)
        others = {"order": played(2, workers, 1234), "seed": played(1, workers, 1235)}
        print(
            f"{workers} workers: {len(set(one))} different tasks; in common under another", end=""
        )
        print(*(f" {name}: {len(set(one) & set(them))}" for name, them in others.items()), sep=",")
        assert (len(set(one)) < 140) == (workers > 1)


def played_by_the_expert(kit: Path) -> list[Row]:
    """What another program would write down."""
    about = json.loads((kit / "panel.json").read_text())
    env, rows = make_text_env(about["env_id"], split=about["environment"]["split"]), []
    for task in loader(kit)().tasks:
        start, _ = env.reset(seed=task["seed"], options={"task_id": task["id"]})
        assert start == task["start"] and env.unwrapped.task.instruction == task["goal"]
        actions, rewards = env.unwrapped.reference_solution(), []
        for action in actions:
            _, reward, *_, info = env.step(action)
            rewards.append(reward)
        row = {"task_id": task["id"], "actions": actions, "rewards": rewards}
        rows.append({**row, "score": info["score"]})
    return rows


def write(file: Path, rows: list[Row]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_trajectories_hold(kits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("alfworld", "webshop", "search"):
        file = tmp_path / f"{name}.jsonl"
        write(file, played_by_the_expert(kits / name)[::-1])
        file.write_text(file.read_text(encoding="utf-8") + "\n", encoding="utf-8")
        with pytest.raises(SystemExit) as end:
            main(["replay", str(file), "--panel", str(kits / name)])
        text = capsys.readouterr().out
        assert not end.value.code, text
        assert f": {name}.jsonl, success 100.0 %" in text and "HOLDS: all" in text


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda rows: rows.pop(1), "is missing"),
        (lambda rows: rows.append(rows[1]), "line 25: {id} is there for the second time"),
        (lambda rows: rows[1].update(task_id="theirs"), "line 2: 'theirs' is not a task"),
        (lambda rows: rows[1]["rewards"].__setitem__(0, 1.0), "{id}, step 0: the reward"),
        (lambda rows: rows[1].update(score=0.5), "{id}: the score is recorded as 0.5, and is 1.0"),
        (lambda rows: rows[1].update(actions=["look"], rewards=[0]), "{id}: the score"),
        (lambda rows: [rows[1][key].append(rows[1][key][0]) for key in ("actions", "rewards")],
         "the environment ended the episode before it"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    kits: Path, tmp_path: Path, change: Callable[[list[Row]], Any], what: str
) -> None:
    rows = played_by_the_expert(kits / "alfworld")
    name = repr(rows[1]["task_id"])
    change(rows)
    file = tmp_path / "theirs.jsonl"
    write(file, rows)
    found = replay(file, panel=kits / "alfworld")
    assert any(what.replace("{id}", name) in line for line in found.differences), found.differences
    assert "DIFFERS" in found.verdict


def test_mistakes_get_a_line(kits: Path, tmp_path: Path) -> None:
    kit, file = kits / "webshop", tmp_path / "theirs.jsonl"
    file.write_text('{"task_id": "a"}\n')
    with pytest.raises(ValueError, match="line 1: not a trajectory"):
        replay(file, panel=kit)
    file.write_text('{"task_id": "a", "actions": ["look"], "rewards": [], "score": 0}\n')
    with pytest.raises(ValueError, match="line 1: not a trajectory .*as many rewards"):
        replay(file, panel=kit)
    with pytest.raises(ValueError, match="--panel DIR"):
        replay(file)
    with pytest.raises(FileExistsError, match="--force"):
        write_kit("sudoku/4x4", kit)
    with pytest.raises(FileExistsError, match=r"--force replaces one with a panel\.json only"):
        write_kit("sudoku/4x4", file, force=True)
    assert file.is_file()
    panel = loader(kit)()
    shop = make_text_env("paw_gym/WebShop-v0", split="test").unwrapped.shop
    ranged = [product for product in shop.catalogue if len(product.prices) > 1][:5]
    assert ranged
    for product in ranged:
        assert panel.price(product.asin, *product.prices) == shop.price(product.asin)
    (tmp_path / "panel.json").write_text((kit / "panel.json").read_text())
    (tmp_path / "tasks.jsonl").write_text((kit / "tasks.jsonl").read_text().split("\n")[0])
    with pytest.raises(ValueError, match="does not hold the tasks"):
        loader(kit)(tmp_path)
