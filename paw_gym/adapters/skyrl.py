"""Our environments under the interface of skyrl-gym.

    import skyrl_gym
    from paw_gym.adapters.skyrl import register_skyrl

    register_skyrl("paw_alfworld", "paw_gym/ALFWorld-v0", split="train")
    env = skyrl_gym.make("paw_alfworld", extras={"task_id": ..., "seed": 0})

Interface as of skyrl-gym 0.4.0 (``skyrl_gym/envs/base_text_env.py``): ``init(prompt)`` gives chat
messages, ``step(response)`` gives the next ones with ``reward``, ``done`` and ``metadata``.
"""

from __future__ import annotations

from typing import Any

from paw_gym.wrappers import AgentInterface, make_agent_env

try:
    import skyrl_gym
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
except ImportError as error:
    raise ImportError("This adapter needs skyrl-gym: pip install skyrl-gym") from error

Messages = list[dict[str, str]]


class SkyRLTextEnv(BaseTextEnv):
    """One of our environments as a ``BaseTextEnv``: one growing dialogue of chat messages.

    Args:
        env_config: what SkyRL passes of its configuration; not used.
        extras: from the data set's row: ``task_id`` or ``task_index``, ``seed``, ``max_turns``; nulls count
            as left out.
        env_kwargs: settings of ``make_agent_env``, including those of the environment.
    """

    def __init__(
        self,
        env_config: Any = None,
        extras: dict[str, Any] | None = None,
        env_id: str = "paw_gym/ALFWorld-v0",
        **env_kwargs: Any,
    ) -> None:
        super().__init__()
        self.extras = {k: v for k, v in (extras or {}).items() if v is not None}
        self.agent: AgentInterface = make_agent_env(env_id, mode="conversation", **env_kwargs)
        self.max_turns = int(self.extras.get("max_turns", self.agent.text_env.max_steps))
        self._last: dict[str, Any] = {}

    def init(self, prompt: Messages | None = None) -> tuple[Messages, dict[str, Any]]:
        """Starts the episode; its own first message comes after those of ``prompt``, without messages of the
        role ``user``: a data set of task ids has to hold one, and it is not what the environment says."""
        self.turns = 0
        options = {k: v for k, v in self.extras.items() if k in ("task_id", "task_index")}
        # a data frame gives NumPy's integers, which Gymnasium refuses as seeds
        first, self._last = self.agent.reset(seed=int(self.extras.get("seed", 0)), options=options)
        system = [message for message in prompt or [] if message["role"] == "system"]
        return [*system, {"role": "user", "content": first}], _metadata(self._last)

    def step(self, action: str) -> BaseTextEnvStepOutput:
        self.turns += 1
        message, reward, terminated, truncated, info = self.agent.step(action)
        self._last, done = info, terminated or truncated or self.turns >= self.max_turns
        return BaseTextEnvStepOutput(
            observations=[] if done else [{"role": "user", "content": message}],
            reward=reward,
            done=done,
            metadata={**_metadata(info), "transition": info["transition"].to_dict()},
        )

    def get_metrics(self) -> dict[str, Any]:
        last = self._last
        return {"success": float(last["success"]), "score": last["score"], "turns": self.turns}

    def close(self) -> None:
        self.agent.close()


def _metadata(info: dict[str, Any]) -> dict[str, Any]:
    names = ("task_id", "task_type", "episode_id", "action_is_valid", "success", "score")
    return {name: info[name] for name in names}


def register_skyrl(name: str, env_id: str, **env_kwargs: Any) -> None:
    """Registers one of our environments with ``skyrl_gym``, under a name of its own."""
    skyrl_gym.register(
        id=name,
        entry_point="paw_gym.adapters.skyrl:SkyRLTextEnv",
        kwargs={"env_id": env_id, **env_kwargs},
    )
