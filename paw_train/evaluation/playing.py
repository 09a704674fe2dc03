"""An agent plays a panel, seed by seed, and what it did becomes a result."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from paw_gym import __version__
from paw_gym.pool import EnvPool
from paw_gym.transition import Episode
from paw_gym.wrappers import AgentInterface
from paw_train.baselines import agent_class, make_agent
from paw_train.baselines.examples import ExampleSource, example_kwargs
from paw_train.baselines.metering import MeteredPolicy
from paw_train.baselines.protocol import Agent
from paw_train.baselines.turns import note
from paw_train.environments import agent_env_maker
from paw_train.evaluation.episode_log import EpisodeLog
from paw_train.evaluation.fingerprint import environment_record, model_hash, prompt_hash
from paw_train.evaluation.panels import Panel
from paw_train.evaluation.summary import summarise
from paw_train.rollouts.policy import Policy
from paw_train.settings import EnvSettings
from paw_train.settings.rollout import RolloutSettings

Progress = Callable[[int, int], None]
"""called with (finished episodes, all)"""


@dataclass(frozen=True)
class Plan:
    """What is evaluated, but for the model."""

    env: EnvSettings
    split: str
    panel: Panel
    panel_seed: int
    rollout: RolloutSettings
    seeds: tuple[int, ...]
    """of sampling and of the environments; the panel is played once with each"""
    agent: str = "policy"
    agent_settings: dict[str, Any] = field(default_factory=dict)
    batch: int = 128
    """tasks played together"""


@dataclass(frozen=True)
class Prepared:
    """An agent that is ready to play, and how it meets the environment."""

    agent: Agent
    make_env: Callable[[], AgentInterface]
    prompt_hash: str
    meter: MeteredPolicy | None


def prepare(plan: Plan, policy: Policy | None) -> Prepared:
    """Makes the agent: its prompts are complete afterwards.

    Raises:
        ValueError: an unknown agent or setting, or one that does not go with the environment's prompt.
    """
    wanted = agent_class(plan.agent).needs_policy
    meter = MeteredPolicy(policy) if policy is not None and wanted else None
    agent = make_agent(plan.agent, meter, plan.rollout, plan.agent_settings)
    probe = agent_env_maker(plan.env, plan.split)()
    interface = agent.interface(probe.template)
    probe.close()
    make_env = agent_env_maker(plan.env, plan.split, interface)
    examples = replace(plan.env, kwargs=example_kwargs(plan.env.kwargs))
    agent.prepare(
        ExampleSource(
            agent_env_maker(examples, plan.env.train_split, interface), plan.panel.task_ids
        )
    )
    met = make_env()
    hashed = prompt_hash(met, agent.prompts())
    met.close()
    return Prepared(agent, make_env, hashed, meter)


def play(
    plan: Plan,
    prepared: Prepared,
    log: EpisodeLog | None = None,
    progress: Progress | None = None,
) -> dict[int, list[Episode]]:
    """Plays the panel once with each seed; what the log holds already is not played again.

    Returns:
        Episodes by seed, in the panel's order.
    """
    ids = plan.panel.task_ids
    done = 0
    runs: dict[int, list[Episode]] = {}
    for seed in plan.seeds:
        found = {i: e for i in ids if log and (e := log.get(seed, i))}
        done += len(found)
        if progress:
            progress(done, len(ids) * len(plan.seeds))

        def finished(episode: Episode, seed: int = seed, found: dict[str, Episode] = found) -> None:
            nonlocal done
            if prepared.meter:
                spent = prepared.meter.take(episode.task_id)
                if spent.calls:
                    note(episode, spent=spent.to_dict())
            found[episode.task_id] = episode
            if log:
                log.add(seed, episode)
            done += 1
            if progress:
                progress(done, len(ids) * len(plan.seeds))

        _play_seed(plan, prepared, seed, [i for i in ids if i not in found], finished)
        runs[seed] = [found[i] for i in ids]
        for number, episode in enumerate(runs[seed]):
            episode.group = number
    return runs


def _play_seed(
    plan: Plan,
    prepared: Prepared,
    seed: int,
    task_ids: Sequence[str],
    finished: Callable[[Episode], None],
) -> None:
    if not task_ids:
        return
    pool = EnvPool(
        prepared.make_env,
        min(plan.batch, len(task_ids)),
        prepared.agent.group_size,
        seed=seed,
        seeds=environment_seeds(plan.panel, seed),
    )
    for start in range(0, len(task_ids), plan.batch):
        prepared.agent.play(pool, task_ids[start : start + plan.batch], seed, finished)
    pool.close()


def environment_seeds(panel: Panel, seed: int) -> dict[str, int]:
    """The environment's seed of each task: the same whatever part of the panel is played."""
    rng = np.random.default_rng(seed)
    return {task_id: int(rng.integers(2**31)) for task_id in panel.task_ids}


def evaluation_key(plan: Plan, prepared: Prepared, model: str, weights: str | None) -> str:
    """Equal for evaluations of which one can go on with the other's episodes.

    More seeds, or other batches, do not change what an episode comes to.
    """
    parts = asdict(plan)
    for name in ("seeds", "batch"):
        parts.pop(name)
    for name in ("groups", "group_size", "prefill_tokens"):
        parts["rollout"].pop(name)
    parts |= {"prompts": prepared.prompt_hash, "model": model, "weights": weights}
    text = json.dumps([parts, __version__], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def run(
    plan: Plan,
    policy: Policy | None,
    model: str,
    log_path: Path | None = None,
    progress: Progress | None = None,
    records: bool = True,
) -> tuple[dict[str, Any], list[Episode]]:
    """Plays a panel and sums it up.

    Args:
        plan: what is evaluated.
        policy: answers; ``None`` for agents that need no model.
        model: its name in the result.
        log_path: keeps finished episodes there until all are, and goes on with those that are there.
        progress: called after each episode.
        records: whether the result says what the environment and the model are, which takes a few
            steps in the environment.

    Returns:
        (the contents of ``result.json``, the episodes: seeds in turn, each in the panel's order)
    """
    prepared = prepare(plan, policy)
    weights = model_hash(policy) if records else None
    log = None
    if log_path is not None:
        log = EpisodeLog(log_path, evaluation_key(plan, prepared, model, weights))
    started = time.perf_counter()
    runs = play(plan, prepared, log, progress)
    seconds = log.seconds if log else time.perf_counter() - started
    probe = prepared.make_env()
    fingerprint = probe.tasks.fingerprint
    groups = probe.text_env.type_groups
    sampling = asdict(plan.rollout.sampling(probe.template.closing_tags))
    probe.close()
    described = {
        "env": asdict(plan.env),
        "rollout": asdict(plan.rollout),
        "panel_seed": plan.panel_seed,
        "seed": plan.seeds[0],
    }
    result = summarise(runs, plan.panel, plan.agent, model, fingerprint, described, seconds, groups)
    result |= {
        "told": prepared.agent.told,
        "agent_settings": asdict(prepared.agent.settings),
        "prompt_hash": prepared.prompt_hash,
        "sampling": {**sampling, "stop": list(sampling["stop"])},
    }
    if records:
        result |= _records(plan, prepared, weights)
    if log:
        log.close(complete=result["errors"] == 0)
    return result, [episode for episodes in runs.values() for episode in episodes]


def _records(plan: Plan, prepared: Prepared, weights: str | None) -> Mapping[str, Any]:
    environment = environment_record(plan.env, plan.split, plan.panel, prepared.make_env)
    return {"environment": environment, "model_hash": weights}
