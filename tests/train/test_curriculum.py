"""The curriculum: its scores and draws, what it leaves alone, and runs with it that are stopped."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from paw_gym.transition import Episode, Transition
from paw_train.reporting.run.page import write_report
from paw_train.rollouts.rollout import Trajectory
from paw_train.settings import CurriculumSettings, Settings, find_recipe, load_settings, read_recipe
from paw_train.training.curriculum import (
    Curriculum,
    PlayedGroup,
    learning_progress_scores,
    variance_scores,
)
from paw_train.training.environments import TrainingEnvironments
from paw_train.training.local import Run, train_from_recipe
from paw_train.training.openrlhf.mapping import rule_of
from paw_train.training.preparation import prepared

GROUP_SIZE = 8


def _settings(method: Any = "variance", **changes: Any) -> CurriculumSettings:
    return CurriculumSettings.read({"method": method, **changes}, "curriculum")


def _cells(*names: str, tasks: int = 400) -> dict[str, list[str]]:
    return {name: [f"{name}/{number}" for number in range(tasks)] for name in names}


def _played(task_id: str, successes: Sequence[bool], group: int) -> list[Trajectory]:
    """The episodes of a group."""
    found = []
    for success in successes:
        texts = ("", "", "", "")
        step = Transition(
            "e", task_id, "i", 0, *texts, 0.0, "", True, False, True, {"success": success}
        )
        found.append(Trajectory(Episode("e", task_id, "i", group=group, transitions=[step])))
    return found


def _learner(
    curriculum: Curriculum,
    success: Callable[[str, int], float],
    updates: int,
    groups: int = 16,
    first: int = 0,
) -> list[list[str]]:
    """The draws for a learner whose success on each cell is known."""
    draws = []
    for update in range(first, updates):
        curriculum.begin(update)
        drawn = curriculum.draw(groups)
        rng = np.random.default_rng([update, 11])
        played = [
            one
            for group, task_id in enumerate(drawn)
            for one in _played(
                task_id, (rng.random(GROUP_SIZE) < success(task_id, update)).tolist(), group
            )
        ]
        curriculum.learn(played)
        draws.append(drawn)
    return draws


def _shares(draws: Sequence[Sequence[str]]) -> dict[str, float]:
    counts = Counter(task_id.partition("/")[0] for drawn in draws for task_id in drawn)
    return {name: count / counts.total() for name, count in counts.items()}


# --- scores ------------------------------------------------------------------------------------------


@given(st.integers(2, 12), st.floats(0, 1))
def test_the_variance_of_a_group_is_right_on_average(size: int, p: float) -> None:
    """Summed over the binomial distribution of its successes it is p(1 - p) exactly."""
    from math import comb

    expected = sum(
        comb(size, k) * p**k * (1 - p) ** (size - k) * PlayedGroup(0, "t", k, size).variance
        for k in range(size + 1)
    )
    assert expected == pytest.approx(p * (1 - p), abs=1e-9)


def test_the_variance_score_looks_inside_groups() -> None:
    """A cell of tasks that are always or never solved teaches nothing, though half are solved."""
    halves = [PlayedGroup(0, "t", k, 4) for k in (0, 4, 0, 4)]
    mixed = [PlayedGroup(0, "t", 2, 4)] * 4
    scores = variance_scores({"halves": halves, "mixed": mixed, "new": []})
    assert scores == pytest.approx({"halves": 0.25 / 5, "mixed": (4 / 3 + 0.25) / 5, "new": 0.25})


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 8)), min_size=2, max_size=20))
def test_learning_progress_is_the_slope_of_a_fitted_line(rows: list[tuple[int, int]]) -> None:
    groups = [PlayedGroup(update, "t", solved, 8) for update, solved in rows]
    found = learning_progress_scores({"a": groups, "new": [], "flat": groups[:1]})
    if len({update for update, _ in rows}) < 2:
        assert set(found.values()) == {1.0}
        return
    slope, _ = np.polyfit([u for u, _ in rows], [s / 8 for _, s in rows], 1)
    assert found == pytest.approx(dict.fromkeys(found, abs(slope)), abs=1e-9)


def test_probabilities_by_hand() -> None:
    own = _settings(explore=0.3, sharpness=2.0, replay=0.0)
    curriculum = Curriculum(own, _cells("easy", "half", "new"), 0)
    tasks = ["easy/1", "half/1", "half/2"]
    curriculum._drawn = tasks
    outcomes = [[True] * 4, [True, True, False, False], [True, False, False, False]]
    played = [t for g, wins in enumerate(outcomes) for t in _played(tasks[g], wins, g)]
    curriculum.learn(played)
    curriculum.begin(1)
    easy, half, new = (0.25 / 2) ** 2, ((1 / 3 + 1 / 4 + 0.25) / 3) ** 2, 0.25**2
    total = easy + half + new
    expected = {"easy": easy, "half": half, "new": new}
    expected = {name: 0.1 + 0.7 * score / total for name, score in expected.items()}
    assert curriculum.probabilities == pytest.approx(expected)


# --- a learner whose success is known ------------------------------------------------------------------

LEVELS = {"never": 0.0, "seldom": 0.08, "half": 0.5, "mostly": 0.92, "always": 1.0}


@pytest.mark.parametrize("replay", [0.0, 0.4])
def test_draws_concentrate_where_success_varies_most(replay: float) -> None:
    curriculum = Curriculum(_settings(replay=replay), _cells(*LEVELS), 0)
    draws = _learner(curriculum, lambda task, _: LEVELS[task.partition("/")[0]], 60)
    shares = _shares(draws[20:])
    assert max(shares, key=lambda name: shares[name]) == "half" and shares["half"] > 0.4
    assert shares["never"] < 0.15 and shares["always"] < 0.15
    assert set(shares) == set(LEVELS), "no cell is forgotten"
    equal = {name: p**GROUP_SIZE + (1 - p) ** GROUP_SIZE for name, p in LEVELS.items()}
    # of all cells alike, six groups in ten have equal returns
    assert sum(shares[name] * equal[name] for name in LEVELS) < 0.4
    assert min(curriculum.probabilities.values()) >= 0.2 / len(LEVELS)


def test_a_sharper_rule_draws_the_best_more() -> None:
    def share(sharpness: float) -> float:
        own = _settings(replay=0.0, sharpness=sharpness)
        curriculum = Curriculum(own, _cells(*LEVELS), 0)
        draws = _learner(curriculum, lambda task, _: LEVELS[task.partition("/")[0]], 40)
        return _shares(draws[10:])["half"]

    assert share(0.0) == pytest.approx(0.2, abs=0.05)
    assert share(0.0) < share(1.0) < share(3.0)
    assert share(1e6) == pytest.approx(0.8 + 0.2 / 5, abs=0.1)


def test_learning_progress_finds_the_cell_that_moves() -> None:
    def success(task: str, update: int) -> float:
        name = task.partition("/")[0]
        return min(1.0, update / 40) if name == "moves" else LEVELS[name]

    curriculum = Curriculum(
        _settings("learning_progress", replay=0.0), _cells("never", "moves", "always"), 3
    )
    shares = _shares(_learner(curriculum, success, 40)[10:])
    assert shares["moves"] > 0.6
    # nothing moves any more: after a window, all cells are alike again
    after = _learner(curriculum, success, 60, first=40)
    assert _shares(after[12:])["moves"] < 0.5


def test_a_cell_that_becomes_solvable_is_found() -> None:
    """Exploring finds it although the other cell is at its best all the time."""
    curriculum = Curriculum(_settings(replay=0.0), _cells("half", "late"), 0)
    draws = _learner(
        curriculum, lambda task, update: 0.5 if task[0] == "h" or update >= 40 else 0.0, 80
    )
    assert _shares(draws[20:40])["late"] < 0.3 < 0.4 < _shares(draws[60:])["late"]


# --- replay ----------------------------------------------------------------------------------------------


def test_only_half_solved_tasks_of_the_window_are_replayed() -> None:
    curriculum = Curriculum(_settings(replay=0.9, window=3), _cells("a", tasks=300), 0)
    drawn = curriculum.draw(6)
    solved = [2, 1, 0, 1, 2, 0]
    played = [
        _played(task, [n > 0, n > 1], g)
        for g, (task, n) in enumerate(zip(drawn, solved, strict=True))
    ]
    curriculum.learn([one for group in played for one in group])
    curriculum.begin(3)
    assert {drawn[1], drawn[3]} <= set(curriculum.draw(20)), "nine in ten are replays"
    assert curriculum.metrics()["replayed_groups"] == 2 / 20
    curriculum.begin(4)
    curriculum.draw(20)
    assert curriculum.metrics()["replayed_groups"] == 0.0, "they have left the window"


def test_a_replayed_task_says_nothing_about_its_cell() -> None:
    curriculum = Curriculum(_settings(replay=0.99), _cells("a", "b", tasks=2), 5)
    curriculum._drawn = ["a/0"]
    curriculum.learn(_played("a/0", [True, False], 0))
    curriculum.begin(1)
    before = curriculum.probabilities
    assert curriculum.draw(1) == ["a/0"], "replays are all but certain"
    curriculum.learn(_played("a/0", [True, True], 0))
    assert curriculum.metrics()["replayed_groups"] == 1.0
    curriculum.begin(2)
    assert curriculum.probabilities == before
    curriculum.draw(1)
    assert curriculum.metrics()["replayed_groups"] == 0.0, "solved by all: there is none left"


def test_groups_that_cannot_be_compared_are_left_out() -> None:
    curriculum = Curriculum(_settings(), _cells("a", tasks=2), 0)
    curriculum._drawn = ["a/0", "a/1"]
    one, failed = _played("a/0", [True, False], 0)  # a group of one is left
    failed.episode.error = "broke"
    curriculum.learn([one, failed])
    assert curriculum.state_dict() == {"groups": [], "half": []}


# --- draws -----------------------------------------------------------------------------------------------


def test_no_task_comes_twice_in_an_update_while_there_are_others() -> None:
    curriculum = Curriculum(_settings(replay=0.5), _cells("a", "b", tasks=40), 1)
    for drawn in _learner(curriculum, lambda task, _: 0.5, 30):
        assert len(set(drawn)) == len(drawn)
    few = Curriculum(_settings(), {"all": ["x"], "": ["y"]}, 1)  # tasks without a cell are in `all`
    assert list(few.cells) == ["all"] and Counter(few.draw(4)).keys() == {"x", "y"}


def test_the_seed_decides_and_a_restored_state_goes_on() -> None:
    def made(seed: int) -> Curriculum:
        return Curriculum(_settings(replay=0.3), _cells("a", "b"), seed)

    def success(task: str, update: int) -> float:
        return 0.3 if task[0] == "a" else 0.8

    whole = _learner(made(1), success, 12)
    assert whole == _learner(made(1), success, 12) != _learner(made(2), success, 12)
    first, second = made(1), made(1)
    _learner(first, success, 5)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert _learner(second, success, 12, first=5) == whole[5:]
    assert _learner(made(1), success, 12, first=5) != whole[5:], "the state matters"


# --- settings --------------------------------------------------------------------------------------------


def test_a_run_without_it_records_what_it_always_did() -> None:
    assert "curriculum" not in load_settings("smoke").to_dict()
    assert "curriculum" not in load_settings("smoke", ["curriculum.method=off"]).to_dict()
    on = load_settings("smoke", ["curriculum.method=variance"])
    assert Settings.read(json.loads(json.dumps(on.to_dict()))) == on


def test_settings_that_it_cannot_work_with_are_refused() -> None:
    on = "curriculum.method=variance"
    for more, message in (
        (["engine=openrlhf"], "runs on engine=local only"),
        (["rollout.group_size=1"], "a group of one"),
        (["curriculum.explore=0"], r"curriculum.explore is in \(0.0, 1.0\]|curriculum.explore is"),
        (["curriculum.replay=1"], "curriculum.replay is"),
        (["curriculum.window=1"], "curriculum.window is 2 or more, got 1"),
    ):
        with pytest.raises(ValueError, match=message):
            load_settings("smoke", [on, *more])
    rule = rule_of("curriculum.method")
    assert rule.refuse is not None and rule.refuse("variance", load_settings("smoke"))


def test_an_environment_that_says_nothing_of_difficulty() -> None:
    said: list[str] = []
    lake = ["env.id=paw_gym/ToyText-v0", "cloning.episodes=0", "curriculum.method=variance"]
    lake += [
        "env.kwargs={num_tasks: 9}",
        "evaluation.split=test",
        "evaluation.selection_split=valid",
    ]
    prepared(load_settings("smoke", lake), said.append)
    assert len(said) == 1 and "only the replay of half-solved tasks" in said[0]
    with pytest.raises(ValueError, match="nothing to choose from: all training tasks of .*ToyText"):
        prepared(load_settings("smoke", [*lake, "curriculum.replay=0"]), said.append)


# --- whole runs ------------------------------------------------------------------------------------------

SOKOBAN = {
    "id": "paw_gym/Sokoban-v0",
    "template": "compact",
    "mode": "conversation",
    "kwargs": {"size": 5, "boxes": 1, "max_steps": 8, "num_tasks": 30},
    "train_kwargs": {"size": [5, 6]},
}
ON = ("curriculum.method=variance", "curriculum.window=3")
_VARYING = {"time", "seconds_rollout", "seconds_train", "peak_memory_mb"}


def _train(out: Path, env: Any, *more: str) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    recipe = out / "mine.yaml"
    recipe.write_text(json.dumps(read_recipe(find_recipe("smoke")) | {"env": env}), "utf-8")
    few = ["tracking=[]", "evaluation.tasks=3", "evaluation.selection_tasks=2", f"out={out}"]
    few += ["rollout.groups=3", "rollout.group_size=2", "checkpoint_every=1", "updates=3"]
    few += ["evaluation.split=test", "evaluation.selection_split=valid"]
    return train_from_recipe(str(recipe), [*few, *more], quiet=True)


def _metrics(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in _VARYING} for line in lines]


def _drawn(run: Path) -> list[str]:
    lines = [line for p in sorted((run / "rollouts").glob("*.jsonl")) for line in p.open()]
    return [json.loads(line)["task_id"] for line in lines]


def test_a_stopped_run_draws_what_it_would_have_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = ["record.every=1", "record.groups=9", "record.tokens=false", *ON]
    whole = _train(tmp_path / "whole", SOKOBAN, *every)
    real, calls = Run._update, []

    def breaks(self: Run, update: int, *rest: Any) -> dict[str, Any]:
        metrics = real(self, update, *rest)
        calls.append(update)
        if update == 2:  # sampled and learned from, but neither recorded nor saved
            raise RuntimeError("killed")
        return metrics

    monkeypatch.setattr(Run, "_update", breaks)
    with pytest.raises(RuntimeError, match="killed"):
        _train(tmp_path / "cut", SOKOBAN, *every)
    monkeypatch.setattr(Run, "_update", real)
    cut = _train(tmp_path / "cut", SOKOBAN, *every)
    assert calls == [0, 1, 2]
    assert _metrics(cut) == _metrics(whole) and _drawn(cut) == _drawn(whole)
    model = "checkpoints/latest/model/model.safetensors"
    assert (cut / model).read_bytes() == (whole / model).read_bytes()

    # evaluation is that of a run without it: the same tasks, and the same result before RL
    plain = _train(tmp_path / "plain", SOKOBAN, "updates=0")
    before, without = (json.loads((run / "eval_before.json").read_text()) for run in (whole, plain))
    assert {**before, "seconds": 0} == {**without, "seconds": 0}
    after = json.loads((whole / "eval_after.json").read_text())
    assert after["panel_hash"] == before["panel_hash"]

    # what is measured, and what is shown
    tasks = set(_drawn(whole))
    assert all(task.startswith("train/") for task in tasks)
    for row in _metrics(whole):
        assert row["cell_groups/5x5-1"] + row["cell_groups/6x6-1"] == 3
        assert row["cell_probability/5x5-1"] + row["cell_probability/6x6-1"] == pytest.approx(1)
    page = write_report(whole).read_text(encoding="utf-8")
    assert "Curriculum, by difficulty" in page and "6x6-1" in page


def test_each_environment_of_several_has_cells_of_its_own() -> None:
    lake = {"name": "lake", "id": "paw_gym/ToyText-v0", "kwargs": {"num_tasks": 20}}
    settings = Settings.read({"env": [lake, SOKOBAN], "curriculum": {"method": "variance"}})
    environments = TrainingEnvironments(settings)
    found = environments.metrics([])
    names = {key.partition("/")[2] for key in found if key.startswith("cell_probability/")}
    assert names == {"lake.all", "sokoban.5x5-1", "sokoban.6x6-1"}
    assert found["cell_probability/lake.all"] == 1.0
    assert "replayed_groups/sokoban" in found
    state = environments.state_dict()
    assert [set(member) for member in state["members"]] == [{"rng", "curriculum"}] * 2
    environments.load_state_dict(state)
