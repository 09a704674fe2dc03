"""The folders of results that runs share: the warm start, and the evaluation before RL.

A folder's name is the hash of every setting that the result depends on, so runs share a result only if
it is the same for both.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from paw_gym import __version__
from paw_train.settings import Settings


def shared_warm_start(settings: Settings) -> Path | None:
    """The folder of the warm start of these settings; ``None``: nothing is shared."""
    return _folder(settings, _warm_start(settings))


def shared_evaluation(settings: Settings) -> Path | None:
    """The folder of the evaluation of that warm start."""
    # the settings left out do not change an episode of the panel
    selection = {"every", "selection_split", "selection_tasks"}
    training = {"groups", "group_size", "temperature", "branching"}
    parts = {
        "evaluation": settings.evaluation.model_dump(exclude=selection),
        "rollout": settings.rollout.model_dump(exclude=training),
    }
    if settings.world_model_learning.method != "off":
        # the evaluated policy is then not the warm start alone
        parts["world_model_learning"] = settings.world_model_learning.model_dump()
        parts["transitions"] = _transitions(settings)
        parts |= _stage(settings)
    return _folder(settings, {**_warm_start(settings), **parts}, "-evaluation")


def shared_transitions(settings: Settings) -> Path | None:
    """The folder of the warm start's episodes for world-model learning, and of its measurement."""
    return _folder(settings, {**_warm_start(settings), **_transitions(settings)}, "-transitions")


def _warm_start(settings: Settings) -> dict[str, Any]:
    return {
        "env": _environments(settings),
        "model": settings.model.model_dump(),
        # the limit has its effect in `episodes` and `steps`
        "cloning": settings.cloning.model_dump(exclude={"episodes_per_task", "checkpoint_every"}),
        "seed": settings.seed,
        "threads": settings.cpu_threads,
        "version": __version__,
    }


def _environments(settings: Settings) -> Any:
    without = {"train_kwargs", "max_return"}
    if isinstance(settings.env, tuple):
        without |= {"group_size", "reward_scale", "normalize_advantages"}
        return [entry.model_dump(exclude=without) for entry in settings.env]
    return settings.env.model_dump(exclude=without)


def _transitions(settings: Settings) -> dict[str, Any]:
    own = settings.world_model_learning
    return {
        "episodes": [own.episodes, own.held_out_episodes],
        "encoder": [own.encoder, own.encoder_prefix],
        "train_kwargs": settings.only_env.train_kwargs,
        "split": settings.evaluation.split,
        "rollout": settings.rollout.model_dump(exclude={"groups", "group_size"}),
    }


def _stage(settings: Settings) -> dict[str, Any]:
    """The settings of RL that world-model learning reads too."""
    # it has these of its own
    optimizer = {"lr", "schedule", "warmup_updates", "minibatches", "minibatch_size"}
    objective = {"kl_coef", "kl_in", "policy_coef", "entropy_coef", "log_observations"}
    return {
        "optimizer": settings.optimizer.model_dump(exclude={*optimizer, "measure_gradients"}),
        "objective": settings.objective.model_dump(exclude=objective),
    }


def _folder(settings: Settings, made_by: dict[str, Any], suffix: str = "") -> Path | None:
    if settings.warm_starts is None:
        return None
    text = json.dumps(made_by, sort_keys=True)
    return Path(settings.warm_starts) / (hashlib.sha256(text.encode()).hexdigest()[:16] + suffix)
