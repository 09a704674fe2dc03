"""Episodes that a person plays: the present state, undo, and the record; without a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym

from paw_gym.core import TextEnv
from paw_gym.internals.validation import naming_authors_line
from paw_gym.wrappers import RecordTransitions


class PlaySession:
    """One environment, played episode after episode.

    Args:
        env: a (wrapped) text environment.
        path: JSONL file that the episodes are appended to.
    """

    def __init__(self, env: gym.Env[str, str], path: Path) -> None:
        self.path = path
        self._recorder = RecordTransitions(env, path)
        self._past: list[tuple[dict[str, Any], str, dict[str, Any]]] = []
        self.observation = ""
        self.info: dict[str, Any] = {}
        self.reward = 0.0
        self.terminated = False
        self.truncated = False
        self.recorded = 0
        """episodes in the file"""

    @property
    def env(self) -> TextEnv:
        """The environment itself."""
        inner = self._recorder.unwrapped
        assert isinstance(inner, TextEnv)
        return inner

    @property
    def step(self) -> int:
        """Actions taken in this episode."""
        return len(self._past)

    @property
    def over(self) -> bool:
        """Whether the episode has ended."""
        return self.terminated or self.truncated

    @property
    def actions(self) -> list[str]:
        """The admissible actions; empty where the environment does not list them."""
        return list(self.env.list_actions() or [])

    def start(self, task_id: str | None = None, seed: int | None = None) -> None:
        """Starts an episode.

        Raises:
            KeyError: unknown task id; the episode that was being played goes on.
            EnvironmentRaisedError: the environment raised something.
        """
        if task_id is not None:
            self.env.tasks[task_id]
        self._leave()
        options = None if task_id is None else {"task_id": task_id}
        with naming_authors_line("reset"):
            self.observation, self.info = self._recorder.reset(seed=seed, options=options)
        self.reward, self.terminated, self.truncated = 0.0, False, False
        self._past = []

    def again(self) -> None:
        """Starts the same task once more."""
        self.start(self.info["task_id"])

    def _leave(self) -> None:
        """Counts the unfinished episode that the recorder is about to write."""
        if self._past and not self.over:
            self.recorded += 1

    def act(self, action: str) -> None:
        """Takes an action.

        Raises:
            EnvironmentRaisedError: the environment raised something; the action was not taken.
        """
        before = (self.env.save_state(), self.observation, self.info)
        with naming_authors_line(f"step({action!r:.80})"):
            answer = self._recorder.step(action)
        self._past.append(before)
        self.observation, self.reward, self.terminated, self.truncated, self.info = answer
        if self.over:
            self.recorded += 1

    def undo(self, steps: int = 1) -> int:
        """Takes back actions, in the record too; returns their number.

        Raises:
            RuntimeError: the episode is over, and written.
        """
        if self.over:
            raise RuntimeError("The episode is over and recorded; :again starts the task again.")
        steps = min(steps, len(self._past))
        if steps > 0:
            state, self.observation, self.info = self._past[-steps]
            del self._past[-steps:]
            self.env.restore_state(state)
            self._recorder.undo(steps)
            self.reward = 0.0
        return steps

    def hint(self) -> str | None:
        """The reference solver's next action; ``None`` where there is no solver, or no solution from here."""
        try:
            actions = self.env.reference_solution()
        except NotImplementedError:
            return None
        return actions[0] if actions else None

    def close(self) -> None:
        """Writes the unfinished episode and closes the environment."""
        self._leave()
        self._past = []
        self._recorder.close()
