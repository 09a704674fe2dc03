"""Fixed lists of tasks: by name, with a hash over what they hold, and titles that say if they changed."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paw_gym.core import TaskSet
from paw_gym.envs.alfworld.native.problem import TASK_TYPES
from paw_gym.internals.constructors import defaults_of
from paw_gym.internals.registry import Registry
from paw_train.environments import is_split, panel_name
from paw_train.settings import EnvSettings

_CHANGED = " (changed)"
_REWARDS = ("reward", "invalid_penalty", "invalid_when")
"""settings that rewards depend on, beside the environment's arguments"""
_PART = re.compile(r"\[\d+\]$")
PLACES = ("data_dir", "corpus")
"""arguments that locate data, and do not change the tasks"""


@dataclass(frozen=True)
class Panel:
    """A fixed list of tasks; results on panels with equal hashes are on equal tasks."""

    name: str
    task_ids: tuple[str, ...]
    hash: str
    """over the task set's fingerprint and the ids"""
    note: str | None = None
    """how the tasks it is sampled from differ from the published ones; ``None``: they do not"""


def make_panel(
    tasks: TaskSet, name: str, size: int, seed: int, base: PanelSpec | None = None
) -> Panel:
    """Samples ``size`` tasks (all, if there are no more), in the named panel ``base`` if it is given."""
    count = min(size, len(tasks))
    chosen = np.random.default_rng(seed).permutation(len(tasks))[:count]
    ids = tuple(tasks.ids[int(i)] for i in sorted(chosen))
    note = None if base is None else base.difference(tasks)
    digest = hashlib.sha256("\n".join([tasks.fingerprint, *ids]).encode()).hexdigest()
    return Panel(name, ids, digest, note)


@dataclass(frozen=True)
class PanelSpec:
    """A named panel: the environment, and which of its tasks."""

    env_id: str
    split: str
    size: int | None = None
    """tasks sampled by ``seed``; ``None``: all of the split"""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """arguments of the environment"""
    seed: int = 1234
    """of that sample"""
    dataset: str | None = None
    """the data set it needs (``paw data list``); ``None``: nothing to download"""
    hash: str = ""
    """beginning of the panel's hash if nothing but this program decides it; empty: not known"""
    published: Mapping[str, int] = field(default_factory=dict)
    """tasks of the split as it was published, by type; empty: not known"""
    ids: str = ""
    """beginning of the sha256 over their sorted ids, one a line; empty: not known"""

    @property
    def count(self) -> int | None:
        """Tasks of the panel; ``None``: as many as there are."""
        known = [n for n in (self.size, sum(self.published.values())) if n]
        return min(known, default=None)

    def is_published(self, ids: Sequence[str]) -> bool:
        """True if a split with these task ids is the published one, as far as that is known."""
        if self.published and len(ids) != sum(self.published.values()):
            return False
        digest = hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()
        return digest.startswith(self.ids)

    def difference(self, tasks: TaskSet) -> str | None:
        """A sentence on how tasks differ from the published ones; ``None``: they do not."""
        if self.is_published(tasks.ids):
            return None
        here = Counter(task.type for task in tasks)
        differing = [
            f"{kind} {here[kind]:,} of {self.published.get(kind, 0):,}"
            for kind in sorted({*here, *self.published})
            if here[kind] != self.published.get(kind, 0)
        ]
        return (
            f"These are not the published tasks: {len(tasks):,} are here, "
            f"{sum(self.published.values()):,} were published "
            f"({', '.join(differing) or 'as many of each type, with other ids'})."
        )


_ALFWORLD, _WEBSHOP = "paw_gym/ALFWorld-v0", "paw_gym/WebShop-v0"
_SEARCH, _TAU2 = "paw_gym/SearchQA-v0", "paw_gym/Tau2-v0"
_TOY_TEXT = "paw_gym/ToyText-v0"
_BENCHMARKS = {
    "nq": 3_610,
    "triviaqa": 11_313,
    "popqa": 14_267,
    "hotpotqa": 7_405,
    "2wikimultihopqa": 12_576,
    "musique": 2_417,
    "bamboogle": 125,
}
"""questions of the split that papers report (test, else dev), as FlashRAG publishes them"""

