"""Settings of the environment and of the agent's interface to it."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import model_validator

from paw_train.settings.base import Group
from paw_train.settings.ranges import AboveZero, Count, Number, Text
from paw_train.settings.secrets import refuse_secrets


class EnvSettings(Group):
    """The environment and the agent's interface to it."""

    id: Text = "paw_gym/ALFWorld-v0"
    """registered id of the environment"""
    kwargs: dict[str, Any] = {}
    """arguments of the environment, such as ``data_dir``, except ``split`` (which ``train_split`` and
    ``evaluation.split`` set); a secret is given as ``env:NAME``, where ``NAME`` is the environment
    variable that contains it"""
    train_kwargs: dict[str, Any] = {}
    """additional arguments of the environment in training's rollouts only, such as a smaller ``max_steps``"""
    train_split: Text = "train"
    """split that training samples its tasks from"""
    template: str | None = None
    """prompt template: a built-in name or a ``.toml`` file; null: the environment's own"""
    mode: Literal["window", "conversation"] = "window"
    """``window``: each prompt is complete in itself; ``conversation``: one growing dialogue per episode"""
    history_length: Count | None = 2
    """number of past (observation, action) pairs in a window-mode prompt; null: all"""
    require_admissible: bool = False
    """whether an action that is not listed as admissible is judged invalid before the environment sees it"""
    reward: Literal["agent", "environment"] = "agent"
    """``agent``: the reward that the environment declares for agents, such as 10 on success and 0 otherwise;
    ``environment``: its own, such as WebShop's score in [0, 1], which rewards partial matches"""
    invalid_penalty: Number | None = None
    """reward added for an invalid response; null: the environment's own (-0.1 for ALFWorld)"""
    invalid_when: Literal["rejected", "malformed"] = "rejected"
    """which responses are invalid: ``rejected``, those that are malformed or whose action the environment
    does not accept; ``malformed``, only those without the required tags (GiGPO's published code)"""
    max_return: AboveZero | None = None
    """R_max of the adaptive weight; null: the environment's success reward"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if "split" in self.kwargs or "split" in self.train_kwargs:
            raise ValueError(
                "env.kwargs.split: a split is chosen by what uses it: env.train_split for training, "
                "evaluation.split for evaluation, evaluation.selection_split for choosing checkpoints."
            )
        refuse_secrets(self.kwargs, "env.kwargs")
        refuse_secrets(self.train_kwargs, "env.train_kwargs")
        return self
