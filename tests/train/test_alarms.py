"""Alarms on made-up series: each rule fires where it should, and noisy healthy runs raise none."""

from __future__ import annotations

import random
from typing import Any

import pytest
from trajectories import made_up

from paw_train.reporting.run.alarms import WINDOW, find_alarms
from paw_train.reporting.terminal import RunDisplay
from paw_train.training.environments import outcome_metrics

Rows = list[dict[str, Any]]


def healthy(seed: int, updates: int = 150, episodes: int = 32, noise: float = 0.03) -> Rows:
    """A run that learns, with the noise of few episodes an update."""
    rng = random.Random(seed)
    rows = []
    for update in range(1, updates + 1):
        done = update / updates
        p = 0.1 + 0.6 * done
        success = sum(rng.random() < p for _ in range(episodes)) / episodes
        rows.append(
            {
                "update": update,
                "success_rate": success,
                "invalid_rate": max(0.0, rng.gauss(0.15 - 0.1 * done, 0.04)),
                "entropy_mean": 0.3 * (1 - 0.7 * done) * rng.uniform(0.5, 1.5),
                "equal_groups": rng.choice([0.25, 0.5, 0.75, 1.0]),
                "penalty_share": rng.uniform(0.0, 0.1),
                "wm_loss": min(1.0, 1.0 - 0.5 * done + rng.gauss(0, noise)),
                "obs_nll": 4.0 - 3 * done + rng.gauss(0, 0.3),
            }
        )
    return rows


def put(rows: Rows, name: str, start: int, value: float, noise: float = 0.02) -> Rows:
    """The rows with a measurement that is ``value`` from an update on."""
    rng = random.Random(name)
    for row in rows:
        if row["update"] >= start:
            row[name] = max(0.0, value + rng.gauss(0, noise))
    return rows


@pytest.mark.parametrize(("episodes", "noise"), [(8, 0.03), (32, 0.01), (128, 0.003)])
def test_a_noisy_run_that_learns_raises_no_alarm(episodes: int, noise: float) -> None:
    for seed in range(60):
        assert find_alarms(healthy(seed, episodes=episodes, noise=noise), "cmae") == []


def test_a_run_that_stays_where_it_is_raises_no_alarm() -> None:
    # chance alone makes the best of hundreds of windows look good: that is not a collapse afterwards
    for seed in range(60):
        rng = random.Random(seed)
        rows = [
            {
                "update": update,
                "success_rate": sum(rng.random() < 0.2 for _ in range(16)) / 16,
                "invalid_rate": sum(rng.random() < 0.1 for _ in range(80)) / 80,
            }
            for update in range(1, 301)
        ]
        assert find_alarms(rows) == []


def test_a_solved_environment_is_no_alarm() -> None:
    rows = healthy(1)
    for name, value in (("success_rate", 0.99), ("entropy_mean", 0.0), ("equal_groups", 1.0)):
        put(rows, name, 60, value, noise=0.002)
    assert find_alarms(rows, "cmae") == []


@pytest.mark.parametrize(
    ("name", "value", "title"),
    [
        ("success_rate", 0.1, "Success has collapsed"),
        ("invalid_rate", 0.4, "Invalid actions have doubled"),
        ("entropy_mean", 0.0, "Action entropy has vanished"),
        ("penalty_share", 0.3, "Penalties outweigh success"),
        ("equal_groups", 1.0, "Groups do not differ in return"),
    ],
)
def test_each_rule_fires_once_and_soon(name: str, value: float, title: str) -> None:
    rows = put(healthy(2), name, 100, value, noise=0.001)
    [alarm] = find_alarms(rows, "cmae")
    assert alarm.title == title
    assert 100 <= alarm.first < 100 + 2 * WINDOW
    assert alarm.ongoing and alarm.last == 150
    assert f"updates {151 - WINDOW} to 150" in alarm.text


RECORDED = (
    (0.641, 0.233), (0.562, 0.141), (0.844, 0.382), (0.672, 0.136), (0.469, 0.355),
    (0.672, 0.241), (0.25, 0.451), (0.531, 0.729), (0.672, 0.1),
)  # fmt: skip
"""success and `penalty_share` of a run of the embedded warm start: 64 episodes an update, AdamW at 2e-4, each
refused action costs 0.5, divided by the group's deviation"""


