"""What a long stage says of itself where there is no terminal to draw a bar in."""

from __future__ import annotations

import pytest

from paw_train.evaluation import terminal
from paw_train.evaluation.terminal import Display
from paw_train.reporting.terminal import RunDisplay


def stage(capsys: pytest.CaptureFixture[str]) -> list[str]:
    with Display().task("expert episodes", 4) as advance:
        for done in range(1, 5):
            advance(done, f"{10 * done} steps")
    return capsys.readouterr().out.splitlines()


def test_a_stage_says_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "LINE_EVERY", 0.0)
    lines = [f"expert episodes: {done} of 4, {done}0 steps" for done in range(1, 5)]
    assert stage(capsys) == [*lines, "expert episodes: done"]


def test_an_updates_own_line_stands_for_its_progress(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    metrics = {
        "success_rate": 0.5,
        "reward_mean": 1.0,
        "steps_mean": 9.0,
        "invalid_rate": 0.0,
        "refused_rate": 0.0,
    }
    with RunDisplay().updates(2) as show:
        for number in (1, 2):
            now[0] += 31.0
            show({**metrics, "update": number, "seconds_rollout": 1.0, "seconds_train": 1.0})
            now[0] += 1.0
            show.learning(number)
        now[0] += 30.0
        show.learning(2)
    starts = [" ".join(line.split()[:2]) for line in capsys.readouterr().out.splitlines()]
    assert starts == ["update 1", "update 2", "training: 2"]
