"""TextArena: any of its games for one player as one of our environments.

from paw_gym.adapters.textarena import FromTextArena

env = FromTextArena("TowerOfHanoi-v0")
"""

from __future__ import annotations

import io
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from enum import Enum
from typing import Any

from paw_gym.adapters.families import seeded_tasks
from paw_gym.core import AgentDefaults, Outcome, Task
from paw_gym.internals.naming import require_choice
from paw_gym.replayed import ReplayedEnv

_LONGEST = 1_000
"""characters of an action; the games search it for patterns"""


class FromTextArena(ReplayedEnv):
    """A game of TextArena for one player, without TextArena's own wrappers.

    Its rules are the instruction; an observation is what the game said since the last action. An action
    without brackets gets them, as TextArena's wrapper does. Its games draw from Python's global
    generator; here each has a state of its own, so saving and restoring by taking the actions again is exact.
    To register it under an id, make a subclass whose constructor calls this one.

    Args:
        env: its id in TextArena, such as ``TowerOfHanoi-v0``.
        succeeded: ``succeeded(reward)``, asked when an episode terminates; most games give 1 for success and
            what was reached of it otherwise.
        split: ``train``, ``valid`` or ``test``; no seed of one is in another.
        num_tasks: seeds of the split.
        max_steps: step budget; many games have one of their own too.
        env_kwargs: arguments of the game; a part of the tasks' ids.

    Raises:
        ImportError: TextArena is not installed.
        ValueError: there is no such game, it is not for one player, or it needs what is not here; or an
            argument is known only by where it lies in memory.
    """

    agent = AgentDefaults(template="generic", history_length=4)
    held_out_splits = ("valid", "test")

    def __init__(
        self,
        env: str,
        succeeded: Callable[[float], bool] = lambda reward: reward >= 1,
        split: str = "train",
        num_tasks: int | None = None,
        max_steps: int = 100,
        render_mode: str | None = None,
        **env_kwargs: Any,
    ) -> None:
        self._name, self._kwargs, self._succeeded = env, env_kwargs, succeeded
        self._game: Any = None
        self._drawn: Any = None
        self._rules(0)  # says at once what cannot be played
        tasks = seeded_tasks(
            "textarena", env, env_kwargs, split, num_tasks,
            lambda task_id, seed: Task(task_id, self._rules(seed), env, seed),
        )  # fmt: skip
        super().__init__(tasks, max_steps, render_mode)

    def _make(self) -> Any:
        try:
            import textarena
        except ImportError as error:
            raise ImportError(
                f"{self._name} needs TextArena, which is not installed: pip install textarena"
            ) from error
        known = textarena.envs.registration.ENV_REGISTRY
        require_choice("game of TextArena", self._name, known)
        raw = f"{self._name}-raw"
        try:
            return textarena.make(raw if raw in known else self._name, **self._kwargs)
        except Exception as error:  # games fail at will where their data or keys are missing
            raise self._refusal(error) from error

    def _refusal(self, error: Exception) -> ValueError:
        hint = (str(error).strip() or type(error).__name__).splitlines()[0]
        data = re.search(r"nltk\.download\('(\w+)'\)", str(error))
        if data:
            hint = f"it needs word lists that are downloaded: python -m nltk.downloader {data[1]}"
        return ValueError(f"TextArena's {self._name} cannot be played here by one player: {hint}")

    def _rules(self, seed: int) -> str:
        """The game's first words to a player, of an episode with a seed."""
        game = self._make()
        with _apart(random.Random(seed).getstate()):
            said = self._reset(game, seed)
        return "\n".join(text for kind, text in said if kind == "PROMPT") or f"Play {self._name}."

    def _reset(self, game: Any, seed: int) -> list[tuple[str, str]]:
        try:
            game.reset(num_players=1, seed=seed)
        except Exception as error:
            raise self._refusal(error) from error
        if type(game.state).__name__ != "SinglePlayerState":
            raise ValueError(f"TextArena's {self._name} is for more than one player.")
        return _said(game)

    def _open(self, task: Task, seed: int) -> Outcome:
        self._game = self._make()
        with _apart(random.Random(task.data).getstate()) as self._drawn:
            said = self._reset(self._game, task.data)
        begun = "\n".join(text for kind, text in said if kind != "PROMPT")
        return Outcome(begun or "The game begins.")

    def _apply(self, action: str) -> Outcome:
        given = action[:_LONGEST]
        with _apart(self._drawn()) as self._drawn:
            over, _ = self._game.step(given if "[" in given or "]" in given else f"[{given}]")
        rewards, about = self._game.close() if over else ({}, {})
        said = [text for kind, text in _said(self._game) if kind != "PLAYER_ACTION"]
        ended = (about or {}).get(0, {})
        paid = (rewards or {}).get(0)
        # one game gives its reason there
        reward = float(paid) if isinstance(paid, int | float) else 0.0
        return Outcome(
            "\n".join([*said, str(ended["reason"])] if ended.get("reason") else said),
            reward=reward,
            terminated=bool(over),
            success=bool(over and self._succeeded(reward)),
            score=min(1.0, max(0.0, reward)),
            action_is_valid=not (self._game.state.error_count or ended.get("invalid_move")),
        )


@contextmanager
def _apart(state: Any) -> Iterator[Callable[[], Any]]:
    """Python's global generator in a state, for as long as it takes; what is printed meanwhile is dropped.

    Gives a function: the state that it was left in.
    """
    outside, left = random.getstate(), [state]
    random.setstate(state)
    try:
        with redirect_stdout(io.StringIO()):
            yield lambda: left[0]
    finally:
        left[0] = random.getstate()
        random.setstate(outside)


def _said(game: Any) -> list[tuple[str, str]]:
    """The game's messages since it was last asked: kind and text of each."""
    said = []
    for message in game.get_observation()[1]:
        # the sender, the text and the kind; some games hand them over in another order
        kind = next((part.name for part in message if isinstance(part, Enum)), "")
        said.append((kind, next((part.strip() for part in message if isinstance(part, str)), "")))
    return said
