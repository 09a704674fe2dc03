"""The RL algorithms, one file each, and PaW; ``experience`` applies them to an update, ``update`` learns.

Importing the package registers the advantage estimators of its files (``estimator.ADVANTAGES``).
"""

from paw_gym.internals.registry import import_modules
from paw_train.algorithms.gigpo import gigpo
from paw_train.algorithms.grpo import grpo
from paw_train.algorithms.ppo import gae
from paw_train.algorithms.reinforce_pp import reinforce_pp
from paw_train.algorithms.rloo import rloo

__all__ = ["gae", "gigpo", "grpo", "reinforce_pp", "rloo"]

import_modules(__name__)
