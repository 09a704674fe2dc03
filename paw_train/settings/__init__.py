"""Typed settings of a run, documented at each field, with recipes and ``key=value`` overrides.

A leaf: nothing here imports another part of ``paw_train``, and nothing imports torch.
"""

from paw_train.settings.algorithm import (
    AlgorithmSettings,
    CriticSettings,
    ObjectiveSettings,
    OptimizerSettings,
)
from paw_train.settings.endpoint import EndpointSettings
from paw_train.settings.env import EnvSettings
from paw_train.settings.model import CloningSettings
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
from paw_train.settings.rollout import RolloutSettings
from paw_train.settings.run import MAY_CHANGE, WITHOUT_EFFECT, Settings
from paw_train.settings.world_model import WorldModelSettings
