"""OpenEnv: a server of our environments for its clients.

    from paw_gym.adapters.openenv import create_openenv_app

    app = create_openenv_app("paw_gym/ALFWorld-v0", split="train")   # uvicorn module:app

Interface as of openenv 0.10 (and openenv-core 0.3): one session per WebSocket, with the messages
``reset``, ``step`` and ``state``; an action is the object ``{"message": response}`` here.
"""

from __future__ import annotations

from typing import Any

from paw_gym.wrappers import AgentInterface, make_agent_env

try:
    from openenv.core.env_server.http_server import create_fastapi_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State
except ImportError as error:
    raise ImportError("This adapter needs OpenEnv: pip install openenv") from error


class TextAction(Action):
    """The model's response, or the bare action."""

    message: str


class TextObservation(Observation):
    """The next prompt, or the bare observation."""

    text: str
    info: dict[str, Any] = {}
    """``task_id``, ``success``, ``score``, ``admissible_actions``, ``truncated``, ..."""


class OpenEnvEnvironment(Environment):
    """One of our environments as OpenEnv's ``Environment``.

    Args:
        bare: take bare actions and give bare observations, rather than prompts and raw responses.
        env_kwargs: settings of ``make_agent_env``, including those of the environment.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, env_id: str, bare: bool = False, **env_kwargs: Any) -> None:
        super().__init__()
        self.agent: AgentInterface = make_agent_env(env_id, **env_kwargs)
        self._env: Any = self.agent.env if bare else self.agent
        self._bare = bare
        self._state = State()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> TextObservation:
        """Starts an episode; ``task_id`` or ``task_index`` in ``kwargs`` chooses the task."""
        options = dict(kwargs)
        if episode_id is not None and not self._bare:
            options["episode_id"] = episode_id
        text, info = self._env.reset(seed=seed, options=options)
        self._state = State(episode_id=episode_id or info.get("episode_id"), step_count=0)
        return TextObservation(text=text, info=_plain(info, False))

    def step(
        self, action: TextAction, timeout_s: float | None = None, **kwargs: Any
    ) -> TextObservation:
        text, reward, terminated, truncated, info = self._env.step(action.message)
        self._state.step_count += 1
        return TextObservation(
            text=text,
            reward=float(reward),
            done=bool(terminated or truncated),
            info=_plain(info, bool(truncated)),
        )

    @property
    def state(self) -> State:
        return self._state

    def close(self) -> None:
        self.agent.close()

    # --- OpenEnv's task API: one split is served ---

    def list_splits(self) -> list[str]:
        return [self.agent.tasks.split or "default"]

    def num_tasks(self, split: str) -> int:
        return len(self.agent.tasks)

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        task = self.agent.tasks[index]
        return {"id": task.id, "type": task.type, "instruction": task.instruction}

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """The first tasks, at most a hundred."""
        return self.get_task_range(split, 0, 100)

    def get_task_range(
        self, split: str, start: int | None = None, stop: int | None = None
    ) -> list[dict[str, Any]]:
        return [self.get_task(split, n) for n in range(self.num_tasks(split))[start:stop]]


def _plain(info: dict[str, Any], truncated: bool) -> dict[str, Any]:
    plain = {key: value for key, value in info.items() if key not in ("transition", "messages")}
    if "transition" in info:
        plain["transition"] = info["transition"].to_dict()
    return {**plain, "truncated": truncated}


def create_openenv_app(
    env_id: str, *, max_sessions: int = 64, bare: bool = False, **env_kwargs: Any
) -> Any:
    """A FastAPI application that speaks OpenEnv's protocol; run it with ``uvicorn``.

    It has no token of its own and listens where ``uvicorn`` listens: keep it on this machine, or
    put a proxy in front that asks for one.

    Args:
        env_kwargs: settings of ``make_agent_env``, including those of the environment.
    """
    return create_fastapi_app(
        lambda: OpenEnvEnvironment(env_id, bare, **env_kwargs),
        TextAction,
        TextObservation,
        max_concurrent_envs=max_sessions,
    )
