"""Runs an agent on a panel, seed by seed, and summarises its episodes as a result."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from paw_gym import __version__
from paw_gym.internals.naming import require_choice
from paw_gym.internals.validation import reason_of
from paw_gym.transition import Episode
from paw_train.agents import agent_class, make_agent
from paw_train.agents.action_form import FORMATS, ActionForm, ask_for_tools
from paw_train.agents.examples import ExampleSource, example_kwargs
from paw_train.agents.metering import MeteredPolicy, MeteredPool, Spent
from paw_train.agents.protocol import Agent, note
from paw_train.environments import agent_env_maker
from paw_train.evaluation.fingerprint import commit, environment_record, model_hash, prompt_hash
from paw_train.evaluation.panels import Panel
from paw_train.evaluation.result_folder import EpisodeLog
from paw_train.evaluation.summary import summarise
from paw_train.rollouts.policy import Policy
from paw_train.settings import EnvSettings
from paw_train.settings.rollout import RolloutSettings

UNKNOWN_CONTEXT = 10**9
"""``max_context_tokens`` of a model whose limit nobody knows: nothing is left out until it refuses"""


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
    source: dict[str, Any] = field(default_factory=dict)
    """settings of the model's source that decide its answers, by group (``endpoint``, ``vllm``)"""


class PanelRun:
    """An agent on a panel, ready to play: its prompts are complete.

    Args:
        policy: answers; ``None`` for agents that need no model.
        model: its name in the result.
        records: whether the result describes the environment (which takes a few steps in it) and the
            model, episodes hold what was sent to the model, and tasks that failed by an error are left
            out of rates. Without it, as in training, such a task is no success.
    """

    def __init__(
        self, plan: Plan, policy: Policy | None, model: str = "", records: bool = True
    ) -> None:
        self.plan, self.model, self.records = plan, model, records
        wanted = agent_class(plan.agent).needs_policy
        self.meter = MeteredPolicy(policy) if policy is not None and wanted else None
        self.agent = make_agent(plan.agent, self.meter, plan.rollout, plan.agent_settings)
        interface = _interface(plan, self.agent)
        self.make_env = agent_env_maker(plan.env, plan.split, interface)
        examples = plan.env.replace(kwargs=example_kwargs(plan.env.kwargs))
        make_examples = agent_env_maker(examples, plan.env.train_split, interface)
        self.agent.prepare(ExampleSource(make_examples, plan.panel.task_ids))
        met = self.make_env()
        self.prompt_hash = prompt_hash(met, self.agent.prompts())
        if self.meter is not None:
            self.meter.form = ActionForm(met.template, plan.action_format)
        met.close()
        self.weights = model_hash(policy) if records else None
        self.found: dict[int, dict[str, Episode]] = {seed: {} for seed in plan.seeds}
        """episodes by seed and task"""
        self.turns = 0
        self._unnoted: list[dict[str, Any]] = []
        """what failed episodes without a step have spent"""
        self._log: EpisodeLog | None = None
        self._progress: Progress | None = None

    @cached_property
    def key(self) -> str:
        """Equal for evaluations that can continue with each other's episodes.

        More seeds, or other batches, do not change an episode.
        """
        plan = self.plan
        parts = asdict(plan) | {"env": plan.env.model_dump(), "rollout": plan.rollout.model_dump()}
        for name in ("seeds", "batch"):
            parts.pop(name)
        for name in ("groups", "group_size"):
            parts["rollout"].pop(name)
        parts |= {"prompts": self.prompt_hash, "model": self.model, "weights": self.weights}
        text = json.dumps([parts, __version__], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def described(self) -> dict[str, Any]:
        """The settings of the evaluation, under the names that its result has."""
        plan = self.plan
        return {
            "model": self.model,
            "model_hash": self.weights,
            "agent": plan.agent,
            "agent_settings": self.agent.settings.model_dump(),
            "action_format": plan.action_format,
            "panel": plan.panel.name,
            "panel_hash": plan.panel.hash,
            "settings": {
                "env": plan.env.model_dump(),
                "rollout": plan.rollout.model_dump(),
                "panel_seed": plan.panel_seed,
                "seed": plan.seeds[0],
                **plan.source,
            },
            "prompt_hash": self.prompt_hash,
        }

    @property
    def done(self) -> int:
        """Finished episodes."""
        return sum(map(len, self.found.values()))

    @property
    def spent(self) -> Spent:
        return self.meter.total if self.meter else Spent()

    @property
    def stopped(self) -> str | None:
        """The budget that ended the run."""
        return self.meter.stopped if self.meter else None

    def evaluate(
        self, log_path: Path | None = None, progress: Progress | None = None
    ) -> tuple[dict[str, Any], list[Episode]]:
        """Plays the panel and summarises the episodes.

        Args:
            log_path: holds finished episodes until the evaluation is complete; those that it holds already
                are not run again.
            progress: called after each turn and each episode.

        Returns:
            (the contents of ``result.json``, the episodes: seeds in turn, each in the panel's order)
        """
        plan, started = self.plan, time.perf_counter()
        log = None if log_path is None else EpisodeLog(log_path, self.key)
        try:
            runs = self.play(progress, log)
        finally:
            if log:
                log.close()
        seconds = log.seconds if log else time.perf_counter() - started
        probe = self.make_env()
        result = summarise(runs, plan.panel, probe, self.records, self._unnoted)
        sampling = asdict(plan.rollout.sampling(probe.template.closing_tags))
        probe.close()
        limit = plan.rollout.max_context_tokens
        result |= {
            "privileged": self.agent.privileged,
            "context_tokens": None if limit == UNKNOWN_CONTEXT else limit,
            "sampling": {**sampling, "stop": list(sampling["stop"])},
            **self.described(),
            "stopped": self.stopped,
            "seconds": seconds,
        }
        if self.records:
            environment = environment_record(plan.env, plan.split, plan.panel, self.make_env)
            result |= {"evaluation": self.key, "environment": environment, "commit": commit()}
        return result, [e for episodes in runs.values() for e in episodes if e is not None]

    def play(
        self, progress: Progress | None = None, log: EpisodeLog | None = None
    ) -> dict[int, list[Episode | None]]:
        """An episode of every task with each seed, in the panel's order, those of the log included.

        ``None`` stands for an episode that a budget left out.
        """
        ids = self.plan.panel.task_ids
        self._progress, self._log = progress, log
        for seed, found in self.found.items():
            found |= {i: e for i in ids if log and (e := log.get(seed, i))}
        self._report()
        for seed in self.plan.seeds:
            if self.stopped is None:
                self._play_seed(seed)
        for found in self.found.values():
            for number, task_id in enumerate(ids):
                if task_id in found:
                    found[task_id].group = number
        return {seed: [found.get(i) for i in ids] for seed, found in self.found.items()}

    def _play_seed(self, seed: int) -> None:
        plan = self.plan
        left = [i for i in plan.panel.task_ids if i not in self.found[seed]]
        if not left:
            return
        pool = MeteredPool(
            self.meter,
            self.records,
            self._turn,
            self.make_env,
            min(plan.batch, len(left)),
            self.agent.group_size,
            seed=seed,
            seeds=environment_seeds(plan.panel, seed),
        )
        try:
            for start in range(0, len(left), plan.batch):
                part = left[start : start + plan.batch]
                self.agent.run(pool, part, seed, lambda episode: self._finished(seed, episode))
                self._require_some()
                if self.stopped is not None:
                    break
        finally:
            pool.close()

    def _finished(self, seed: int, episode: Episode) -> None:
        spent = self.meter.take(episode.task_id) if self.meter else Spent()
        if spent.calls:
            note(episode, spent=asdict(spent))
        if episode.error is not None and episode.error == self.stopped:
            return  # the episode did not fail: the budget leaves it for the next run
        if spent.calls and not episode.transitions:
            self._unnoted.append(asdict(spent))
        self.found[seed][episode.task_id] = episode
        if self._log:
            self._log.add(seed, episode)
        self._report()

    def _turn(self, answers: int) -> None:
        self.turns += answers
        self._report()

    def _report(self) -> None:
        if self._progress:
            self._progress(self)

    def _require_some(self) -> None:
        """Ends a run that fails from the start: the remaining episodes would fail as well."""
        errors = [e.error for found in self.found.values() for e in found.values()]
        if errors and None not in errors:
            raise EveryEpisodeFailedError(
                f"Every one of the first {len(errors)} episode(s) failed, so there is nothing to "
                f"measure. The first reason: {reason_of(str(errors[0]))}"
            )


Progress = Callable[[PanelRun], None]


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


def environment_seeds(panel: Panel, seed: int) -> dict[str, int]:
    """The environment's seed of each task: the same whatever part of the panel is run."""
    rng = np.random.default_rng(seed)
    return {task_id: int(rng.integers(2**31)) for task_id in panel.task_ids}
