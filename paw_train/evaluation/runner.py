"""Runs an agent on a panel, seed by seed, and summarises its episodes as a result."""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from paw_gym import __version__
from paw_gym.internals.naming import require_choice
from paw_gym.internals.validation import reason_of
from paw_gym.pool import Slot
from paw_gym.transition import Episode
from paw_gym.wrappers import AgentInterface
from paw_train.agents import agent_class, make_agent
from paw_train.agents.action_form import FORMATS, ActionForm, ask_for_tools
from paw_train.agents.examples import CHARACTERS_A_TOKEN, ExampleSource, example_kwargs
from paw_train.agents.metering import MeteredPolicy, MeteredPool, Spent
from paw_train.agents.protocol import Agent, note
from paw_train.environments import agent_env_maker
from paw_train.evaluation.fingerprint import commit, environment_record, model_hash, prompt_hash
from paw_train.evaluation.panels import Panel
from paw_train.evaluation.result_folder import EpisodeLog
from paw_train.evaluation.summary import summarise
from paw_train.rollouts.policy import Policy, Request, Response, Sampling, response_seed
from paw_train.settings import EnvSettings
from paw_train.settings.endpoint import EndpointSettings
from paw_train.settings.rollout import RolloutSettings

Progress = Callable[[int, int], None]
"""called with (finished episodes, all)"""
Watch = Callable[[int, Spent], None]
"""called after each turn of a batch with (turns so far, what they took)"""
UNKNOWN_CONTEXT = 10**9
"""``max_context_tokens`` of a model whose limit nobody knows: nothing is left out until it refuses"""


_ESTIMATED_ON = 4
"""tasks that are run for an estimate"""
_TYPICAL = 0.25
"""length of a typical response, as a share of the longest"""


class EveryEpisodeFailedError(ValueError):
    """Every episode of the first batch failed, so there is nothing to measure."""


@dataclass(frozen=True)
class Plan:
    """The settings of an evaluation, apart from the model."""

    env: EnvSettings
    split: str
    panel: Panel
    panel_seed: int
    rollout: RolloutSettings
    seeds: tuple[int, ...]
    """of sampling and of the environments; the panel is run once with each"""
    agent: str = "policy"
    agent_settings: dict[str, Any] = field(default_factory=dict)
    batch: int = 128
    """tasks whose episodes run together"""
    action_format: str = "tags"
    """how the model acts: ``tags`` in its text, or native ``tools``"""
    system: str = ""
    """the system message of every request to the model; empty: none"""
    source: dict[str, Any] = field(default_factory=dict)
    """settings of the model's source that decide its answers, by group (``endpoint``, ``vllm``)"""


@dataclass(frozen=True)
class Prepared:
    """An agent that is ready to run, and its environment."""

    agent: Agent
    make_env: Callable[[], AgentInterface]
    prompt_hash: str
    meter: MeteredPolicy | None


def prepare(plan: Plan, policy: Policy | None) -> Prepared:
    """Makes the agent: its prompts are complete afterwards."""
    wanted = agent_class(plan.agent).needs_policy
    meter = None
    if policy is not None and wanted:
        meter = MeteredPolicy(policy, system=plan.system)
    elif plan.system:
        raise ValueError(f"agent.system: the agent {plan.agent!r} asks no model.")
    room = plan.rollout.max_context_tokens - (meter.system_tokens if meter else 0)
    if room <= plan.rollout.max_response_tokens:
        raise ValueError("agent.system leaves no room in the context for a prompt: shorten it.")
    rollout = plan.rollout.replace(max_context_tokens=room)
    agent = make_agent(plan.agent, meter, rollout, plan.agent_settings)
    interface = _interface(plan, agent)
    make_env = agent_env_maker(plan.env, plan.split, interface)
    examples = plan.env.replace(kwargs=example_kwargs(plan.env.kwargs))
    agent.prepare(
        ExampleSource(
            agent_env_maker(examples, plan.env.train_split, interface), plan.panel.task_ids
        )
    )
    met = make_env()
    hashed = prompt_hash(met, [*agent.prompts(), *([plan.system] if plan.system else [])])
    if meter is not None:
        meter.form = ActionForm(met.template, plan.action_format)
    met.close()
    return Prepared(agent, make_env, hashed, meter)


def _interface(plan: Plan, agent: Agent) -> dict[str, Any]:
    """The settings of ``make_agent_env`` that the agent and the action format need."""
    require_choice("agent.action_format", plan.action_format, FORMATS)
    probe = agent_env_maker(plan.env, plan.split)()
    template = probe.template
    probe.close()
    if plan.action_format == "tags":
        return agent.interface(template)
    if not agent.needs_policy:
        raise ValueError(f"agent.action_format: the agent {agent.name!r} asks no model.")
    if agent.own_form:
        raise ValueError(
            f"agent.action_format=tools: the model of the agent {agent.name!r} acts in a form of that "
            "agent's own. Leave action_format out, or use an agent such as react."
        )
    asking = ask_for_tools(template)
    return {"template": asking, **agent.interface(asking)}


