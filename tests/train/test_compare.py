"""``paw compare``: what a grid means, how its runs are executed and resumed, what the results state.

A run's process is replaced by a small script that leaves the files of a run, so that kills and failures
can be placed exactly; the true program runs in ``test_compare_program.py``.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import signal
import sys
import textwrap
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked import Forked
from servers import wait_until

from paw_train.reporting.compare.analysis import Comparison, _takeoff, compare
from paw_train.reporting.compare.folder import ComparisonFolder, report_of
from paw_train.reporting.compare.grid import (
    Grid,
    PlannedRun,
    flat_settings,
    grid_from_arguments,
    load_grid,
)
from paw_train.reporting.compare.page import write_page
from paw_train.reporting.compare.results import RunResult, known_results, read_results
from paw_train.reporting.compare.runs import (
    Progress,
    Runner,
    differing_setting,
    is_finished,
    relevant,
    shared_places,
)
from paw_train.settings import recipe_names
from paw_train.settings.run import shared_evaluation, shared_warm_start
from paw_train.training.preparation import checked_settings

COMPARISONS = Path(__file__).parents[2] / "benchmarks" / "comparisons"

FAKE = textwrap.dedent(
    """
    import json, os, pathlib, signal, sys, time
    settings, folder, mode = json.loads(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    with (folder / "begun.txt").open("a") as file:
        file.write("x")
    shared = pathlib.Path(settings["warm_starts"]) / sys.argv[4]
    if not (shared / "result.json").exists():
        time.sleep(0.3)
        shared.mkdir(parents=True, exist_ok=True)
        with (shared / "makers.txt").open("a") as file:
            file.write(folder.name + "\\n")
        (shared / "result.json").write_text("{}")
    print("line of the log", flush=True)
    if mode == "fail":
        sys.exit("the sky fell")
    if mode == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    while mode == "hang" and not (folder.parent / "go").exists():
        time.sleep(0.05)
    with (folder / "metrics.jsonl").open("w") as file:
        for update in range(settings["updates"]):
            file.write(json.dumps({"update": update, "success_rate": 0.1 * update,
                                   "seconds_rollout": 2.0, "seconds_train": 1.0}) + "\\n")
    wins = [True] * (3 + settings["seed"]) + [False] * (7 - settings["seed"])
    result = {"n": 10, "success_rate": sum(wins) / 10, "panel": "p", "panel_hash": "h",
              "successes": wins}
    for when in ("before", "after"):
        (folder / f"eval_{when}.json").write_text(json.dumps(result))
    """
)


def small_grid(**changes: Any) -> Grid:
    """Two arms, two seeds."""
    arms = {"grpo": {"world_model.enabled": False}, "grpo+paw": {"world_model.coef": 0.5}}
    values = {"name": "grid", "recipe": "smoke", "seeds": (0, 1), "arms": arms, "baseline": "grpo"}
    return Grid(**(values | changes))


def by_seed(run: PlannedRun) -> tuple[Path, ...]:
    """The warm start that the fake runs of a seed share; the evaluation of it is each one's own."""
    shared = Path(run.settings.warm_starts or "")
    return shared / f"seed{run.seed}", shared / f"{run.name}-evaluation"


class Fakes:
    """Commands that imitate training, by the run's name."""

    def __init__(self, folder: Path, **modes: str) -> None:
        self.folder, self.modes = folder, modes

    def __call__(self, run: PlannedRun) -> list[str]:
        settings = json.dumps(run.settings.to_dict())
        mode = self.modes.get(run.name, "good")
        shared = f"seed{run.seed}"
        return [sys.executable, "-c", FAKE, settings, str(self.folder / run.name), mode, shared]


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fakes:
    """Fake training in ``tmp_path/grid``."""
    monkeypatch.setattr("paw_train.reporting.compare.runs.shared_places", by_seed)
    monkeypatch.setattr("paw_train.reporting.compare.runs._POLL_SECONDS", 0.02)
    return Fakes(tmp_path / "grid")


def runner(fakes: Fakes, grid: Grid, watcher: type[Progress] = Progress) -> Runner:
    """Of fake training, two runs at a time."""
    runs = grid.runs(str(fakes.folder.parent))
    return Runner(runs, fakes.folder, 2, fakes, watcher(quiet=True))


def run_all(fakes: Fakes, grid: Grid) -> Runner:
    """Runs a grid with fake training."""
    return runner(fakes, grid).run()


def begun(fakes: Fakes, run: str) -> int:
    """How many times a run's process was started."""
    path = fakes.folder / run / "begun.txt"
    return len(path.read_text()) if path.exists() else 0


# --- the grid --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "distinguished"), [("grpo", False), ("ppo", True), ("of_a_package_that_is_gone", True)]
)
def test_settings_of_a_critic_matter_where_there_may_be_one(name: str, distinguished: bool) -> None:
    (run, *_) = small_grid().runs("runs")
    recorded = run.settings.to_dict()
    recorded["algorithm"]["name"] = name
    recorded["world_model_learning"]["method"] = "sft"
    other = copy.deepcopy(recorded)
    other["algorithm"]["critic"]["lr"] *= 2
    assert (relevant(recorded) != relevant(other)) is distinguished


