"""The requests, tokens and cost of an evaluation, estimated without a model (``paw eval --dry-run``)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from paw_gym.pool import Slot
from paw_train.baselines import agent_class
from paw_train.baselines.examples import CHARACTERS_A_TOKEN
from paw_train.baselines.metering import MeteredPool
from paw_train.evaluation.panels import Panel
from paw_train.evaluation.runner import PanelRun, Plan, prepare
from paw_train.rollouts.policy import Request, Response, Sampling, response_seed
from paw_train.settings.endpoint import EndpointSettings

SAMPLED = 4
"""tasks that are run for an estimate"""
TYPICAL = 0.25
"""length of a typical response, as a share of the longest"""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of a whole evaluation; tokens at four characters each, answers in a cache not subtracted."""

    tasks: int
    """episodes that count: tasks x seeds"""
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    """``None``: no prices are given"""

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def estimate(plan: Plan, settings: EndpointSettings) -> dict[str, Estimate]:
    """Runs a few of the tasks with random actions in place of a model's.

    Random actions hardly ever solve a task, so nearly every episode takes all its steps.

    Args:
        plan: the evaluation.
        settings: prices.

    Returns:
        ``typical`` (responses of a quarter of the longest) and ``at_most`` (all of the longest).

    Raises:
        ValueError: the agent lets the model write nothing.
    """
    if not agent_class(plan.agent).samples:
        raise ValueError(
            f"--dry-run replaces the model's responses, and the agent {plan.agent!r} has none. Run one "
            "task instead: --limit 1."
        )
    shares = {"typical": TYPICAL, "at_most": 1.0}
    return {name: _estimate(plan, settings, share) for name, share in shares.items()}


def _estimate(plan: Plan, settings: EndpointSettings, share: float) -> Estimate:
    ids = plan.panel.task_ids
    count = min(SAMPLED, len(ids))
    chosen = tuple(ids[i * len(ids) // count] for i in range(count))
    few = replace(plan, panel=Panel(plan.panel.name, chosen, ""), seeds=plan.seeds[:1])
    prepared = prepare(few, StandIn(share))
    PanelRun(few, prepared, pool_class=_RandomPool).run()
    assert prepared.meter is not None  # the stand-in is a policy
    total, tasks = prepared.meter.total, len(ids) * len(plan.seeds)

    def scaled(number: int) -> int:
        return round(number * tasks / count)

    prompt, completion = scaled(total.prompt_tokens), scaled(total.completion_tokens)
    cost = settings.cost(prompt, completion) if settings.priced else None
    return Estimate(tasks, scaled(total.calls), prompt, completion, cost)


class StandIn:
    """A policy that answers with so many meaningless words.

    Args:
        share: of the longest response.
    """

    chat = None
    trainable = False

    def __init__(self, share: float) -> None:
        self.share = share

    def session(self, sampling: Sampling, growing: bool, prefill_tokens: int = 0) -> _StandIn:
        """See ``protocol.Policy``."""
        return _StandIn(max(1, round(self.share * sampling.max_tokens)))


class _StandIn:
    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def respond(self, requests: Sequence[Request]) -> list[Response]:
        text = "word"[:CHARACTERS_A_TOKEN] * self.tokens
        return [Response(text=text, usage=(_length(r), self.tokens)) for r in requests]


def _length(request: Request) -> int:
    return sum(len(str(m["content"] or "")) for m in request.messages) // CHARACTERS_A_TOKEN


class _RandomPool(MeteredPool):
    """Takes random actions in place of the responses."""

    def step(self, responses: Sequence[str] | Mapping[int, str]) -> list[Slot]:
        """See ``EnvPool.step``."""
        return super().step([self._response(slot) for slot in self.active])

    def _response(self, slot: Slot) -> str:
        template, admissible = self.env_of(slot).template, slot.info["admissible_actions"]
        step = len(slot.episode.transitions)
        rng = random.Random(response_seed(0, slot.episode.episode_id, step))
        words = " ".join(str(slot.info["instruction"]).split()[:8]) or "look"
        if admissible:
            return template.response_for(rng.choice(admissible))
        tags = template.own_tags  # the first one searches: it does not end the episode
        return template.response_for(f"<{tags[0]}>{words}</{tags[0]}>" if tags else words)
