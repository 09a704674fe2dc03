"""What a long stage says of itself where there is no terminal to draw a bar in."""

from __future__ import annotations

import pytest

from paw_train.evaluation import terminal
from paw_train.evaluation.terminal import Display


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


def test_a_short_stage_says_only_that_it_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert stage(capsys) == ["expert episodes: done"]