_OWN: Mapping[str, PanelSpec] = {
    "alfworld/valid_seen": PanelSpec(
        _ALFWORLD,
        "valid_seen",
        dataset="alfworld",
        published=dict(zip(TASK_TYPES, (35, 13, 27, 16, 25, 24), strict=True)),
        ids="cc3d2e964ba360c4",
    ),
    "alfworld/valid_unseen": PanelSpec(
        _ALFWORLD,
        "valid_unseen",
        dataset="alfworld",
        published=dict(zip(TASK_TYPES, (24, 18, 31, 23, 21, 17), strict=True)),
    ),
    "alfworld/procedural": PanelSpec(_ALFWORLD, "valid_unseen", 200, hash="75942ef6e414c761"),
    "webshop/test500": PanelSpec(_WEBSHOP, "test", 500, {"goals": "human"}, dataset="webshop"),
    "webshop/test500_synthetic": PanelSpec(
        _WEBSHOP,
        "test",
        500,
        {"goals": "synthetic"},
        dataset="webshop",
        # of the 6,910 goals of the 1,000 products
        published={"fashion": 1_194, "garden": 393, "electronics": 33, "beauty": 26, "grocery": 4},
        ids="da92ec899b84ac06",
    ),
    "webshop/generated": PanelSpec(_WEBSHOP, "test", 200, hash="fc47d745e8d4ae2f"),
    "search_qa/synthetic": PanelSpec(
        _SEARCH, "test", 200, {"dataset": "synthetic"}, hash="f016f03164bf5501"
    ),
    **{
        f"search_qa/{name}": PanelSpec(
            _SEARCH, "eval", 500, {"dataset": name}, dataset="search-qa", published={name: count}
        )
        for name, count in _BENCHMARKS.items()
    },
    "sokoban/test": PanelSpec("paw_gym/Sokoban-v0", "test", 200, hash="0286323cf810c7fa"),
    "sudoku/4x4": PanelSpec("paw_gym/Sudoku-v0", "test", 200, hash="225d8fe5b917cbf2"),
    "sudoku/9x9": PanelSpec("paw_gym/Sudoku-v0", "test", 200, {"size": 9}, hash="2c4b14dc35d86b99"),
    "2048/test": PanelSpec("paw_gym/2048-v0", "test", 200, hash="80e7dbea17f16c42"),
    "rules/test": PanelSpec("paw_gym/Rules-v0", "test", hash="3d61312822a1e0e0"),
    "babyai/go_to_local": PanelSpec("paw_gym/BabyAI-v0", "test", 200),
    "toy_text/frozen_lake": PanelSpec(_TOY_TEXT, "test", 200, hash="19c0e88edb68023a"),
    "toy_text/frozen_lake_slippery": PanelSpec(
        _TOY_TEXT, "test", 200, {"slippery": True}, hash="68d9cc053ef21f7f"
    ),
    "toy_text/taxi": PanelSpec(_TOY_TEXT, "test", kwargs={"game": "taxi"}, hash="609a9eb069999ddd"),
    "toy_text/blackjack": PanelSpec(
        _TOY_TEXT, "test", 200, {"game": "blackjack"}, hash="e103a37bae52507f"
    ),
    # of each of the thirty tasks the first variations, as published results have it, and the very first
    "scienceworld/test": PanelSpec("paw_gym/ScienceWorld-v0", "test", 200, {"variations": 10}),
    "scienceworld/each": PanelSpec("paw_gym/ScienceWorld-v0", "test", kwargs={"variations": 1}),
    **{
        f"textworld/{game}": PanelSpec("paw_gym/TextWorld-v0", "test", 200, {"game": game})
        for game in ("treasure_hunter", "coin_collector", "cooking")
    },
    **{
        f"textworld_express/{game}": PanelSpec(
            "paw_gym/TextWorldExpress-v0", "test", 200, {"game": game}
        )
        for game in ("cookingworld", "twc", "coin", "mapreader", "arithmetic")
    },
    # all tasks, which is what papers report on, and the part to hold out from training
    **{
        f"tau2/{name}": PanelSpec(_TAU2, "base", kwargs={"domain": name})
        for name in ("airline", "retail", "telecom", "mock")
    },
    **{
        f"tau2/{name}_test": PanelSpec(_TAU2, "test", kwargs={"domain": name})
        for name in ("airline", "retail", "telecom")
    },
}
PANELS: Registry[PanelSpec] = Registry("panel", "paw_train.panels")
"""the panels by name; add yours with ``PANELS.add(name, PanelSpec(...))``"""
for _name, _spec in _OWN.items():
    PANELS.add(_name, _spec)


def panel_title(
    base: str | None, env: EnvSettings, split: str, size: int, seed: int, ids: Sequence[str]
) -> str:
    """The name of a panel, such as ``sudoku/4x4[20] (changed) (invalid_penalty=5)``.

    These are 20 tasks of a fixed panel (``base``), in another environment, by another seed, or from others
    than the published tasks, with other rewards.
    """
    own = EnvSettings()
    other = [f"{k}={getattr(env, k)}" for k in _REWARDS if getattr(env, k) != getattr(own, k)]
    rewards = f" ({', '.join(other)})" if other else ""
    count = min(size, len(ids))
    if base is None:
        return panel_name(env, split, count) + rewards
    spec = PANELS[base]
    whole = count == (len(ids) if spec.count is None else spec.count)
    same = (
        seed == spec.seed
        and spec.is_published(ids)
        and _chosen(env.id, env.kwargs) == _chosen(env.id, spec.kwargs)
        and (split == spec.split or not is_split(env))
    )
    return base + ("" if whole else f"[{count}]") + ("" if same else _CHANGED) + rewards


def titled_panel(
    tasks: TaskSet, base: str | None, env: EnvSettings, split: str, size: int, seed: int
) -> Panel:
    """The panel of so many tasks, under its title."""
    title = panel_title(base, env, split, size, seed, tasks.ids)
    panel = make_panel(tasks, title, size, seed, PANELS[base] if base else None)
    if base == title and not panel.hash.startswith(known := PANELS[base].hash):
        raise ValueError(
            f"The panel {base} has the hash {panel.hash[:12]}, but it was fixed with {known[:12]}: this "
            "version generates other tasks. Results on it could not be compared."
        )
    return panel


def fixed_panel(title: str) -> str | None:
    """The fixed panel that a title speaks of; ``None``: none."""
    plain = _PART.sub("", title.partition(" (")[0])
    return plain if plain in PANELS else None


def _chosen(env_id: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that choose something: not the environment's defaults, nor where its data lies."""
    defaults = defaults_of(env_id)
    return {
        key: value
        for key, value in kwargs.items()
        if key not in PLACES and (key not in defaults or value != defaults[key])
    }
