"""The catalogue of an update's metrics: each one's name, title, unit, meaning, and how it merges.

Engines write metrics under these names to ``metrics.jsonl``; the report, the viewer, the comparison and the
terminal read from here how to show them. A metric that is not in the catalogue is recorded and plotted all
the same, under its bare name. To add one: one entry here, and the line that measures it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

Unit = Literal["", "share", "nats", "reward", "steps", "tokens", "seconds", "megabytes"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One number an update."""

    name: str
    """key in ``metrics.jsonl``"""
    section: str
    """heading of its section"""
    chart: str
    """title of its chart; metrics of one chart share it"""
    meaning: str
    """a phrase that describes it"""
    unit: Unit = ""
    label: str = ""
    """its name in a legend or a line of the terminal; empty: the chart's title"""
    merge: Literal["sum", "max", "min"] = "sum"
    """how micro-batches make the value of their mini-batch; most are shares of a mean, which add up"""
    log: bool = False
    """whether its axis is logarithmic"""
    smooth: bool = True
    """whether its chart has a smoothed line"""
    optional: bool = False
    """whether it is measured under some settings only, and so not expected in every run"""

    @property
    def title(self) -> str:
        """``label``, or the chart's title."""
        return self.label or self.chart

    @property
    def heading(self) -> str:
        """The chart's title, with the label if other metrics share the chart."""
        shared = sum(metric.chart == self.chart for metric in METRICS.values()) > 1
        return f"{self.chart}: {self.title}" if shared else self.chart