@dataclass
class PanelRun:
    """A run of an episode of every task with each seed, except for those that the log already holds."""

    plan: Plan
    prepared: Prepared
    log: EpisodeLog | None = None
    """holds episodes of an earlier call, and takes those of this one"""
    progress: Progress | None = None
    """called after each episode"""
    watch: Watch | None = None
    """called after each turn"""
    messages: bool = False
    """whether episodes hold what was sent to the model"""
    pool_class: type[MeteredPool] = MeteredPool

    def __post_init__(self) -> None:
        ids, log = self.plan.panel.task_ids, self.log
        self.found: dict[int, dict[str, Episode]] = {
            seed: {i: e for i in ids if log and (e := log.get(seed, i))} for seed in self.plan.seeds
        }
        self.turns = 0
        self.unnoted: list[dict[str, Any]] = []
        """what failed episodes without a step have spent"""

    def run(self) -> dict[int, list[Episode | None]]:
        """The episodes by seed, in the panel's order; ``None``: the run stopped before it."""
        self._report()
        for seed in self.plan.seeds:
            if self.stopped is None:
                self._run_seed(seed)
        ids = self.plan.panel.task_ids
        for found in self.found.values():
            for number, task_id in enumerate(ids):
                if task_id in found:
                    found[task_id].group = number
        return {seed: [found.get(i) for i in ids] for seed, found in self.found.items()}

    @property
    def stopped(self) -> str | None:
        """The budget that ended the run."""
        return self.prepared.meter.stopped if self.prepared.meter else None

    def _run_seed(self, seed: int) -> None:
        plan, agent = self.plan, self.prepared.agent
        left = [i for i in plan.panel.task_ids if i not in self.found[seed]]
        if not left:
            return
        pool = self.pool_class(
            self.prepared.meter,
            self.messages,
            self._turn,
            self.prepared.make_env,
            min(plan.batch, len(left)),
            agent.group_size,
            seed=seed,
            seeds=environment_seeds(plan.panel, seed),
        )
        pool.episode_seconds = plan.rollout.episode_seconds
        try:
            for start in range(0, len(left), plan.batch):
                part = left[start : start + plan.batch]
                agent.run(pool, part, seed, lambda episode: self._finished(seed, episode))
                self._require_some()
                if self.stopped is not None:
                    break
        finally:
            pool.close()

    def _finished(self, seed: int, episode: Episode) -> None:
        meter = self.prepared.meter
        spent = meter.take(episode.task_id) if meter else Spent()
        if spent.calls:
            note(episode, spent=asdict(spent))
        if episode.error is not None and episode.error == self.stopped:
            return  # the episode did not fail: the budget leaves it for the next run
        if spent.calls and not episode.transitions:
            self.unnoted.append(asdict(spent))
        self.found[seed][episode.task_id] = episode
        if self.log:
            self.log.add(seed, episode)
        self._report()

    def _turn(self, answers: int) -> None:
        self.turns += answers
        if self.watch:
            meter = self.prepared.meter
            self.watch(self.turns, meter.total if meter else Spent())

    def _report(self) -> None:
        if self.progress:
            done = sum(map(len, self.found.values()))
            self.progress(done, len(self.plan.panel.task_ids) * len(self.plan.seeds))

    def _require_some(self) -> None:
        """Ends a run that fails from the start: the remaining episodes would fail as well."""
        episodes = [e for found in self.found.values() for e in found.values()]
        errors = [e.error for e in episodes if e.error is not None]
        if episodes and len(errors) == len(episodes):
            raise EveryEpisodeFailedError(
                f"Every one of the first {len(errors)} episode(s) failed, so there is nothing to "
                f"measure. The first reason: {reason_of(errors[0])}"
            )


def environment_seeds(panel: Panel, seed: int) -> dict[str, int]:
    """The environment's seed of each task: the same whatever part of the panel is run."""
    rng = np.random.default_rng(seed)
    return {task_id: int(rng.integers(2**31)) for task_id in panel.task_ids}


