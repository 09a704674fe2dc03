"""Environments that give a gateway trouble. Imported by the server and its workers, not by tests."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from paw_gym import Outcome, Task, TaskSet, TextEnv, register_text_env


class Dice(TextEnv):
    """Draws from the generator at every step."""

    recorded_info = ("rolled",)
    held_out_splits = ("valid", "test")
    small_template = "generic"
    type_groups = {"games": ("dice",)}

    def __init__(self, max_steps: int = 6, render_mode: str | None = None) -> None:
        tasks = TaskSet.from_tasks([Task(f"dice/{n}", f"Roll for {n}.", "dice") for n in range(12)])
        super().__init__(tasks, max_steps, render_mode)

    def _start(self, task: Task) -> Outcome:
        self.state = {"total": int(self.np_random.integers(6))}
        return self._show("Begin.", True)

    def _act(self, action: str) -> Outcome:
        if action == "roll":
            self.state["total"] += int(self.np_random.integers(1, 7))
            return self._show("Rolled.", True)
        if action == "stop":
            return Outcome("Stopped.", 1.0, True, True, info={"rolled": self.state["total"]})
        return self._show("What?", False)

    def _show(self, words: str, valid: bool) -> Outcome:
        total = self.state["total"]
        return Outcome(
            f"{words} Total {total}. ({self.task.instruction})",
            reward=total / 7,
            action_is_valid=valid,
            admissible_actions=["roll", "stop"],
            info={"rolled": total},
        )

    def prompt_observation(self, observation: str) -> str:
        return observation.partition(" (")[0]

    def reference_solution(self) -> list[str]:
        return ["roll", "stop"]


class Trouble(TextEnv):
    """Does what it is told, were it to die."""

    def __init__(self, max_steps: int = 50, mood: str = "good", data_dir: Any = None) -> None:
        if mood == "lost":
            raise FileNotFoundError("/secret/place is not there")
        if mood == "bad":
            raise ValueError("mood: 'good' is the only one.")
        super().__init__(TaskSet.from_tasks([Task("t", "Try.")]), max_steps)

    def _start(self, task: Task) -> Outcome:
        self.state = {"said": []}
        return Outcome("Well?")

    def _act(self, action: str) -> Outcome:
        if action == "raise":
            raise ZeroDivisionError("as told")
        if action == "leave":
            raise SystemExit(1)
        if action == "exit":
            os._exit(3)
        if action == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if action == "hang":
            time.sleep(3600)
        if action == "print":
            print("to standard output" * 1000)
        self.state["said"].append(action)
        chance = os.urandom(8).hex() if action == "whim" else ""
        return Outcome(f"{len(self.state['said'])} {self.state['said']} {chance}", reward=0.5)

    def is_admissible(self, action: str) -> bool:
        return action not in self.state["said"]

    def expert(self) -> Callable[[], str]:
        """Counts what it is asked, and after every third time has nothing to say; draws to begin with."""
        offset, asked = int(self.np_random.integers(1000)), 0

        def act() -> str:
            nonlocal asked
            asked += 1
            if asked % 3 == 0:
                raise StopIteration
            return f"{offset} {asked} after {len(self.state['said'])}"

        return act


register_text_env("tests/Dice-v0", Dice)
register_text_env("tests/Trouble-v0", Trouble)
