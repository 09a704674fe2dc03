"""Typed settings of a run, documented at each field, with recipes and ``key=value`` overrides.

A leaf: nothing here imports another part of ``paw_train``, and nothing imports torch.
"""

from paw_train.settings.algorithm import AlgorithmSettings, CriticSettings
from paw_train.settings.base import Group
from paw_train.settings.branching import BranchingSettings
from paw_train.settings.cloning import CloningSettings
from paw_train.settings.endpoint import EndpointSettings
from paw_train.settings.environment import EnvSettings
from paw_train.settings.evaluation import EvalSettings
from paw_train.settings.lora import LoraSettings
from paw_train.settings.model import ModelSettings
from paw_train.settings.objective import ObjectiveSettings
from paw_train.settings.openrlhf import OpenRLHFSettings
from paw_train.settings.optimizer import OptimizerSettings
from paw_train.settings.recipes import (
    Say,
    apply_override,
    find_recipe,
    load_settings,
    overridden,
    read_recipe,
    read_yaml,
    recipe_name,
    recipe_names,
)
from paw_train.settings.record import RecordSettings
from paw_train.settings.rollout import RolloutSettings
from paw_train.settings.run import MAY_CHANGE, WITHOUT_EFFECT, Settings, with_defaults
from paw_train.settings.scratch import ScratchModelSettings
from paw_train.settings.vllm import VLLMSettings
from paw_train.settings.world_model import WorldModelSettings
from paw_train.settings.world_model_learning import WorldModelLearningSettings