_OUTCOME, _WORLD, _POLICY = "Success and reward", "World model", "Policy"
_CRITIC, _COST = "Critic", "Episodes and time"
_ALL = (
    Metric("success_rate", _OUTCOME, "Success", "episodes solved in training", "share"),
    Metric("reward_mean", _OUTCOME, "Reward", "mean return of an episode in training", "reward"),
    Metric(
        "penalty_share",
        _OUTCOME,
        "Advantages from penalties alone",
        "share of all advantages in groups whose episodes differ in penalties only",
        "share",
        optional=True,
    ),
    Metric(
        "equal_groups",
        _OUTCOME,
        "Groups with equal returns",
        "share of groups, of two episodes or more, that give no advantage",
        "share",
        optional=True,
    ),
    Metric(
        "wm_loss",
        _WORLD,
        "World-model loss",
        "mean over the supervised observations (Eq. 8 for CMAE)",
        label="WM loss",
    ),
    Metric(
        "wm_term",
        _WORLD,
        "World-model term",
        "of the objective, with all weights (Eq. 11)",
        label="WM term",
        optional=True,
    ),
    Metric(
        "lambda_mean",
        _WORLD,
        "Adaptive weight λ",
        "1 − mean return / R_max (Eq. 10), or 1 where it is fixed; mean over groups",
        label="λ",
    ),
    Metric(
        "clipped_share",
        _WORLD,
        "Clipped share",
        "observation tokens predicted with p > ρ, which are left out (Eq. 7)",
        "share",
        label="clipped",
    ),
    Metric(
        "obs_nll",
        _WORLD,
        "Observation NLL",
        "per token of the next observation, also logged without PaW",
        "nats",
        label="NLL",
    ),
    Metric(
        "selected_share",
        _WORLD,
        "Selected share",
        "transitions with world-model supervision (α)",
        "share",
        smooth=False,
    ),
    Metric(
        "entropy_threshold",
        _WORLD,
        "Action entropy at selection",
        "lowest of the selected transitions (Eq. 4)",
        "nats",
        label="threshold",
    ),
    Metric(
        "entropy_mean",
        _WORLD,
        "Action entropy at selection",
        "mean of the update's transitions",
        "nats",
        label="mean",
    ),
    Metric(
        "unique_share",
        _WORLD,
        "Unique transitions",
        "of the update, where they are counted",
        "share",
        optional=True,
    ),
    Metric("kl", _POLICY, "KL", "to the policy that RL started from", "nats"),
    Metric("entropy", _POLICY, "Entropy", "of the action tokens, over the vocabulary", "nats"),
    Metric("policy_loss", _POLICY, "Policy loss", "clipped surrogate"),
    Metric(
        "clip_fraction",
        _POLICY,
        "Clip fraction",
        "action tokens whose ratio was clipped",
        "share",
        label="clipped",
    ),
    Metric("grad_norm", _POLICY, "Gradient norms", "before clipping", label="whole", log=True),
    Metric(
        "grad_norm_policy",
        _POLICY,
        "Gradient norms",
        "of the policy term",
        label="policy",
        log=True,
    ),
    Metric(
        "grad_norm_wm",
        _POLICY,
        "Gradient norms",
        "of the world-model term",
        label="world model",
        log=True,
    ),
    Metric(
        "ratio_max",
        _POLICY,
        "Probability ratio",
        "of an action token, policy now to policy that sampled",
        label="highest",
        merge="max",
        log=True,
    ),
    Metric(
        "ratio_mean",
        _POLICY,
        "Probability ratio",
        "mean over the action tokens",
        label="mean",
        log=True,
    ),
    Metric(
        "ratio_min",
        _POLICY,
        "Probability ratio",
        "lowest of an action token",
        label="lowest",
        merge="min",
        log=True,
    ),
    Metric(
        "staleness",
        _POLICY,
        "Staleness",
        "updates by which the policy that sampled was behind",
        smooth=False,
        optional=True,
    ),
    Metric(
        "importance_mean",
        _POLICY,
        "Importance weight",
        "of an action token, policy before the update to policy that sampled, truncated",
        label="mean",
        optional=True,
    ),
    Metric(
        "importance_min",
        _POLICY,
        "Importance weight",
        "lowest of an action token",
        label="lowest",
        optional=True,
    ),
    Metric(
        "importance_capped",
        _POLICY,
        "Truncated importance weights",
        "action tokens whose weight was truncated",
        "share",
        optional=True,
    ),
    Metric("lr", _POLICY, "Learning rate", "of the update", smooth=False),
    Metric(
        "skipped",
        _POLICY,
        "Skipped steps",
        "optimizer steps without a finite gradient",
        "share",
        optional=True,
    ),
    Metric("value_loss", _CRITIC, "Value loss", "half the squared error", optional=True),
    Metric(
        "grad_norm_value",
        _CRITIC,
        "Critic's gradient norm",
        "before clipping",
        log=True,
        optional=True,
    ),
    Metric("steps_mean", _COST, "Episode length", "turns of an episode", "steps"),
    Metric(
        "invalid_rate",
        _COST,
        "Invalid responses",
        "turns that cost the penalty (env.invalid_when)",
        "share",
        label="invalid",
    ),
    Metric(
        "refused_rate",
        _COST,
        "Invalid responses",
        "turns with an action that could be read and was not accepted",
        "share",
        label="refused",
    ),
    Metric(
        "prompt_cut_rate",
        _COST,
        "Truncated prompts",
        "prompts that lost history to the context limit",
        "share",
        optional=True,
    ),
    Metric(
        "failed_episodes",
        _COST,
        "Failed episodes",
        "ended by an error of their environment",
        optional=True,
    ),
    Metric(
        "timed_out_episodes",
        _COST,
        "Failed episodes",
        "ended by rollout.episode_seconds",
        label="timed out",
        optional=True,
    ),
    Metric(
        "seconds_rollout",
        _COST,
        "Seconds per update",
        "of rollouts, as far as training waited for them",
        "seconds",
        label="rollout",
    ),
    Metric(
        "seconds_train", _COST, "Seconds per update", "of training", "seconds", label="training"
    ),
    Metric(
        "seconds_sampling",
        _COST,
        "Seconds per update",
        "of rollouts beside training, from first to last",
        "seconds",
        label="rollout beside training",
        optional=True,
    ),
    Metric("tokens", _COST, "Tokens per update", "in the rows that are learned from", "tokens"),
    Metric(
        "sampled_tokens",
        _COST,
        "Sampled tokens",
        "of the responses of an update",
        "tokens",
        optional=True,
    ),
    Metric("transitions", _COST, "Transitions per update", "that are learned from", optional=True),
    Metric("peak_memory_mb", _COST, "Peak memory", "of the process", "megabytes", optional=True),
)

METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _ALL})
"""the catalogue by name, in the order in which it is shown"""
NOT_MEASURED = frozenset({"update", "time", "validation"})
"""keys of ``metrics.jsonl`` that are no metrics of the update"""


def merge_rule(name: str) -> str:
    """How a metric's values of micro-batches merge; one that the catalogue lacks adds up."""
    return METRICS[name].merge if name in METRICS else "sum"


def number(value: Any) -> float | None:
    """A finite number, or ``None`` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None
