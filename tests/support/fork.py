"""A very small environment behind a fake endpoint, for tests of ``paw eval`` that need many of them."""

from __future__ import annotations

import functools
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import pytest
import typer.main

from paw_gym import Outcome, Task, TaskSet, TextEnv, register_text_env
from paw_train.cli.program import app

ENV = "test/Fork-v0"
CERTIFICATES = functools.cache(ssl.create_default_context)
"""read once: each client reads them all, which takes longer than an evaluation here"""
COMMAND = typer.main.get_command(app)
SETTINGS = {
    "react": ["agent.examples=0"],
    "reflexion": ["agent.examples=0", "agent.trials=2"],
    "self_consistency": ["agent.samples=2"],
    "best_of_n": ["agent.n=2"],
}
"""small settings by agent"""


class Fork(TextEnv):
    """Right is right, as often as the way is long."""

    def __init__(self, length: int = 1, max_steps: int = 2, render_mode: str | None = None) -> None:
        tasks = TaskSet.from_tasks([Task(name, f"Find exit {name}.") for name in ("a", "b")])
        super().__init__(tasks, max_steps, render_mode)
        self.length, self.done = length, 0

    def _start(self, task: Task) -> Outcome:
        self.done = 0
        return self._outcome()

    def _act(self, action: str) -> Outcome:
        self.done += action == "right"
        if self.done == self.length:
            return Outcome("Out.", reward=1.0, terminated=True, success=True)
        return self._outcome(action in ("left", "right"))

    def _outcome(self, valid: bool = True) -> Outcome:
        return Outcome(
            "Turn left or right.", admissible_actions=["left", "right"], action_is_valid=valid
        )

    def reference_solution(self) -> list[str]:
        return ["right"] * (self.length - self.done)


@contextmanager
def registered() -> Iterator[None]:
    """The environment is registered, and clients share what takes long to read."""
    register_text_env(ENV, entry_point=Fork)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OPENAI_API_KEY", raising=False)
        patch.delenv("OPENAI_BASE_URL", raising=False)
        patch.setattr(ssl, "create_default_context", CERTIFICATES)
        try:
            yield
        finally:
            gym.registry.pop(ENV)


def run_paw(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of ``paw``."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        COMMAND.main(list(arguments), prog_name="paw")
    code = ended.value.code
    printed = capsys.readouterr()
    return (code if isinstance(code, int) else 0), printed.out, printed.err


def on_fork(server: Any, agent: str, *more: str) -> list[str]:
    return [
        "eval", "openai:model", "--agent", agent, "--out", "out", f"env.id={ENV}",
        f"endpoint.url={server.url}", "endpoint.cache=null", "endpoint.retries=2",
        "endpoint.timeout=20", "evaluation.temperature=0.5",
        *SETTINGS.get(agent, []), *more,
    ]  # fmt: skip
