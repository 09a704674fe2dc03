"""OpenEnv: a server of our environments for its clients, and its environments as ours.

    from paw_gym.adapters.openenv import create_openenv_app, FromOpenEnv

    app = create_openenv_app("paw_gym/ALFWorld-v0", split="train")   # uvicorn module:app
    env = FromOpenEnv("http://127.0.0.1:8000")

Interface as of openenv 0.10 (and openenv-core 0.3): one session a WebSocket, with the messages
``reset``, ``step`` and ``state``; an action is the object ``{"message": response}`` here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

from paw_gym.core import Outcome, Task, TaskSet, TextEnv
from paw_gym.replayed import ReplayedEnv
from paw_gym.wrappers import AgentInterface, make_agent_env

try:
    from openenv.core.env_server.http_server import create_fastapi_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State
    from openenv.core.generic_client import GenericEnvClient
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
        env_id: a registered id.
        bare: take bare actions and give bare observations, rather than prompts and raw responses.
        env_kwargs: settings of ``make_agent_env``; those of the environment included.
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
        """Takes an action."""
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
        """The episode's id and how far it has come."""
        return self._state

    def close(self) -> None:
        """Closes the environment."""
        self.agent.close()

    def list_splits(self) -> list[str]:
        """The one split that is served."""
        return [self.agent.tasks.split or "default"]

    def num_tasks(self, split: str) -> int:
        """Number of tasks."""
        return len(self.agent.tasks)

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """A task by its place.

        Raises:
            IndexError: there is no such place.
        """
        task = self.agent.tasks[index]
        return {"id": task.id, "type": task.type, "instruction": task.instruction}

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """The first tasks, at most a hundred."""
        return [self.get_task(split, n) for n in range(min(100, self.num_tasks(split)))]

    def get_task_range(
        self, split: str, start: int | None = None, stop: int | None = None
    ) -> list[dict[str, Any]]:
        """Tasks by their places, as a slice."""
        places = range(self.num_tasks(split))[slice(start, stop)]
        return [self.get_task(split, n) for n in places]


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
        env_id: a registered id.
        max_sessions: sessions at a time.
        bare: see ``OpenEnvEnvironment``.
        env_kwargs: settings of ``make_agent_env``; those of the environment included.
    """
    return create_fastapi_app(
        lambda: OpenEnvEnvironment(env_id, bare, **env_kwargs),
        TextAction,
        TextObservation,
        max_concurrent_envs=max_sessions,
    )


class FromOpenEnv(ReplayedEnv):
    """An OpenEnv server's environment as one of ours.

    Saving and restoring plays the episode again, so it is exact if the environment depends on
    its seed and its actions alone.

    Args:
        url: the server's address.
        tasks: the tasks; ``Task.data`` holds the arguments of the server's ``reset``. ``None``: one
            task, whose episodes differ by the seed alone.
        to_action: makes the server's action of a text.
        to_text: makes a text of the server's observation, a dictionary.
        admissible: reads the admissible actions out of an observation, or gives ``None``.
        max_steps: step budget.
        client: speaks to the server; ``None``: a ``GenericEnvClient`` for ``url``. An environment with a
            given client cannot be copied: the copy would play on in the same session.
    """

    def __init__(
        self,
        url: str,
        tasks: TaskSet | None = None,
        to_action: Callable[[str], dict[str, Any]] = lambda text: {"message": text},
        to_text: Callable[[dict[str, Any]], str] = lambda observation: _text_of(observation),
        admissible: Callable[[dict[str, Any]], Sequence[str] | None] = lambda observation: None,
        max_steps: int = 50,
        render_mode: str | None = None,
        client: Any = None,
    ) -> None:
        chosen = tasks or TaskSet.from_tasks([Task("openenv/0", f"Play what {url} serves.")])
        super().__init__(chosen, max_steps, render_mode)
        self._client = (client or GenericEnvClient(base_url=url)).sync()
        self._given_client = client is not None
        self._to_action, self._to_text, self._admissible = to_action, to_text, admissible

    def __deepcopy__(self, memo: Any) -> TextEnv:
        if self._given_client:
            raise TypeError(
                f"{self.env_id} cannot be copied: its client has one session, in which the copy would play "
                "on. Leave the argument client out: then each copy has a client of its own."
            )
        return super().__deepcopy__(memo)

    def _open(self, task: Task, seed: int) -> Outcome:
        self._total = 0.0
        return self._outcome(self._client.reset(**{"seed": seed, **(task.data or {})}))

    def _apply(self, action: str) -> Outcome:
        result = self._client.step(self._to_action(action))
        self._total += float(result.reward or 0.0)
        return self._outcome(result)

    def _outcome(self, result: Any) -> Outcome:
        info, done = _told(result.observation), bool(result.done)
        success, limited = info.get("success"), info.get("truncated") is True
        return Outcome(
            self._to_text(result.observation),
            reward=float(result.reward or 0.0),
            terminated=done and not limited,
            success=bool(done and self._total > 0 if success is None else success),
            score=_share(info.get("score")),
            action_is_valid=bool(info.get("action_is_valid", True)),
            admissible_actions=self._admissible(result.observation),
            truncated=done and limited,
        )

    def close(self) -> None:
        """Ends the session."""
        self._client.close()


def _told(observation: Mapping[str, Any]) -> Mapping[str, Any]:
    """``info`` as our servers give it; a field of that name may be anything in another observation."""
    info = observation.get("info")
    return info if isinstance(info, Mapping) else {}


def _share(score: Any) -> float | None:
    """A score that is a share of what can be reached; other units have no place in ours."""
    return float(score) if isinstance(score, Real) and 0 <= float(score) <= 1 else None


def _text_of(observation: dict[str, Any]) -> str:
    """The observation's text; of several fields, all of them with their names."""
    if isinstance(observation.get("text"), str):
        return str(observation["text"])
    shown = {k: v for k, v in observation.items() if k not in ("metadata", "done", "reward")}
    if len(shown) == 1:
        return str(next(iter(shown.values())))
    return "\n".join(f"{name}: {value}" for name, value in shown.items())
