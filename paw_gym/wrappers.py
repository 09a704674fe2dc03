"""The agent's side of an environment: prompts in, raw responses out, complete transitions."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.utils import RecordConstructorArgs

from paw_gym.core import AgentDefaults, TaskSet, TextEnv
from paw_gym.generated import is_whole
from paw_gym.internals.naming import require_choice
from paw_gym.prompts import HistoryItem, PromptTemplate
from paw_gym.transition import Episode, Transition, read_jsonl, write_jsonl

_DEFAULT: Any = "default"
MODES = ("window", "conversation")
INVALID_WHEN = ("rejected", "malformed")
_EPISODE = (
    *("_history", "_messages", "_observation", "_prompt", "_episode_id", "_parent"),
    "observation_span",
)
"""attributes of an ``AgentInterface`` that belong to its episode, beside ``_info``"""


class AgentInterface(gym.Wrapper[str, str, str, str], RecordConstructorArgs):
    """Turns a text environment into what a language agent sees.

    The observation is the rendered prompt ``h_t``, the action the model's raw response. Each step
    puts a ``Transition`` into ``info["transition"]``. It is an environment in its own right: ``unwrapped``
    stops here, and ``save_state`` includes the history; the ``TextEnv`` inside is ``text_env``.

    A response is invalid when its tags are missing, when the environment does not accept the action,
    or, with ``require_admissible``, when the action is not listed as admissible; with
    ``invalid_when="malformed"`` only when its tags are missing.

    Args:
        env: a (wrapped) ``TextEnv``.
        history_length: past (observation, action) pairs in the prompt; ``None``: all.
        require_admissible: whether an action must be in ``admissible_actions`` (if they are listed).
        template: a ``PromptTemplate``, the name of a built-in one, or a ``.toml`` path.
        mode: ``window`` renders a complete prompt at each step; ``conversation`` gives the next
            message of one growing dialogue and the whole dialogue in ``info["messages"]``.
        success_reward: reward of the succeeding step, others 0; ``None``: the environment's own.
        invalid_penalty: added to the reward of an invalid response.
        invalid_when: ``rejected`` or ``malformed``, see above.

    Each setting left out takes the environment's own default (``TextEnv.agent``).
    """

    def __init__(
        self,
        env: gym.Env[str, str],
        history_length: int | None = _DEFAULT,
        require_admissible: bool = False,
        template: PromptTemplate | str | Path = _DEFAULT,
        mode: str = "window",
        success_reward: float | None = _DEFAULT,
        invalid_penalty: float = _DEFAULT,
        invalid_when: str = "rejected",
    ) -> None:
        RecordConstructorArgs.__init__(
            self,
            history_length=history_length,
            require_admissible=require_admissible,
            template=template,
            mode=mode,
            success_reward=success_reward,
            invalid_penalty=invalid_penalty,
            invalid_when=invalid_when,
        )
        super().__init__(env)
        if not isinstance(env.unwrapped, TextEnv):
            raise TypeError(f"AgentInterface wraps a TextEnv, got {type(env.unwrapped).__name__}.")
        require_choice("mode", mode, MODES)
        require_choice("invalid_when", invalid_when, INVALID_WHEN)
        self.text_env: TextEnv = env.unwrapped
        own = self.text_env.agent
        given: dict[str, Any] = {
            "history_length": history_length,
            "success_reward": success_reward,
            "invalid_penalty": invalid_penalty,
        }
        changed = {name: value for name, value in given.items() if value is not _DEFAULT}
        self.settings: AgentDefaults = replace(own, **changed)
        _check_settings(self.settings)
        self.require_admissible = require_admissible
        self.invalid_when = invalid_when
        self.mode = mode
        chosen = own.template if template is _DEFAULT else template
        self.template = (
            chosen if isinstance(chosen, PromptTemplate) else PromptTemplate.load(chosen)
        )
        self._history: list[HistoryItem] = []
        self._messages: list[dict[str, str]] = []
        self._observation = ""
        self._prompt = ""
        self._info: dict[str, Any] = {}
        self._episode_id = ""
        self._parent: str | None = None
        self.observation_span = (0, 0)
        """[start, end) of the observation in the latest message, in characters (conversation mode)"""

    # --- an environment in its own right ---------------------------------------------------------

    @property
    def unwrapped(self) -> gym.Env[str, str]:
        """This wrapper: its observations and actions are not those of the environment inside."""
        return cast("gym.Env[str, str]", self)

    @property
    def _np_random(self) -> Any:  # type: ignore[override]
        return self.text_env._np_random

    @property
    def tasks(self) -> TaskSet:
        return self.text_env.tasks

    @property
    def env_id(self) -> str:
        """The registered id, or the class name of an environment that was made by hand."""
        return self.text_env.env_id

    @property
    def observation(self) -> str:
        """The environment's current observation, raw."""
        return self._observation

    # --- stepping ----------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Starts an episode; ``options["episode_id"]`` names it (else the generator's state does)."""
        options = dict(options or {})
        episode_id = options.pop("episode_id", None)
        observation, info = self.env.reset(seed=seed, options=options)
        own = _episode_name(info["task_id"], self.np_random)
        self._episode_id = own if episode_id is None else str(episode_id)
        self._parent = None
        self._history, self._messages = [], []
        self._observation = observation
        self._info = info
        shown = self.text_env.prompt_observation(observation)
        self._prompt = self.template.render_first(
            info["instruction"], shown, info["admissible_actions"]
        )
        return self._prompt, self._present()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Takes a raw response, acts, and returns the next prompt."""
        if not isinstance(action, str):
            raise TypeError(f"A response is a str, got {type(action).__name__}: {action!r:.80}")
        parsed = self.template.read_response(action)
        problem = parsed.problem
        if self.require_admissible and not self.text_env.is_admissible(parsed.action):
            problem = problem or "the action is not admissible"
        observation, env_reward, terminated, truncated, info = self.env.step(parsed.action)
        if problem is None and not info["action_is_valid"]:
            problem = "the environment did not accept the action"
        valid = (parsed.problem if self.invalid_when == "malformed" else problem) is None
        reward = self.reward_of(float(env_reward), bool(info["success"]), valid)
        transition = Transition(
            env_id=self.env_id,
            task_id=self._info["task_id"],
            episode_id=self._episode_id,
            step=len(self._history),
            prompt=self._prompt,
            observation=self._observation,
            response=action,
            action=parsed.action,
            reward=reward,
            next_observation=observation,
            terminated=terminated,
            truncated=truncated,
            action_is_valid=valid,
            info={
                "env_reward": float(env_reward),
                "penalty": 0.0 if valid else float(self.settings.invalid_penalty),
                "success": info["success"],
                "score": info["score"],
                "problem": problem,
                "malformed": parsed.problem is not None,
                **{key: info[key] for key in self.text_env.recorded_info if key in info},
            },
            parent=self._parent,
        )
        self._advance(parsed.action, action, observation, {**info, "action_is_valid": valid})
        shown = {**self._present(), "transition": transition}
        return self._prompt, reward, terminated, truncated, shown

    def reward_of(self, env_reward: float, success: bool, valid: bool) -> float:
        """The agent's reward for a step, from the environment's own."""
        bonus = self.settings.success_reward
        reward = env_reward if bonus is None else bonus * success
        return float(reward if valid else reward + self.settings.invalid_penalty)

    def _advance(self, action: str, response: str, observation: str, info: dict[str, Any]) -> None:
        self._messages.append({"role": "user", "content": self._prompt})
        self._messages.append({"role": "assistant", "content": response})
        before = self.text_env.prompt_observation(self._observation)
        self._history.append(HistoryItem(before, action))
        self._observation, self._info = observation, info
        shown = self.text_env.prompt_observation(observation)
        instruction, admissible = info["instruction"], info["admissible_actions"]
        if self.mode == "conversation":
            turn = (instruction, shown, admissible, len(self._history))
            self._prompt = self.template.render_turn(*turn)
            self.observation_span = self.template.turn_span(*turn)
        else:
            self._prompt = self.template.render_step(
                instruction, self._history, self.settings.history_length, shown, admissible
            )

    def _present(self) -> dict[str, Any]:
        info = {**self._info, "episode_id": self._episode_id}
        if info["admissible_actions"] is not None:
            info["admissible_actions"] = list(info["admissible_actions"])
        if self.mode == "conversation":
            now = {"role": "user", "content": self._prompt}
            info["messages"] = [*map(dict, self._messages), now]
        return info

    def response_for(self, action: str) -> str:
        """The response that a flawless agent would write to take ``action``."""
        return self.template.response_for(action)

    def new_episode(self, group: int = 0) -> Episode:
        """An empty record of the episode that was just started."""
        return Episode(
            env_id=self.env_id,
            task_id=self._info["task_id"],
            episode_id=self._episode_id,
            task_type=self._info["task_type"],
            instruction=self._info["instruction"],
            group=group,
            context_mode=self.mode,
        )

    def branch(self, episode_id: str) -> None:
        """Makes what follows a branch of the present episode (its ``parent``), under a name of its own."""
        self._parent, self._episode_id = self._episode_id, episode_id

    # --- exact save and restore ----------------------------------------------------------------------

    def save_state(self) -> dict[str, Any]:
        """The environment's state and the agent's view of it; picklable."""
        # messages and past steps never change; deep copies of them would take T^2 space
        kept = {name: copy.copy(getattr(self, name)) for name in _EPISODE}
        info = copy.deepcopy(self._info)
        return {"text_env": self.text_env.save_state(), "info": info, **kept}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Goes back to a state that ``save_state`` gave."""
        self.text_env.restore_state(state["text_env"])
        self._info = copy.deepcopy(state["info"])
        for name in _EPISODE:
            setattr(self, name, copy.copy(state[name]))

    def reference_solution(self) -> list[str]:
        """Responses that lead from the present state to success, found with no model."""
        return [self.response_for(action) for action in self.text_env.reference_solution()]


