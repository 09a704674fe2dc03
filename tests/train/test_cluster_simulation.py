"""The simulated cluster against closed forms, and what it must conserve whatever the load."""

from __future__ import annotations

import importlib
import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def sim() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module("cluster_simulation")
        for name in ("cluster_simulation", "cluster_engine"):
            sys.modules.pop(name, None)


@pytest.fixture
def costs(sim: ModuleType) -> Any:
    return sim.Costs(
        decode=0.01, decode_a_sequence=0.001, prefill=1e-4, turn=0.5, train=1e-5, update=3.0
    )


@pytest.fixture
def equal(sim: ModuleType) -> Any:
    """Eight episodes of four turns of 50 tokens, no two alike in group."""
    return sim.Load(8, 1, (4, 4), prompt=100, observation=20, response=(50, 50))


def _rollout(sim: ModuleType, cluster: Any, load: Any, costs: Any) -> float:
    """Seconds of one synchronous rollout."""
    simulation = sim.Simulation(cluster, load, costs)
    seconds: float = simulation.run(1).seconds
    return seconds - simulation.training


# --- closed forms ---------------------------------------------------------------------------------


def test_one_engine_with_equal_episodes(sim: ModuleType, costs: Any, equal: Any) -> None:
    read = 8 * (100 + 3 * 20) * costs.prefill  # all wait while one is read
    written = 4 * 50 * costs.step(8)
    found = _rollout(sim, sim.Cluster(1), equal, costs)
    assert found == pytest.approx(read + written + 4 * costs.turn)


def test_one_episode_on_any_number_of_engines(sim: ModuleType, costs: Any, equal: Any) -> None:
    alone = (100 + 3 * 20) * costs.prefill + 4 * 50 * costs.step(1) + 4 * costs.turn
    for gpus in (1, 8):
        one = replace(equal, episodes=1)
        assert _rollout(sim, sim.Cluster(gpus), one, costs) == pytest.approx(alone)


def test_engines_divide_equal_episodes(sim: ModuleType, costs: Any, equal: Any) -> None:
    on_two = _rollout(sim, sim.Cluster(2), equal, costs)
    half = _rollout(sim, sim.Cluster(1), replace(equal, episodes=4), costs)
    assert on_two == pytest.approx(half)


def test_environments_queue_for_workers(sim: ModuleType, costs: Any, equal: Any) -> None:
    """Of c workers with service times of D, the last of n that come together is served after n/c of them."""
    load = replace(equal, turns=(1, 1))
    answered = 8 * 100 * costs.prefill + 50 * costs.step(8)
    for workers, rounds in [(1, 8), (2, 4), (3, 3), (8, 1), (None, 1)]:
        found = _rollout(sim, sim.Cluster(1, workers=workers), load, costs)
        assert found == pytest.approx(answered + rounds * costs.turn)


def test_a_group_reads_its_prompt_once_on_an_engine(
    sim: ModuleType, costs: Any, equal: Any
) -> None:
    apart = _rollout(sim, sim.Cluster(1), equal, costs)
    together = _rollout(sim, sim.Cluster(1), replace(equal, group_size=8), costs)
    assert apart - together == pytest.approx(7 * 100 * costs.prefill)


def test_an_update_is_sampled_and_then_trained_on(sim: ModuleType, costs: Any, equal: Any) -> None:
    tokens = 8 * (100 + 3 * 20 + 4 * 50)
    rollout = _rollout(sim, sim.Cluster(2), equal, costs)
    train = tokens * costs.train / 2 + costs.update
    outcome = sim.Simulation(sim.Cluster(2), equal, costs).run(5)
    assert outcome.seconds == pytest.approx(rollout + train)
    assert outcome.staleness == 0
    assert outcome.used == pytest.approx(outcome.sampling * rollout / (rollout + train)
                                         + train / (rollout + train))  # fmt: skip


@pytest.mark.parametrize("update", [3.0, 30.0])
def test_beside_training_the_longer_of_both_counts(
    sim: ModuleType, costs: Any, equal: Any, update: float
) -> None:
    """One update ahead and equal episodes with room for one update at a time."""
    costs = replace(costs, update=update)
    cluster = sim.Cluster(2, sampling=1, staleness=1, resident=8)
    rollout = _rollout(sim, sim.Cluster(1), equal, costs)
    train = 8 * (100 + 3 * 20 + 4 * 50) * costs.train + update
    outcome = sim.Simulation(cluster, equal, costs).run(6)
    assert outcome.seconds == pytest.approx(max(rollout, train))
    assert outcome.staleness == 1


