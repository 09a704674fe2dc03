"""Typed settings of a run, documented at each field, with recipes and ``key=value`` overrides.

A leaf: nothing here imports another part of ``paw_train``, and nothing imports torch.
"""

from paw_train.settings.endpoint import EndpointSettings
from paw_train.settings.lora import LoraSettings
from paw_train.settings.objective import ObjectiveSettings
from paw_train.settings.openrlhf import OpenRLHFSettings
from paw_train.settings.rollout import RolloutSettings
from paw_train.settings.run import (
    WITHOUT_EFFECT,
    AlgorithmSettings,
    CloningSettings,
    CriticSettings,
    EnvSettings,
    EvalSettings,
    ModelSettings,
    OptimizerSettings,
    RecordSettings,
    Say,
    Settings,
    apply_override,
    build,
    find_recipe,
    load_settings,
    overridden,
    read_recipe,
    read_yaml,
    recipe_names,
    with_defaults,
)
from paw_train.settings.scratch import ScratchModelSettings
from paw_train.settings.vllm import VLLMSettings
from paw_train.settings.world_model import WorldModelSettings
from paw_train.settings.world_model_learning import WorldModelLearningSettings