def evaluation_key(plan: Plan, prepared: Prepared, model: str, weights: str | None) -> str:
    """Equal for evaluations that can continue with each other's episodes.

    More seeds, or other batches, do not change an episode.
    """
    parts = asdict(plan) | {"env": plan.env.model_dump(), "rollout": plan.rollout.model_dump()}
    for name in ("seeds", "batch"):
        parts.pop(name)
    for name in ("groups", "group_size"):
        parts["rollout"].pop(name)
    parts |= {"prompts": prepared.prompt_hash, "model": model, "weights": weights}
    text = json.dumps([parts, __version__], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def evaluate_plan(
    plan: Plan,
    policy: Policy | None,
    model: str,
    log_path: Path | None = None,
    progress: Progress | None = None,
    records: bool = True,
    watch: Watch | None = None,
    prepared: Prepared | None = None,
) -> tuple[dict[str, Any], list[Episode]]:
    """Runs an agent on a panel and summarises the episodes.

    Args:
        policy: answers; ``None`` for agents that need no model.
        log_path: holds finished episodes until the evaluation is complete; those that it holds already
            are not run again.
        records: whether the result describes the environment (which takes a few steps in it) and the
            model, episodes hold what was sent to the model, and tasks that failed by an error are left
            out of rates. Without it, as in training, such a task is no success.

    Returns:
        (the contents of ``result.json``, the episodes: seeds in turn, each in the panel's order)
    """
    prepared = prepared or prepare(plan, policy)
    weights = model_hash(policy) if records else None
    key = evaluation_key(plan, prepared, model, weights)
    log = None if log_path is None else EpisodeLog(log_path, key)
    started = time.perf_counter()
    run = PanelRun(plan, prepared, log, progress, watch, records)
    try:
        runs = run.run()
    except BaseException:
        if log:
            log.close()
        raise
    seconds = log.seconds if log else time.perf_counter() - started
    probe = prepared.make_env()
    result = summarise(runs, plan.panel, probe, records, run.unnoted)
    sampling = asdict(plan.rollout.sampling(probe.template.closing_tags))
    probe.close()
    limit = plan.rollout.max_context_tokens
    result |= {
        "privileged": prepared.agent.privileged,
        "context_tokens": None if limit == UNKNOWN_CONTEXT else limit,
        "sampling": {**sampling, "stop": list(sampling["stop"])},
        **describe(plan, prepared, model, weights),
        "stopped": run.stopped,
        "seconds": seconds,
    }
    if records:
        limits = (prepared.make_env, plan.rollout.episode_seconds)
        environment = environment_record(plan.env, plan.split, plan.panel, *limits)
        result |= {"evaluation": key, "environment": environment, "commit": commit()}
    return result, [e for episodes in runs.values() for e in episodes if e is not None]


def describe(plan: Plan, prepared: Prepared, model: str, weights: str | None) -> dict[str, Any]:
    """The settings of an evaluation, under the names that its result has."""
    return {
        "model": model,
        "model_hash": weights,
        "agent": plan.agent,
        "agent_settings": prepared.agent.settings.model_dump(),
        "action_format": plan.action_format,
        "system": plan.system,
        "panel": plan.panel.name,
        "panel_hash": plan.panel.hash,
        "settings": {
            "env": plan.env.model_dump(),
            "rollout": plan.rollout.model_dump(),
            "panel_seed": plan.panel_seed,
            "seed": plan.seeds[0],
            **plan.source,
        },
        "prompt_hash": prepared.prompt_hash,
    }


# --- estimates without a model (``paw eval --dry-run``) -------------------------------------------------


def estimate(plan: Plan, settings: EndpointSettings) -> dict[str, dict[str, Any]]:
    """Runs a few of the tasks with random actions in place of a model's, which take nearly all steps.

    Returns:
        for ``typical`` (responses of a quarter of the longest) and ``at_most`` (all of the longest):
        ``tasks`` (tasks x seeds), ``requests``, ``prompt_tokens``, ``completion_tokens`` (at four
        characters each) and ``cost`` (``None``: no prices are given). A cache is not considered.
    """
    shares = {"typical": _TYPICAL, "at_most": 1.0}
    return {name: _estimate(plan, settings, share) for name, share in shares.items()}


def _estimate(plan: Plan, settings: EndpointSettings, share: float) -> dict[str, Any]:
    ids = plan.panel.task_ids
    count = min(_ESTIMATED_ON, len(ids))
    chosen = tuple(ids[i * len(ids) // count] for i in range(count))
    few = replace(plan, panel=Panel(plan.panel.name, chosen, ""), seeds=plan.seeds[:1])
    prepared = prepare(few, StandIn(share))
    PanelRun(few, prepared, pool_class=_RandomPool).run()
    assert prepared.meter is not None  # the stand-in is a policy
    total, tasks = prepared.meter.total, len(ids) * len(plan.seeds)
    spent = (total.calls, total.prompt_tokens, total.completion_tokens)
    calls, prompt, completion = (round(number * tasks / count) for number in spent)
    return {
        "tasks": tasks,
        "requests": calls,
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "cost": settings.cost(prompt, completion) if settings.priced else None,
    }


class StandIn:
    """A policy, and its own session, that answers with so many meaningless words."""

    chat = None
    trainable = False

    def __init__(self, share: float) -> None:
        self.share = share
        self.tokens = 1

    def session(self, sampling: Sampling, growing: bool) -> StandIn:
        session = StandIn(self.share)
        session.tokens = max(1, round(self.share * sampling.max_tokens))
        return session

    def respond(self, requests: Sequence[Request]) -> list[Response]:
        text = "word"[:CHARACTERS_A_TOKEN] * self.tokens
        lengths = (sum(len(str(m["content"] or "")) for m in r.messages) for r in requests)
        return [Response(text=text, usage=(n // CHARACTERS_A_TOKEN, self.tokens)) for n in lengths]


class _RandomPool(MeteredPool):
    """Takes random actions in place of the responses."""

    def step(self, responses: Sequence[str] | Mapping[int, str]) -> list[Slot]:
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
