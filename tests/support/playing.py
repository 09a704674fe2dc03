"""Episodes that are played to their end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

Answer = tuple[str, float, bool, bool, dict[str, Any]]


def play(env: Any, actions: Callable[[], str] | Iterable[str]) -> list[Answer]:
    """What ``step`` answers to each of some actions, or to an expert's until the episode is over."""
    if not callable(actions):
        return [env.step(action) for action in actions]
    answers = [env.step(actions())]
    while not (answers[-1][2] or answers[-1][3]):
        answers.append(env.step(actions()))
    return answers
