"""All settings of a training run."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from annotated_types import Interval
from pydantic import field_validator, model_validator

from paw_gym import __version__
from paw_gym.internals.files import user_path
from paw_train.settings.algorithm import AlgorithmSettings, ObjectiveSettings, OptimizerSettings
from paw_train.settings.base import AtLeastZero, Count, Group, Positive, Seed, Text
from paw_train.settings.env import (
    EnvSettings,
    Member,
    MixedEnvSettings,
    entry_name,
    member_of,
    read_mixture,
    refuse_secrets,
)
from paw_train.settings.model import CloningSettings, ModelSettings
from paw_train.settings.openrlhf import OpenRLHFSettings
from paw_train.settings.rollout import RolloutSettings
from paw_train.settings.world_model import WorldModelLearningSettings, WorldModelSettings

CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")
"""microseconds of CPU time, and the period in which a container has them"""


class EvalSettings(Group):
    """The tasks on which success is measured."""

    split: Text = "valid_unseen"
    """split from which the evaluation panel is sampled, once, with ``seed``"""
    tasks: Count = 200
    """number of tasks in the evaluation panel, at most all of the split"""
    plays: Positive = 1
    """number of episodes per task before and after RL, each sampled independently; validations during
    training always run one"""
    seed: Seed = 1234
    """seed of the panel and of sampling"""
    temperature: AtLeastZero = 0.4
    """sampling temperature in evaluations; 0.4 is the paper's value for validation"""
    batch: Positive = 128
    """number of episodes, or of predictions of world-model learning, that are sampled at the same time"""
    every: Count = 0
    """number of updates between validations on the selection panel; 0: none"""
    selection_split: Text = "valid_seen"
    """split of the selection panel, for validation during training and the choice of the checkpoint"""
    selection_tasks: Count = 64
    """number of tasks in the selection panel"""


class RecordSettings(Group):
    """The training episodes that a run records for ``paw view``; results do not depend on them."""

    every: Count = 10
    """number of updates between recordings of two groups of episodes, with their token probabilities,
    entropies, advantages and the world model's weights; it starts with the first update. 0: none"""


WITHOUT_EFFECT = (
    *("note", "out", "record", "checkpoint_every", "warm_starts", "tracking"),
    "cloning.checkpoint_every",
    "optimizer.measure_gradients",
    "rollout.vllm.gpu_memory",
)
"""settings (dotted) that results do not depend on"""

MAY_CHANGE: Mapping[str, str | None] = MappingProxyType(
    {
        **dict.fromkeys(WITHOUT_EFFECT),
        **dict.fromkeys(("threads", "updates", "algorithm.critic.lr")),
        **{f"optimizer.{name}": None for name in ("lr", "schedule", "warmup_updates")},
        "optimizer.micro_batch_tokens": None,
        **dict.fromkeys(("cloning.lr", "cloning.matrix_lr"), "warm"),
        **dict.fromkeys([f"world_model_learning.{m}.lr" for m in ("sft", "rwml")], "world_model"),
    }
)
"""settings (dotted) that may differ when a run is resumed; any other change makes it another run. With the
name of a checkpoint: only until that is made, and what led to it begins again. ``updates`` may grow"""


