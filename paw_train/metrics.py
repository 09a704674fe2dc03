"""The catalogue of an update's metrics: each one's name, title, unit, meaning, and how it merges.

Engines write metrics under these names to ``metrics.jsonl``; the report, the viewer, the comparison and the
terminal read from here how to show them. A metric that is not in the catalogue is recorded and plotted all
the same, under its bare name. To add one: one entry here, and the line that measures it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Unit = Literal["", "share", "nats", "reward", "steps", "tokens", "seconds", "megabytes"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One number per update."""

    name: str
    """key in ``metrics.jsonl``"""
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

    @property
    def title(self) -> str:
        return self.label or self.chart

    @property
    def section(self) -> str:
        known = (section for section, metrics in CATALOGUE.items() if self in metrics)
        return next(known, "Other measurements")

    @property
    def heading(self) -> str:
        """The chart's title, with the label if other metrics share the chart."""
        shared = sum(metric.chart == self.chart for metric in METRICS.values()) > 1
        return f"{self.chart}: {self.title}" if shared else self.chart


CATALOGUE: Mapping[str, list[Metric]] = {
    "Success and reward": [
        Metric("success_rate", "Success", "episodes solved in training", "share"),
        Metric("reward_mean", "Reward", "mean return of an episode in training", "reward"),
        Metric(
            "penalty_share",
            "Advantages from penalties alone",
            "share of advantages in groups whose episodes differ in penalties only",
            "share",
        ),
        Metric(
            "equal_groups",
            "Groups with equal returns",
            "share of groups, of two episodes or more, that give no advantage",
            "share",
        ),
    ],
    "World model": [
        Metric(
            "wm_loss",
            "World-model loss",
            "mean over the supervised observations (Eq. 8 for CMAE)",
            label="WM loss",
        ),
        Metric(
            "wm_term",
            "World-model term",
            "of the objective, with all weights (Eq. 11)",
            label="WM term",
        ),
        Metric(
            "lambda_mean",
            "Adaptive weight λ",
            "1 − mean return / R_max (Eq. 10), or 1 where it is fixed; mean over groups",
            label="λ",
        ),
        Metric(
            "clipped_share",
            "Clipped share",
            "observation tokens predicted with p > ρ, which are left out (Eq. 7)",
            "share",
            label="clipped",
        ),
        Metric(
            "obs_nll",
            "Observation NLL",
            "per token of the next observation, also logged without PaW",
            "nats",
            label="NLL",
        ),
        Metric(
            "selected_share",
            "Selected share",
            "transitions with world-model supervision (α)",
            "share",
        ),
        Metric(
            "entropy_threshold",
            "Action entropy at selection",
            "lowest of the selected transitions (Eq. 4)",
            "nats",
            label="threshold",
        ),
        Metric(
            "entropy_mean",
            "Action entropy at selection",
            "mean of the update's transitions",
            "nats",
            label="mean",
        ),
        Metric(
            "unique_share", "Unique transitions", "of the update, where they are counted", "share"
        ),
    ],
    "Policy": [
        Metric("kl", "KL", "to the policy that RL started from", "nats"),
        Metric("entropy", "Entropy", "of the action tokens, over the vocabulary", "nats"),
        Metric("policy_loss", "Policy loss", "clipped surrogate"),
        Metric(
            "clip_fraction",
            "Clip fraction",
            "action tokens whose ratio was clipped",
            "share",
            label="clipped",
        ),
        Metric("grad_norm", "Gradient norms", "before clipping", label="whole", log=True),
        Metric(
            "grad_norm_policy", "Gradient norms", "of the policy term", label="policy", log=True
        ),
        Metric(
            "grad_norm_wm",
            "Gradient norms",
            "of the world-model term",
            label="world model",
            log=True,
        ),
        Metric(
            "ratio_max",
            "Probability ratio",
            "of an action token, policy now to policy that sampled",
            label="highest",
            merge="max",
            log=True,
        ),
        Metric(
            "ratio_mean", "Probability ratio", "mean over the action tokens", label="mean", log=True
        ),
        Metric(
            "ratio_min",
            "Probability ratio",
            "lowest of an action token",
            label="lowest",
            merge="min",
            log=True,
        ),
        Metric("lr", "Learning rate", "of the update"),
        Metric("skipped", "Skipped steps", "optimizer steps without a finite gradient", "share"),
    ],
    "Critic": [
        Metric("value_loss", "Value loss", "half the squared error"),
        Metric("grad_norm_value", "Critic's gradient norm", "before clipping", log=True),
    ],
    "Episodes and time": [
        Metric("steps_mean", "Episode length", "turns of an episode", "steps"),
        Metric(
            "invalid_rate",
            "Invalid responses",
            "turns that cost the penalty (env.invalid_when)",
            "share",
            label="invalid",
        ),
        Metric(
            "refused_rate",
            "Invalid responses",
            "turns with an action that could be read and was not accepted",
            "share",
            label="refused",
        ),
        Metric(
            "prompt_cut_rate",
            "Truncated prompts",
            "prompts that lost history to the context limit",
            "share",
        ),
        Metric("failed_episodes", "Failed episodes", "ended by an error of their environment"),
        Metric("seconds_rollout", "Seconds per update", "of rollouts", "seconds", label="rollout"),
        Metric("seconds_train", "Seconds per update", "of training", "seconds", label="training"),
        Metric("tokens", "Tokens per update", "in the rows that are learned from", "tokens"),
        Metric("sampled_tokens", "Sampled tokens", "of the responses of an update", "tokens"),
        Metric("transitions", "Transitions per update", "that are learned from"),
        Metric("peak_memory_mb", "Peak memory", "of the process", "megabytes"),
    ],
}
"""by section of the report; metrics of one chart follow each other"""
METRICS: Mapping[str, Metric] = {m.name: m for metrics in CATALOGUE.values() for m in metrics}
NOT_MEASURED = frozenset({"update", "time", "validation"})
"""keys of ``metrics.jsonl`` that are not metrics of the update"""


def merge_rule(name: str) -> str:
    """How a metric's values of micro-batches merge; one that the catalogue lacks adds up."""
    return METRICS[name].merge if name in METRICS else "sum"


def number(value: Any) -> float | None:
    """A finite number, or ``None`` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None