def test_weights_wait_for_the_longest_episode(sim: ModuleType, costs: Any) -> None:
    """Training takes no time: an update takes what its longest episode does, however many GPUs sample."""
    costs = replace(costs, train=0.0, update=0.0)
    load = sim.Load(16, 1, (2, 9), response=(5, 60), stragglers=0.2)
    cluster = sim.Cluster(17, sampling=16, staleness=1)
    simulation = sim.Simulation(cluster, load, costs)
    simulation.run(3)
    ends = [0.0, *simulation.trained]
    for update, (begin, end) in enumerate(itertools.pairwise(ends)):
        longest = max(
            sum(e.responses) * costs.step(1) + sum(e.environment)
            for e in sim.episodes_of(load, costs, update, 0)
        )
        assert end - begin >= longest


def test_without_staleness_nothing_overlaps(sim: ModuleType, costs: Any, equal: Any) -> None:
    rollout = _rollout(sim, sim.Cluster(1), equal, costs)
    train = 8 * (100 + 3 * 20 + 4 * 50) * costs.train + costs.update
    cluster = sim.Cluster(2, sampling=1, staleness=0)
    outcome = sim.Simulation(cluster, equal, costs).run(4)
    assert outcome.seconds == pytest.approx(rollout + train)
    assert outcome.staleness == 0


# --- what holds for every load --------------------------------------------------------------------

UNEVEN = {"stragglers": 0.2, "slow": 0.2}


@pytest.mark.parametrize("dispatch", ["group", "episode"])
@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("sampling", [None, 2])
def test_work_is_conserved(
    sim: ModuleType, costs: Any, dispatch: str, workers: int | None, sampling: int | None
) -> None:
    load = sim.Load(24, 4, (2, 9), response=(5, 60), **UNEVEN)
    cluster = sim.Cluster(4, dispatch, 5, workers, sampling, 2)
    simulation = sim.Simulation(cluster, load, costs, seed=3)
    outcome = simulation.run(3)
    made = [e for update in range(3) for e in sim.episodes_of(load, costs, update, 3)]
    assert outcome.generated == pytest.approx(sum(sum(e.responses) for e in made))
    stepped = sum(workers.busy for workers in simulation.workers)
    assert stepped == pytest.approx(sum(sum(e.environment) for e in made))
    assert outcome.staleness <= (0 if sampling is None else 2)
    assert 0 < outcome.used <= 1 and 0 < outcome.sampling <= 1
    assert len(simulation.trained) == 3


def test_no_rollout_beats_its_bounds(sim: ModuleType, costs: Any) -> None:
    """Its longest episode alone on an engine; its environments' work divided by all workers."""
    load = sim.Load(64, 8, (2, 20), response=(5, 80), **UNEVEN)
    made = sim.episodes_of(load, costs, 0, 0)
    longest = max(sum(e.responses) * costs.step(1) + sum(e.environment) for e in made)
    steps = sum(sum(e.environment) for e in made)
    for cluster in (sim.Cluster(4), sim.Cluster(4, "group"), sim.Cluster(4, workers=1)):
        found = _rollout(sim, cluster, load, costs)
        assert found >= longest
        assert found >= steps / (4 * (cluster.workers or 64))


def test_whole_groups_leave_engines_idle(sim: ModuleType, costs: Any) -> None:
    load = sim.Load(128, 8, (2, 4), response=(5, 20))
    assert sim.Simulation(sim.Cluster(64, "group"), load, costs).run(1).idle_engines == 48
    assert sim.Simulation(sim.Cluster(64), load, costs).run(1).idle_engines == 0


def test_a_limit_of_residents_is_kept(sim: ModuleType, costs: Any, equal: Any) -> None:
    simulation = sim.Simulation(sim.Cluster(1, resident=2), equal, costs)
    most = 0
    whole = simulation._send

    def send(number: int, engine: int) -> None:
        nonlocal most
        whole(number, engine)
        most = max(most, len(simulation.engines[engine].resident))

    simulation._send = send
    simulation.run(1)
    assert most == 2


# --- the program ----------------------------------------------------------------------------------


def test_costs_come_from_a_file(sim: ModuleType, tmp_path: Path) -> None:
    given = json.loads((BENCHMARKS / "cluster_costs.json").read_text())
    assert sim.load_costs(sim.COSTS).turn == given["turn"]
    for change, named in [({"decode": -1.0}, "decode"), ({"speed": 1.0}, "speed")]:
        wrong = tmp_path / "costs.json"
        wrong.write_text(json.dumps({**given, **change}))
        with pytest.raises(ValueError, match=named):
            sim.load_costs(wrong)


def test_the_tables_are_printed(sim: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    sim.main(["--gpus", "2", "4", "--episodes", "16", "--updates", "2"])
    text = capsys.readouterr().out
    assert "| 4 | " in text and "5 % of the episodes straggle" in text