class Settings(Group):
    """All settings of a training run."""

    name: Text = "run"
    """name of the run, and of its folder in ``out``"""
    note: Text | None = None
    """a sentence about the run, which the terminal and the report show"""
    out: Text = "runs"
    """folder in which runs are stored"""
    seed: Seed = 0
    """seed of all randomness in the run"""
    threads: Annotated[int, Interval(ge=1, le=1024)] | None = None
    """number of CPU threads, or for a small model on Linux processes (at most 8); null: as many as there are
    cores for this process, which the run records"""
    updates: Count = 100
    """number of RL updates"""
    checkpoint_every: Positive = 5
    """number of updates between checkpoints"""
    engine: Literal["local", "openrlhf"] = "local"
    """training engine: ``local``, one process; or ``openrlhf``, a Ray cluster (settings: ``openrlhf``)"""
    warm_starts: str | None = None
    """folder in which runs share warm starts (and the evaluation before RL), each under the hash of the
    settings that determine it; null: each run has its own"""
    tracking: list[Text] = ["tensorboard"]
    """experiment trackers that the run reports to: ``tensorboard``, ``wandb``, or one that another package
    registers; an empty list: none"""
    env: EnvSettings | tuple[MixedEnvSettings, ...] = EnvSettings()
    model: ModelSettings = ModelSettings()
    cloning: CloningSettings = CloningSettings()
    rollout: RolloutSettings = RolloutSettings()
    algorithm: AlgorithmSettings = AlgorithmSettings()
    objective: ObjectiveSettings = ObjectiveSettings()
    world_model: WorldModelSettings = WorldModelSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    evaluation: EvalSettings = EvalSettings()
    record: RecordSettings = RecordSettings()
    world_model_learning: WorldModelLearningSettings = WorldModelLearningSettings()
    openrlhf: OpenRLHFSettings = OpenRLHFSettings()

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        env = data.get("env")
        if env is None or isinstance(env, EnvSettings):
            return data
        listed = isinstance(env, Sequence) and not isinstance(env, str)
        return {**data, "env": read_mixture(env) if listed else EnvSettings.read(env, "env")}

    @field_validator("out", "warm_starts")
    @classmethod
    def _of_home(cls, path: str | None) -> str | None:
        return None if path is None else str(user_path(path))

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.name != Path(self.name).name or self.name == "..":
            raise ValueError(
                f"name is the name of one folder, without a path, got {self.name!r}. The folder that it "
                "lies in is out=FOLDER."
            )
        refuse_secrets(self.cloning.kwargs, "cloning.kwargs")
        if self.evaluation.every and not self.evaluation.selection_tasks:
            raise ValueError(
                "evaluation.selection_tasks is 0, so no checkpoint can be chosen; "
                "evaluation.every=0 goes without."
            )
        if self.objective.policy_coef == 0 and not self.world_model.enabled:
            raise ValueError(
                "objective.policy_coef is 0 and world_model.enabled is false, so nothing is learned: "
                "set one of them."
            )
        if self.world_model.placebo and any(m.env.mode != "window" for m in self.members):
            raise ValueError(
                "world_model.placebo exchanges observations, which in a dialogue would change what later "
                "actions answer: use env.mode=window."
            )
        if self.engine == "openrlhf" and self.world_model_learning.method != "off":
            raise ValueError(
                f"world_model_learning.method={self.world_model_learning.method} runs on engine=local "
                "only; learn the world model there, and give its checkpoint (RUN/checkpoints/world_model/"
                "model) to the cluster as model.path."
            )
        if self.mixed and self.engine == "openrlhf":
            raise ValueError(
                "engine=openrlhf trains one environment, and env is a list: its agents sample each episode "
                "in a process that knows one environment. Use engine=local, or choose one with env=NAME."
            )
        if self.mixed and self.world_model_learning != WorldModelLearningSettings():
            raise ValueError(
                "world_model_learning learns from the transitions of one environment, and env is a list: "
                "learn the world model in a run of its own (env=NAME), and give its checkpoint to this "
                "run as model.path."
            )
        return self

    @property
    def cpu_threads(self) -> int:
        return self.threads or available_cores()

    @property
    def vllm_share(self) -> float:
        """The share of a GPU's memory that an engine has on a cluster."""
        return self.rollout.vllm.gpu_memory or 0.5

    @property
    def mixed(self) -> bool:
        return isinstance(self.env, tuple)

    @property
    def members(self) -> tuple[Member, ...]:
        """The environments of the run, each with its part in it; one if ``env`` is a group."""
        e = self.evaluation
        if isinstance(self.env, tuple):
            return tuple(member_of(entry) for entry in self.env)
        name = entry_name({"id": self.env.id})
        return (Member(name, self.env, e.split, e.selection_split),)

    @property
    def only_env(self) -> EnvSettings:
        if isinstance(self.env, tuple):
            names = ", ".join(entry.name for entry in self.env)
            raise ValueError(
                f"This takes one environment, and the settings have several ({names}): choose one with "
                "env=NAME."
            )
        return self.env

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, as ``config.json`` holds them."""
        return self.model_dump()


def read_recorded(path: Path) -> dict[str, Any]:
    """The settings that a run recorded (``config.json``), as nested plain values."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} does not hold a run's settings ({error}).") from error
    if not isinstance(data, dict):
        raise ValueError(f"{path} does not hold a run's settings.")
    return existing(data)