def _check_settings(settings: AgentDefaults) -> None:
    """Raises ``ValueError`` for a setting that would fail, or give non-numeric rewards, in mid-episode."""
    length = settings.history_length
    if length is not None and not (is_whole(length) and length >= 0):
        raise ValueError(f"history_length is 0 or more, or None for all, got {length!r}.")
    rewards: dict[str, object] = {"invalid_penalty": settings.invalid_penalty}
    if settings.success_reward is not None:
        rewards["success_reward"] = settings.success_reward
    for name, value in rewards.items():
        if not isinstance(value, Real) or not math.isfinite(value):
            raise ValueError(f"{name} is a finite number, got {value!r}.")


class RecordTransitions(gym.Wrapper[str, str, str, str], RecordConstructorArgs):
    """Writes every episode to a JSONL file, each when it ends (or when it is left or closed).

    Around a bare ``TextEnv`` the prompt is the observation and the response is the action; around
    an ``AgentInterface`` its transitions are written as they are. Episodes are appended to the file.
    """

    def __init__(self, env: gym.Env[str, str], path: str | os.PathLike[str]) -> None:
        RecordConstructorArgs.__init__(self, path=path)
        super().__init__(env)
        self.path = Path(path)
        self.episode: Episode | None = None
        self._observation = ""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self._flush()
        observation, info = self.env.reset(seed=seed, options=options)
        # now, not when there is already an episode to lose
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.is_dir() or self.path.is_file():  # reading a pipe would wait
            next(read_jsonl(self.path), None)  # raises for a folder, or a file of something else
        inner: Any = self.env.unwrapped
        if isinstance(inner, AgentInterface):
            self.episode = inner.new_episode()
        else:
            name = _episode_name(info["task_id"], inner.np_random)
            self.episode = Episode(
                inner.env_id, info["task_id"], name, info["task_type"], info["instruction"]
            )
        self._observation = observation
        return observation, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.episode is None:
            raise RuntimeError("No episode was started: call reset() first.")
        observation, reward, terminated, truncated, info = self.env.step(action)
        transition = info.get("transition") or Transition(
            env_id=self.episode.env_id,
            task_id=self.episode.task_id,
            episode_id=self.episode.episode_id,
            step=len(self.episode.transitions),
            prompt=self._observation,
            observation=self._observation,
            response=action,
            action=action,
            reward=float(reward),
            next_observation=observation,
            terminated=terminated,
            truncated=truncated,
            action_is_valid=info["action_is_valid"],
            info={"success": info["success"], "score": info["score"]},
        )
        self.episode.transitions.append(transition)
        self._observation = observation
        if terminated or truncated:
            self._flush()
        return observation, float(reward), terminated, truncated, {**info, "transition": transition}

    def _flush(self) -> None:
        if self.episode is not None and self.episode.transitions:
            write_jsonl(self.path, [self.episode], append=True)
        self.episode = None

    def close(self) -> None:
        self._flush()
        super().close()


def _episode_name(task_id: str, generator: np.random.Generator) -> str:
    """A name from the generator's state: sampling one would change what the environment samples next."""
    state = json.dumps(generator.bit_generator.state, default=lambda array: array.tolist())
    return f"{task_id}#{hashlib.blake2b(state.encode(), digest_size=6).hexdigest()}"


def make_agent_env(
    env_id: str,
    history_length: int | None = _DEFAULT,
    require_admissible: bool = False,
    template: PromptTemplate | str | Path = _DEFAULT,
    mode: str = "window",
    success_reward: float | None = _DEFAULT,
    invalid_penalty: float = _DEFAULT,
    invalid_when: str = "rejected",
    **env_kwargs: Any,
) -> AgentInterface:
    """``gymnasium.make(env_id, **env_kwargs)`` behind an ``AgentInterface`` with the given settings."""
    from paw_gym.registration import make_text_env

    return AgentInterface(
        make_text_env(env_id, **env_kwargs),
        history_length=history_length,
        require_admissible=require_admissible,
        template=template,
        mode=mode,
        success_reward=success_reward,
        invalid_penalty=invalid_penalty,
        invalid_when=invalid_when,
    )