def test_a_recorded_run_in_which_penalties_outweighed_success_is_told() -> None:
    rows = [
        {"update": update, "success_rate": success, "penalty_share": share}
        for update, (success, share) in enumerate(RECORDED, start=1)
    ]
    [alarm] = find_alarms(rows)
    assert (alarm.title, alarm.first) == ("Penalties outweigh success", WINDOW)
    assert "algorithm.normalize=batch" in alarm.text
    assert find_alarms(rows[: WINDOW - 1]) == []


def test_an_alarm_ends_when_the_run_recovers() -> None:
    rows = put(put(healthy(3), "invalid_rate", 60, 0.5), "invalid_rate", 90, 0.05)
    [alarm] = find_alarms(rows)
    assert not alarm.ongoing
    assert 60 <= alarm.first < alarm.last < 100


def test_a_bounded_loss_near_one_is_blind_unless_the_nll_falls() -> None:
    flat = [{"update": u, "wm_loss": 0.99, "obs_nll": 6.0} for u in range(1, 41)]
    [alarm] = find_alarms(flat, "cmae")
    assert (alarm.title, alarm.first) == ("World-model loss stays near 1", 2 * WINDOW)
    assert "0.990" in alarm.text
    falling = [{**row, "obs_nll": 6.0 - row["update"] / 10} for row in flat]
    assert find_alarms(falling, "cmae") == []
    assert find_alarms(flat, "ce") == []  # not bounded: 0.99 nats mean nothing
    assert find_alarms(flat, None) == []


def test_gaps_and_what_is_no_number_are_passed_over() -> None:
    rows = put(healthy(5), "success_rate", 80, 0.05)
    for row in rows[::7]:
        row["success_rate"] = None
    rows[3]["success_rate"] = float("nan")
    rows.append({"update": "x", "success_rate": 1.0})
    assert [a.title for a in find_alarms(rows)] == ["Success has collapsed"]
    assert find_alarms([]) == find_alarms(rows[:5]) == []


def test_the_terminal_prints_an_alarm_once(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"reward_mean": 0.0, "steps_mean": 5.0, "refused_rate": 0.1}
    row |= {"seconds_rollout": 1.0, "seconds_train": 1.0}
    rows = [{**r, **row} for r in put(healthy(6), "success_rate", 80, 0.05)]
    earlier, [alarm] = rows[:70], find_alarms(rows)
    with RunDisplay().updates(len(rows), earlier) as show:  # as a run that was resumed
        for record in rows[70:]:
            show(record)
    printed = capsys.readouterr().out
    assert printed.count("Alarm: ") == 1
    lines = printed.splitlines()
    [at] = [i for i, line in enumerate(lines) if line.startswith("Alarm: Success has collapsed: ")]
    assert lines[at - 1].startswith(f"update {alarm.first:4d} ")


def test_groups_with_equal_returns_are_counted() -> None:
    played = made_up(False, [(0, 1, 1.0), (0, 1, 1.0), (1, 1, 0.0), (1, 1, 1.0), (0, 1, 5.0)])
    assert outcome_metrics(played[:4])["equal_groups"] == 0.5
    # what failed is left out, and a group of one cannot differ
    played[4].episode.error = "broke"
    assert outcome_metrics([*played[:2], played[4]])["equal_groups"] == 1.0
    assert "equal_groups" not in outcome_metrics([played[0], played[2]])


def test_validation_far_below_training_is_an_alarm_from_the_first_validation_on() -> None:
    rows = [{"update": n, "success_rate": 1.0} for n in range(1, 13)]
    rows[3]["validation"] = rows[7]["validation"] = 0.0
    (alarm,) = find_alarms(rows)
    assert alarm.title == "Validation is far below training"
    assert (alarm.first, alarm.last, alarm.ongoing) == (4, 8, True)
    assert "0.0 % of the validation tasks after update 8, 100.0 % of the training" in alarm.text
    rows[11]["validation"] = 0.7
    assert [a.ongoing for a in find_alarms(rows)] == [False], "it has caught up"
    for row in rows:
        row["success_rate"] = 0.3
    assert find_alarms(rows) == [], "the gap is small"