def existing(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Recorded settings without ``rollout.episode_seconds: null``: of earlier versions, always so today."""
    rollout = recorded.get("rollout")
    if not isinstance(rollout, Mapping) or rollout.get("episode_seconds") is not None:
        return dict(recorded)
    kept = {name: value for name, value in rollout.items() if name != "episode_seconds"}
    return {**recorded, "rollout": kept}


# --- results that runs share, each in a folder named by the hash of all that it depends on --------------


def shared_warm_start(settings: Settings) -> Path | None:
    """The folder of the warm start of these settings; ``None``: nothing is shared."""
    return _folder(settings, _warm_start(settings))


def shared_evaluation(settings: Settings) -> Path | None:
    """The folder of the evaluation of that warm start."""
    # the settings left out do not change an episode of the panel
    selection = {"every", "selection_split", "selection_tasks"}
    training = {"groups", "group_size", "temperature"}
    parts = {
        "evaluation": settings.evaluation.model_dump(exclude=selection),
        "rollout": settings.rollout.model_dump(exclude=training),
    }
    if settings.world_model_learning.method != "off":
        # the evaluated policy is then not the warm start alone
        parts["world_model_learning"] = settings.world_model_learning.model_dump()
        parts["transitions"] = _transitions(settings)
        # the settings of RL that it reads too, without those that it has values of its own of
        optimizer = {"lr", "schedule", "warmup_updates", "minibatches", "minibatch_size"}
        objective = {"kl_coef", "kl_in", "policy_coef", "entropy_coef", "log_observations"}
        exclude = {*optimizer, "measure_gradients"}
        parts["optimizer"] = settings.optimizer.model_dump(exclude=exclude)
        parts["objective"] = settings.objective.model_dump(exclude=objective)
    return _folder(settings, {**_warm_start(settings), **parts}, "-evaluation")


def shared_transitions(settings: Settings) -> Path | None:
    """The folder of the warm start's episodes for world-model learning, and of its measurement."""
    return _folder(settings, {**_warm_start(settings), **_transitions(settings)}, "-transitions")


def _warm_start(settings: Settings) -> dict[str, Any]:
    entries = settings.env if isinstance(settings.env, tuple) else (settings.env,)
    environments = [entry.model_dump(exclude={"train_kwargs", "max_return"}) for entry in entries]
    return {
        "env": environments if settings.mixed else environments[0],
        "model": settings.model.model_dump(),
        # the limit has its effect in `episodes` and `steps`
        "cloning": settings.cloning.model_dump(exclude={"episodes_per_task", "checkpoint_every"}),
        "seed": settings.seed,
        "threads": settings.cpu_threads,
        "version": __version__,
    }


def _transitions(settings: Settings) -> dict[str, Any]:
    own = settings.world_model_learning
    return {
        "episodes": [own.episodes, own.held_out_episodes],
        "encoder": own.encoder,
        "train_kwargs": settings.only_env.train_kwargs,
        "split": settings.evaluation.split,
        "rollout": settings.rollout.model_dump(exclude={"groups", "group_size"}),
    }


def _folder(settings: Settings, made_by: dict[str, Any], suffix: str = "") -> Path | None:
    if settings.warm_starts is None:
        return None
    text = json.dumps(made_by, sort_keys=True)
    return Path(settings.warm_starts) / (hashlib.sha256(text.encode()).hexdigest()[:16] + suffix)


def available_cores() -> int:
    """The cores that this process may use: by its affinity, and by the limit of its container (cgroup v2)."""
    affinity = getattr(os, "sched_getaffinity", None)  # macOS and Windows have none
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # without a limit it says "max"
        quota, period = map(int, CPU_LIMIT.read_text(encoding="ascii").split())
        cores = min(cores, -(-quota // period))
    return cores
