"""Advantage estimators by name: what each declares about itself, and what it reads from an update.

An algorithm is a file in this folder: its formula as a pure function, and an estimator that applies it to the
transitions of one update. A new estimator is one decorated function, here or in another package
(``docs/extend.md``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from paw_gym.internals.registry import Registry
from paw_train.algorithms.group_statistics import episode_weights, step_scores
from paw_train.algorithms.selection import WORLD_MODEL_SELECTIONS
from paw_train.losses.world_model import WORLD_MODEL_LOSSES
from paw_train.settings import AlgorithmSettings, Settings

T = TypeVar("T")
Estimate = Callable[["UpdateView"], "Tensor | tuple[Tensor, Tensor]"]


@dataclass(frozen=True, slots=True)
class CriticView:
    """A critic's prediction before each decision of an update, and the decision's reward.

    A decision is a response (``algorithm.level: turn``; D is N) or an action token (``token``), in order.
    """

    values: Tensor
    """[D] float64"""
    rewards: Tensor
    """[D] float64: a response's reward on its last decision; a KL in the reward is taken off the
    token that it belongs to"""
    last: Tensor
    """[D] bool: the last decision of its episode"""


@dataclass(frozen=True)
class UpdateView:
    """One update as an estimator reads it: N transitions of E episodes, in order."""

    rewards: Tensor
    """[N] float64, penalties (and the KL, with ``objective.kl_in: reward``) included"""
    episode: Tensor
    """[N] episode of each transition, 0..E-1"""
    step: Tensor
    """[N] number of the transition in its episode, from 0"""
    group: Tensor
    """[E] rollout group of each episode, 0..G-1"""
    settings: AlgorithmSettings
    """``algorithm.*``; its ``gamma`` may be null: see ``gamma`` here"""
    gamma: float
    """the discount: that of the settings, else the estimator's own default"""
    read_anchors: Callable[[], list[str]]
    """makes ``anchors``"""
    critic: CriticView | None = None
    """for an estimator that ``needs_critic``, else ``None``"""
    penalties: Tensor | None = None
    """[N] float64, the part of ``rewards`` that is the penalty of an invalid response, if it is charged to
    its own step (``algorithm.penalty: step``); else ``None``"""
    deviation: Tensor | None = None
    """[E] what ``scaled`` divides by, with ``algorithm.normalize: batch``; else ``None``"""

    @property
    def by_group(self) -> bool:
        """True if advantages are divided by the deviation of their group (``algorithm.normalize: true``)."""
        return self.settings.normalize is True

    def scaled(self, advantages: Tensor) -> Tensor:
        """Advantages [N], with ``algorithm.normalize: batch`` divided by the deviation of the update.

        Group mean, batch deviation: Liu et al. 2025, arXiv 2508.08221.
        """
        if self.deviation is None:
            return advantages
        return advantages / self.deviation[self.episode]

    @property
    def returns(self) -> Tensor:
        """[E] sum of the rewards of each episode."""
        total = torch.zeros(len(self.group), dtype=self.rewards.dtype)
        return total.index_add_(0, self.episode, self.rewards)

    @property
    def scores(self) -> Tensor:
        """[N] what each response is judged by: the return of its episode, or with ``penalty: step`` that
        return without penalties, plus its own penalty."""
        if self.penalties is None:
            return self.returns[self.episode]
        return step_scores(self.rewards, self.penalties, self.episode)

    @property
    def compared(self) -> Tensor:
        """[N] whether the group of a transition has another episode to compare with."""
        return (torch.bincount(self.group) > 1)[self.group[self.episode]]

    @property
    def weights(self) -> Tensor:
        """[N] what each transition counts for in ``settings.statistics``; an episode sums to 1, or to its
        number of steps."""
        if self.settings.statistics == "step":
            return torch.ones_like(self.rewards)
        return episode_weights(self.episode)

    @property
    def anchors(self) -> list[str]:
        """[N] the raw observation that each action answered."""
        return self.read_anchors()


