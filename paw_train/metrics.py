"""The catalogue of an update's metrics: each one's name, title, unit, meaning, and how it merges.

Engines write metrics under these names to ``metrics.jsonl``; the report, the viewer, the comparison and the
terminal read from here how to show them. A metric that is not in the catalogue is recorded and plotted all
the same, under its bare name. To add one: one entry here, and the line that measures it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

Unit = Literal["", "share", "nats", "reward", "steps", "tokens", "seconds", "megabytes"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One number per update."""

    name: str
    """key in ``metrics.jsonl``"""
    meaning: str
    """a phrase that describes it"""
    unit: Unit = ""
    label: str = ""
    """its name in a legend or a line of the terminal; empty: the chart's title"""
    merge: Literal["sum", "max", "min"] = "sum"
    """how micro-batches make the value of their mini-batch; most are shares of a mean, which add up"""
    log: bool = False
    """whether its axis is logarithmic"""
    section: str = ""
    """heading of its section"""
    chart: str = ""
    """title of its chart; metrics of one chart share it"""

    @property
    def title(self) -> str:
        """``label``, or the chart's title."""
        return self.label or self.chart

    @property
    def heading(self) -> str:
        """The chart's title, with the label if other metrics share the chart."""
        shared = sum(metric.chart == self.chart for metric in METRICS.values()) > 1
        return f"{self.chart}: {self.title}" if shared else self.chart


CATALOGUE: Mapping[str, Mapping[str, list[Metric]]] = {
    "Success and reward": {
        "Success": [Metric("success_rate", "episodes solved in training", "share")],
        "Reward": [Metric("reward_mean", "mean return of an episode in training", "reward")],
        "Advantages from penalties alone": [
            Metric(
                "penalty_share",
                "share of all advantages in groups whose episodes differ in penalties only",
                "share",
            )
        ],
        "Groups with equal returns": [
            Metric(
                "equal_groups",
                "share of groups, of two episodes or more, that give no advantage",
                "share",
            )
        ],
    },
    "World model": {
        "World-model loss": [
            Metric(
                "wm_loss", "mean over the supervised observations (Eq. 8 for CMAE)", label="WM loss"
            )
        ],
        "World-model term": [
            Metric(
                "wm_term",
                "of the objective, with all weights (Eq. 11)",
                label="WM term",
            )
        ],
        "Adaptive weight λ": [
            Metric(
                "lambda_mean",
                "1 − mean return / R_max (Eq. 10), or 1 where it is fixed; mean over groups",
                label="λ",
            )
        ],
        "Clipped share": [
            Metric(
                "clipped_share",
                "observation tokens predicted with p > ρ, which are left out (Eq. 7)",
                "share",
                label="clipped",
            )
        ],
        "Observation NLL": [
            Metric(
                "obs_nll",
                "per token of the next observation, also logged without PaW",
                "nats",
                label="NLL",
            )
        ],
        "Selected share": [
            Metric(
                "selected_share",
                "transitions with world-model supervision (α)",
                "share",
            )
        ],
        "Action entropy at selection": [
            Metric(
                "entropy_threshold",
                "lowest of the selected transitions (Eq. 4)",
                "nats",
                label="threshold",
            ),
            Metric("entropy_mean", "mean of the update's transitions", "nats", label="mean"),
        ],
        "Unique transitions": [
            Metric("unique_share", "of the update, where they are counted", "share")
        ],
    },
    "Policy": {
        "KL": [Metric("kl", "to the policy that RL started from", "nats")],
        "Entropy": [Metric("entropy", "of the action tokens, over the vocabulary", "nats")],
        "Policy loss": [Metric("policy_loss", "clipped surrogate")],
        "Clip fraction": [
            Metric(
                "clip_fraction", "action tokens whose ratio was clipped", "share", label="clipped"
            )
        ],
        "Gradient norms": [
            Metric("grad_norm", "before clipping", label="whole", log=True),
            Metric("grad_norm_policy", "of the policy term", label="policy", log=True),
            Metric("grad_norm_wm", "of the world-model term", label="world model", log=True),
        ],
        "Probability ratio": [
            Metric(
                "ratio_max",
                "of an action token, policy now to policy that sampled",
                label="highest",
                merge="max",
                log=True,
            ),
            Metric("ratio_mean", "mean over the action tokens", label="mean", log=True),
            Metric("ratio_min", "lowest of an action token", label="lowest", merge="min", log=True),
        ],
        "Learning rate": [Metric("lr", "of the update")],
        "Skipped steps": [Metric("skipped", "optimizer steps without a finite gradient", "share")],
    },
    "Critic": {
        "Value loss": [Metric("value_loss", "half the squared error")],
        "Critic's gradient norm": [Metric("grad_norm_value", "before clipping", log=True)],
    },
    "Episodes and time": {
        "Episode length": [Metric("steps_mean", "turns of an episode", "steps")],
        "Invalid responses": [
            Metric(
                "invalid_rate",
                "turns that cost the penalty (env.invalid_when)",
                "share",
                label="invalid",
            ),
            Metric(
                "refused_rate",
                "turns with an action that could be read and was not accepted",
                "share",
                label="refused",
            ),
        ],
        "Truncated prompts": [
            Metric(
                "prompt_cut_rate",
                "prompts that lost history to the context limit",
                "share",
            )
        ],
        "Failed episodes": [
            Metric("failed_episodes", "ended by an error of their environment"),
            Metric(
                "timed_out_episodes",
                "ended by rollout.episode_seconds",
                label="timed out",
            ),
        ],
        "Seconds per update": [
            Metric(
                "seconds_rollout",
                "of rollouts",
                "seconds",
                label="rollout",
            ),
            Metric("seconds_train", "of training", "seconds", label="training"),
        ],
        "Tokens per update": [Metric("tokens", "in the rows that are learned from", "tokens")],
        "Sampled tokens": [Metric("sampled_tokens", "of the responses of an update", "tokens")],
        "Transitions per update": [Metric("transitions", "that are learned from")],
        "Peak memory": [Metric("peak_memory_mb", "of the process", "megabytes")],
    },
}
"""by section, then by chart: the metrics that it shows"""

METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        metric.name: replace(metric, section=section, chart=chart)
        for section, charts in CATALOGUE.items()
        for chart, metrics in charts.items()
        for metric in metrics
    }
)
"""the catalogue by name, in the order in which it is shown"""
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