def test_runs_go_through_the_seeds_outermost_with_the_arms_settings_last() -> None:
    grid = small_grid(overrides={"updates": 3, "world_model.coef": 0.1})
    runs = grid.runs("runs")
    names = ["grpo-seed0", "grpo+paw-seed0", "grpo-seed1", "grpo+paw-seed1"]
    assert [c.name for c in runs] == names
    assert {c.settings.updates for c in runs} == {3}
    assert {c.settings.threads for c in runs} == {1}
    assert [c.settings.world_model.enabled for c in runs] == [False, True] * 2
    assert [c.settings.world_model.coef for c in runs] == [0.1, 0.5] * 2
    assert [c.settings.seed for c in runs] == [0, 0, 1, 1]
    assert runs[1].settings.warm_starts == str(Path("runs/grid/warm-starts"))


def test_a_grid_file_means_the_same_nested_and_dotted(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "recipe: smoke\nseeds: 3\narms:\n  a: {world_model.enabled: false, env: {kwargs: {max_steps: 4}}}\n"
        "  b: {world_model: {enabled: off}, env.kwargs: {max_steps: 4}}\n"
    )
    grid = load_grid(path)
    assert (grid.name, grid.baseline, grid.seeds) == ("mine", "a", (0, 1, 2))
    first, second = grid.runs("runs")[:2]
    assert first.settings.env.kwargs == {"max_steps": 4}
    assert first.settings.objective == second.settings.objective
    assert first.settings.env == second.settings.env


def test_a_preset_sets_its_fields_over_the_recipes_and_keeps_the_coefficient() -> None:
    values = flat_settings({"world_model.preset": "echo", "world_model.alpha": 0.5}, "arms.x")
    assert values["world_model.loss"] == "ce"
    assert values["world_model.adaptive"] is False
    assert values["world_model.alpha"] == 0.5
    assert "world_model.coef" not in values and "world_model.preset" not in values


def test_arms_of_the_command_line_keep_commas_inside_values() -> None:
    grid = grid_from_arguments(
        "smoke", ["a", "b:env.kwargs={max_steps: 4},updates=2"], 2, ["checkpoint_every=1"]
    )
    assert grid.arms["b"] == {"env.kwargs": {"max_steps": 4}, "updates": 2}
    assert grid.baseline == "a" and grid.seeds == (0, 1)
    assert grid.runs("runs")[1].settings.env.kwargs == {"max_steps": 4}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arms: {a: {}}\n", "recipe"),
        ("recipe: smoke\narms: {a: {}}\nbaseline: b\n", "Unknown arm 'b'"),
        ("recipe: smoke\narms: {a: {}}\nagainst: {a: c}\n", "Unknown arm 'c'"),
        ("recipe: smoke\narms: {a: {}}\nseeds: [1, 1]\n", "different whole numbers"),
        ("recipe: smoke\narms: {a: {}}\nseeds: many\n", "'many'"),
        ("recipe: smoke\narms: {'a b': {}, a/b: {}}\n", "share a folder"),
        ("recipe: smoke\narms: {a: 3}\n", "arms.a"),
    ],
)
def test_a_grid_that_cannot_be_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "g.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_grid(path)