@dataclass(eq=False)
class AdvantageEstimator:
    """A function from an update to advantages, and what it needs of a run.

    Calling it checks what the function returns.
    """

    function: Estimate
    """takes an ``UpdateView``; returns advantages [N], or with a critic, by decision, the pair (advantages
    [D], value targets [D])"""
    grouped: bool = False
    """whether an episode is compared with others of its task: needs ``rollout.group_size`` 2 or more"""
    needs_critic: bool = False
    """whether a critic is trained beside the policy; episodes are then not compared with each other"""
    default_gamma: float = 1.0
    """the discount if ``algorithm.gamma`` is null"""
    step_penalties: bool = False
    """whether it reads ``UpdateView.scores`` or ``penalties``; others are refused with
    ``algorithm.penalty: step``"""

    def __post_init__(self) -> None:
        functools.update_wrapper(self, self.function)  # its name, module and docstring

    def __call__(self, update: UpdateView) -> tuple[Tensor, Tensor | None]:
        """(advantages, value targets), both float64; the targets are ``None`` without a critic.

        Raises:
            ValueError: the function returned something other than it declares.
        """
        found = self.function(update)
        advantages, targets = found if isinstance(found, tuple) else (found, None)
        name, critic = self.function.__name__, update.critic if self.needs_critic else None
        values = update.rewards if critic is None else critic.values
        if not isinstance(advantages, Tensor) or advantages.shape != values.shape:
            shape = tuple(getattr(advantages, "shape", ()))
            raise ValueError(
                f"The advantage estimator {name} returned {type(advantages).__name__} of shape {shape}; "
                f"expected a tensor with one entry for each of the {len(values)} "
                f"{'decisions' if critic else 'transitions'} of the update. "
                "values[update.episode] gives the values of episodes to their transitions."
            )
        finite = update.rewards.isfinite().all() and values.isfinite().all()
        if finite and not advantages.isfinite().all():
            raise ValueError(
                f"The advantage estimator {name} returned NaN or infinity for finite rewards: is "
                "there a division by the deviation of a group whose returns are equal?"
            )
        if self.needs_critic != (targets is not None):
            raise ValueError(
                f"The advantage estimator {name} declares needs_critic={self.needs_critic}, and returned "
                f"{'no value' if targets is None else 'value'} targets. With a critic it returns the pair "
                "(advantages, value targets), without one the advantages alone."
            )
        return advantages, targets


ADVANTAGES: Registry[AdvantageEstimator] = Registry(
    "advantage estimator", "paw_train.advantage_estimators"
)
"""the estimators by name; add yours with ``ADVANTAGES.register`` over ``estimator``"""


def estimator(**declared: Any) -> Callable[[Estimate], AdvantageEstimator]:
    """A decorator that makes a function an ``AdvantageEstimator``; see there for the arguments."""
    return functools.partial(AdvantageEstimator, **declared)


def advantage_estimator(name: str) -> AdvantageEstimator:
    """The estimator that ``algorithm.name`` names.

    Raises:
        ValueError: there is none (names the nearest), or it declares nothing about itself.
    """
    found = _registered(ADVANTAGES, name, "algorithm.name")
    if not isinstance(found, AdvantageEstimator):
        raise ValueError(
            f"algorithm.name: {name!r} is a {type(found).__name__}, which does not declare what it "
            "needs. Decorate the function with paw_train.algorithms.estimator.estimator(...)."
        )
    return found


def require_registered(settings: Settings) -> None:
    """Checks the registered names that settings use, before a run starts.

    Raises:
        ValueError: an unknown estimator, loss or selection (names the nearest), or groups that are too
            small for the estimator.
    """
    world_model = settings.world_model
    chosen = advantage_estimator(settings.algorithm.name)
    _registered(WORLD_MODEL_LOSSES, world_model.loss, "world_model.loss")
    _registered(WORLD_MODEL_SELECTIONS, world_model.selection, "world_model.selection")
    size = settings.rollout.group_size
    if chosen.grouped and size < 2 and settings.updates > 0:
        raise ValueError(
            f"rollout.group_size is {size}, but {settings.algorithm.name} compares the episodes of a group: "
            "use 2 or more (the papers: 8), or algorithm.name=ppo."
        )
    alone = chosen.needs_critic or size < 2
    if settings.algorithm.dynamic_sampling and alone:
        raise ValueError(
            f"algorithm.dynamic_sampling is {settings.algorithm.dynamic_sampling}, but there are no groups "
            "whose returns could be all equal: set it to 0, or rollout.group_size to 2 or more with an "
            "estimator that compares episodes."
        )
    if settings.algorithm.penalty == "step" and not chosen.step_penalties:
        raise ValueError(
            f"algorithm.penalty is step, but {settings.algorithm.name} gives every reward to the step that "
            "earned it already, or does not say that it reads penalties apart: set it to episode, or "
            "algorithm.name to grpo, gigpo, rloo or reinforce_pp."
        )


def _registered(registry: Registry[T], name: str, setting: str) -> T:
    try:
        return registry[name]
    except ValueError as error:
        raise ValueError(f"{setting}: {error}") from None
