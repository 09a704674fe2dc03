"""Recorded episodes as data sets for other tools, and back.

``sources`` reads episodes from wherever they lie, ``hub`` writes what Hugging Face's ``datasets``
loads, ``sft`` makes chat-format examples. All goes from iterator to file: no data set is held in memory.
"""

from __future__ import annotations

from paw_gym.export.sources import PARTS, episode_files, expert_episodes, read_episodes
from paw_gym.internals.registry import import_modules

__all__ = ["PARTS", "episode_files", "expert_episodes", "read_episodes"]

import_modules(__name__)