def test_every_grid_of_the_project_is_valid() -> None:
    names = recipe_names("grid")
    assert "embedded_wm" in names
    for name in names:
        grid = load_grid(name)
        assert len(grid.runs("runs")) == len(grid.arms) * len(grid.seeds)


# --- execution --------------------------------------------------------------------------------------


def test_all_runs_run_and_one_arm_makes_each_warm_start(fakes: Fakes) -> None:
    work = run_all(fakes, small_grid())
    assert work.finished == 4 and not work.failures and not work.waiting
    for seed in (0, 1):
        makers = fakes.folder / "warm-starts" / f"seed{seed}" / "makers.txt"
        assert makers.read_text().split() == [f"grpo-seed{seed}"]


@pytest.mark.parametrize(("mode", "code"), [("fail", 1), ("die", -signal.SIGKILL)])
def test_a_failing_run_is_told_and_the_others_go_on(
    fakes: Fakes, mode: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    fakes.modes["grpo-seed0"] = mode
    work = run_all(fakes, small_grid())
    assert work.finished == 3
    (failure,) = work.failures
    assert (failure.run, failure.code) == ("grpo-seed0", code)
    assert "line of the log" in failure.tail and ("the sky fell" in failure.tail) == (code == 1)
    Progress().failure(dataclasses.replace(failure, log=Path("[x]/a.log")))
    assert "grpo-seed0 failed; the end of [x]/a.log:\n" in capsys.readouterr().out
    fakes.modes.clear()
    assert run_all(fakes, small_grid(seeds=(0, 1, 2))).finished == 6
    assert begun(fakes, "grpo-seed0") == 2
    assert begun(fakes, "grpo-seed1") == begun(fakes, "grpo-seed2") == 1


def test_a_run_begun_with_other_settings_is_refused_by_name(fakes: Fakes) -> None:
    run_all(fakes, small_grid())
    with pytest.raises(ValueError, match=r"grpo\+paw-seed0.*world_model\.rho"):
        run_all(fakes, small_grid(overrides={"world_model.rho": 0.3}))
    assert begun(fakes, "grpo+paw-seed0") == 1


def test_settings_without_effect_do_not_make_a_run_another() -> None:
    changes = {"world_model.coef": 9.0, "optimizer.measure_gradients": True}
    one, two = small_grid().runs("runs")[0], small_grid(overrides=changes).runs("elsewhere")[0]
    assert differing_setting(one.settings.to_dict(), two) is None


@pytest.mark.parametrize(("has_expert", "episodes"), [(True, 12), (False, 0)])
def test_a_run_whose_environment_shortens_its_warm_start_is_the_planned_one(
    monkeypatch: pytest.MonkeyPatch, has_expert: bool, episodes: int
) -> None:
    monkeypatch.setattr("paw_train.environments.has_solver", lambda env, split: has_expert)
    few = {"env.kwargs.num_tasks": 3, "cloning.episodes_per_task": 4}
    run = small_grid(overrides=few).runs("runs")[0]
    own = checked_settings(run.settings, print)
    assert own.cloning.episodes == episodes
    assert differing_setting(own.to_dict(), run) is None
    assert shared_places(run) == (shared_warm_start(own), shared_evaluation(own))
    other = own.replace(cloning=own.cloning.replace(episodes=11))
    assert differing_setting(other.to_dict(), run) == "cloning.episodes"


PARENT = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    import test_compare as t
    import paw_train.reporting.compare.runs as execute
    execute.shared_places = t.by_seed
    fakes = t.Fakes(Path(sys.argv[1]), **{"grpo-seed0": "hang"})
    t.run_all(fakes, t.small_grid(seeds=(0,)))
    """
)


def start_parent(fakes: Fakes) -> Forked:
    """``run_all`` in another process, whose first run hangs until the file ``go`` is there."""
    parent = Forked(PARENT, fakes.folder, path=Path(__file__).parent, OMP_NUM_THREADS="1")
    done = fakes.folder / "grpo+paw-seed0"
    wait_until(lambda: begun(fakes, "grpo-seed0") and is_finished(done))
    return parent


def test_a_child_that_outlives_its_killed_parent_is_waited_for(fakes: Fakes) -> None:
    parent = start_parent(fakes)
    parent.process.kill()
    parent.wait()
    said: list[str] = []

    class Listener(Progress):
        def say(self, text: str) -> None:
            said.append(text)

        @contextmanager
        def bar(self, *_: Any) -> Iterator[Any]:
            yield self.advance

        def advance(self, *_: Any) -> None:
            assert not again._children, "the run must not run twice at once"
            (fakes.folder / "go").touch()

    again = runner(fakes, small_grid(seeds=(0,)), Listener)
    assert again.run().finished == 2
    assert begun(fakes, "grpo-seed0") == 1
    assert "another process is running it" in said[0]


def test_ctrl_c_stops_the_children_and_the_rest_is_left(fakes: Fakes) -> None:
    parent = start_parent(fakes)
    os.kill(parent.process.pid or 0, signal.SIGINT)
    assert parent.wait().code == 0
    assert not is_finished(fakes.folder / "grpo-seed0")
    (fakes.folder / "go").touch()
    assert run_all(fakes, small_grid(seeds=(0,))).finished == 2
    assert begun(fakes, "grpo-seed0") == 2


# --- results ----------------------------------------------------------------------------------------


def fake_results(
    rates: dict[str, list[float]], tasks: int = 100, updates: int = 4
) -> list[RunResult]:
    """Finished runs with given success rates, by arm and seed."""
    rng = np.random.default_rng(0)
    runs = []
    for arm, values in rates.items():
        for number, rate in enumerate(values):
            wins = rng.permutation(tasks) < round(rate * tasks)
            part = {"n": tasks, "success_rate": float(wins.mean())}
            flags = "".join("1" if w else "0" for w in wins)
            after = {**part, "panel_hash": "h", "by_type": {"look": part}, "successes": flags}
            metrics: dict[str, list[float | None]] = {
                "success_rate": [rate * (i + 1) / updates for i in range(updates)],
                "obs_nll": [1.0 - 0.1 * i for i in range(updates)],
            }
            validation = [[2, rate / 2, 50], [4, rate, 50]]
            settings = {"seed": number, "world_model": {"enabled": False}}
            runs.append(RunResult(arm, number, settings, None, after, validation, metrics))
    return runs


def test_results_survive_and_are_reported_anywhere(fakes: Fakes, tmp_path: Path) -> None:
    grid = small_grid()
    run_all(fakes, grid)
    run = ComparisonFolder(grid, str(tmp_path), say=lambda text: None)
    run.save()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    moved = run.results_file.rename(elsewhere / "results.json")
    assert report_of(moved) == elsewhere / "compare.html"
    for name in ("table.md", "table.json", "compare.html", "differences.svg"):
        assert (elsewhere / name).read_text() == (run.folder / name).read_text()
    known, again = read_results(moved)
    assert again == run.results() and len(known_results(grid.runs("elsewhere"), again)) == 4
    assert known.baselines() == grid.baselines() and known.seeds == grid.seeds


def test_an_imported_run_counts_as_done_and_stays_so(fakes: Fakes, tmp_path: Path) -> None:
    run_all(fakes, small_grid(seeds=(0,)))
    first = ComparisonFolder(small_grid(seeds=(0,)), str(tmp_path))
    first.save()
    results = first.results_file.rename(tmp_path / "x.json")
    said: list[str] = []
    fresh = str(tmp_path / "fresh")
    second = ComparisonFolder(small_grid(), fresh, [results], say=said.append)
    assert [s for _, s in second.states()] == ["imported", "imported", "not begun", "not begun"]
    second.save()
    third = ComparisonFolder(small_grid(), fresh, say=said.append)
    assert [s for _, s in third.states()].count("imported") == 2
    assert not said
    changed = ComparisonFolder(
        small_grid(overrides={"updates": 9}), fresh, [results], say=said.append
    )
    assert "imported" not in [s for _, s in changed.states()]
    assert any("grpo-seed0" in line and "settings" in line for line in said)


def test_running_some_arms_keeps_the_results_of_others(fakes: Fakes, tmp_path: Path) -> None:
    run_all(fakes, small_grid())
    some = ComparisonFolder(small_grid(), str(tmp_path), arms=["grpo+paw"], seeds=[1, 7])
    assert [c.name for c, _ in some.states()] == ["grpo+paw-seed1", "grpo+paw-seed7"]
    some.save()
    assert len(read_results(some.results_file)[1]) == 4


@pytest.mark.parametrize("text", ["", "{}", '{"format": 99}', '{"format": 1, "cells": []}'])
def test_a_file_that_holds_no_results_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"r\.json"):
        read_results(path)


# --- summary ---------------------------------------------------------------------------------------

BASELINES = {"grpo": "grpo", "grpo+paw": "grpo", "gigpo": "grpo", "gigpo+paw": "gigpo"}


def compared(runs: list[RunResult], primary: str | None = None) -> Comparison:
    """Every arm of the runs against the first."""
    arms = dict.fromkeys(run.arm for run in runs)
    return compare(dict.fromkeys(arms, "grpo"), "grpo", runs, primary)


def test_means_and_differences_are_those_of_a_hand_calculation() -> None:
    runs = fake_results({"grpo": [0.5, 0.6, 0.4], "grpo+paw": [0.6, 0.64, 0.56]})
    result = compared(runs)
    base = result.arms[0]
    assert base.mean == pytest.approx(0.5)
    # t quantile for two degrees of freedom, 4.302653 (any printed table)
    half = 4.302653 * 0.1 / np.sqrt(3)
    assert base.ci95 == pytest.approx((0.5 - half, 0.5 + half), abs=1e-6)
    difference = result.difference("grpo+paw")
    assert difference is not None and result.difference("grpo") is None
    assert difference.differences == pytest.approx((0.1, 0.04, 0.16))
    assert difference.mean == pytest.approx(0.1)
    half = 4.302653 * 0.06 / np.sqrt(3)
    assert difference.ci95 == pytest.approx((0.1 - half, 0.1 + half), abs=1e-6)
    # t = 0.1 / (0.06 / sqrt(3)); for 2 degrees of freedom P(|T| > t) = 1 - t / sqrt(2 + t^2)
    t = 0.1 / (0.06 / np.sqrt(3))
    assert difference.p_value == pytest.approx(1 - t / np.sqrt(2 + t * t))
    assert difference.p_holm == difference.p_value


def test_the_primary_contrast_is_not_adjusted_and_does_not_count_for_the_others() -> None:
    rates = {"grpo": [0.5, 0.6, 0.4], "grpo+paw": [0.6, 0.64, 0.56]}
    runs = fake_results(rates | {"gigpo": [0.52, 0.66, 0.4], "rloo": [0.55, 0.6, 0.44]})
    alone = compared(runs, primary="grpo+paw")
    primary = alone.difference("grpo+paw")
    assert primary is not None and primary.p_holm == primary.p_value
    others = [alone.difference(arm) for arm in ("gigpo", "rloo")]
    smallest = min(d.p_value for d in others if d is not None and d.p_value is not None)
    assert min(d.p_holm for d in others if d is not None) == pytest.approx(2 * smallest)
    assert any("primary contrast" in note for note in alone.notes)


def test_a_task_played_several_times_counts_by_its_share() -> None:
    runs = fake_results({"grpo": [0.5, 0.6], "grpo+paw": [0.7, 0.9]}, tasks=4)
    rollouts = ["1100", "1000", "1010"]
    played = [dataclasses.replace(c, after={**c.after, "successes": rollouts}) for c in runs]
    assert played[0].successes == pytest.approx([1.0, 1 / 3, 1 / 3, 0.0])
    (difference,) = compared(played).differences
    assert difference.ci95_tasks == pytest.approx((0.0, 0.0))  # task by task all are equal


def test_arms_are_compared_to_their_own_baseline_over_the_seeds_in_common() -> None:
    runs = fake_results(
        {"grpo": [0.5, 0.5], "gigpo": [0.7, 0.8], "gigpo+paw": [0.75], "grpo+paw": []}
    )
    result = compare(BASELINES, "grpo", runs)
    own = result.difference("gigpo+paw")
    assert own is not None and own.to == "gigpo" and own.seeds == (0,)
    assert own.mean == pytest.approx(0.05)
    assert own.ci95 is None and own.p_value is None and own.ci95_tasks is not None
    text = " ".join(result.notes)
    assert "Not run yet: grpo+paw" in text and "One seed" in text and "different numbers" in text


def test_seeds_that_agree_by_chance_claim_no_certainty() -> None:
    result = compared(fake_results({"grpo": [0.5, 0.6], "grpo+paw": [0.6, 0.7]}))
    (equal,) = result.differences
    assert equal.mean == pytest.approx(0.1)
    assert equal.ci95 is None and equal.p_value is None and equal.ci95_tasks is not None
    assert any("agree" in note for note in result.notes)


def test_tasks_are_not_paired_across_panels() -> None:
    runs = fake_results({"grpo": [0.5, 0.5], "grpo+paw": [0.6, 0.6]})
    runs[-1].after["panel_hash"] = "other"
    result = compared(runs)
    assert result.differences[0].ci95_tasks is None
    assert any("same tasks" in note for note in result.notes)


def test_further_measurements_are_means_over_the_updates_paired_by_seed() -> None:
    runs = fake_results({"grpo": [0.4, 0.8], "grpo+paw": [0.6, 0.8]}, updates=8)
    rows = {(s.measurement, s.arm): s for s in compared(runs).secondary}
    # the made-up curves rise evenly to the rate: 1/8, 2/8, ... of it
    whole = rows["success in training, mean of all updates, %", "grpo+paw"]
    assert whole.mean == pytest.approx(0.7 * 4.5 / 8)
    last = rows["success in training, last quarter, %", "grpo+paw"]
    assert last.mean == pytest.approx(0.7 * 7.5 / 8)
    assert last.difference == pytest.approx(0.1 * 7.5 / 8) and last.to == "grpo"
    # differences 0.2 and 0 (times 7.5/8): t = 1, and P(|T| > 1) = 1/2 for one degree of freedom
    assert last.p_value == pytest.approx(0.5)
    base = rows["success in training, last quarter, %", "grpo"]
    assert base.to is None and base.difference is None
    nll = rows["observation NLL, last quarter", "grpo"]
    assert nll.mean == pytest.approx(0.35)
    first = rows["first update with 30 % success in training (mean of three)", "grpo+paw"]
    assert first.mean == (3 + 2) / 2 and first.difference == (3 + 2) / 2 - (5 + 2) / 2
    assert _takeoff(fake_results({"grpo": [0.3]}, updates=8)[0]) == 9, "never"


def test_the_page_shows_every_arm_escaped_with_bands_and_loads_nothing(tmp_path: Path) -> None:
    name = "paw <b>&"
    grid = small_grid(arms={"grpo": {}, name: {}})
    runs = fake_results({"grpo": [0.5, 0.6], name: [0.6, 0.7]})
    write_page(tmp_path, grid, compare(grid.baselines(), "grpo", runs), runs)
    page = (tmp_path / "compare.html").read_text()
    assert "paw &lt;b&gt;&amp;" in page and "<b>&" not in page
    assert '"band": [[' in page
    assert "src=" not in page and "href=" not in page
    root = ElementTree.parse(tmp_path / "differences.svg").getroot()
    assert any(name in (text.text or "") for text in root.iter())


@pytest.mark.parametrize("name", sorted(path.stem for path in COMPARISONS.glob("*.json")))
def test_published_comparisons_belong_to_todays_grids(name: str) -> None:
    path = COMPARISONS / f"{name}.json"
    recorded, results = read_results(path)
    runs = load_grid(name).with_seeds(recorded.seeds).runs("runs")
    assert len(known_results(runs, results)) == len(results) > 0
