"""Success on a fixed, hashed panel of tasks, with intervals."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paw_gym.core import TaskSet
from paw_gym.pool import EnvPool
from paw_gym.transition import Episode
from paw_gym.wrappers import make_agent_env
from paw_train.checkpoint import find_checkpoint
from paw_train.config import EnvSettings, Settings, apply_override, build
from paw_train.policies.choosing import open_policy, split_overrides
from paw_train.policies.protocol import Policy
from paw_train.rollout import RolloutSettings, Trajectory, demonstrations, rollout
from paw_train.statistics import wilson_interval

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Panel:
    """A fixed list of tasks; results on panels with equal hashes are on equal tasks."""

    name: str
    task_ids: tuple[str, ...]
    hash: str


def make_panel(tasks: TaskSet, name: str, size: int, seed: int) -> Panel:
    """Draws ``size`` tasks without repetition (all, when there are no more).

    The hash covers the task set's fingerprint and the ids.
    """
    count = min(size, len(tasks))
    drawn = np.random.default_rng(seed).permutation(len(tasks))[:count]
    ids = tuple(tasks.ids[int(i)] for i in sorted(drawn))
    digest = hashlib.sha256("\n".join([tasks.fingerprint, *ids]).encode()).hexdigest()
    return Panel(name, ids, digest)


def make_pool(env: EnvSettings, split: str, groups: int, group_size: int, seed: int) -> EnvPool:
    """A pool of the configured environment on one split."""
    return EnvPool(agent_env_maker(env, split), groups, group_size, seed=seed)


def agent_env_maker(env: EnvSettings, split: str) -> Callable[[], Any]:
    """A function that makes the configured agent environment."""
    agent: dict[str, Any] = {
        "history_length": env.history_length,
        "require_admissible": env.require_admissible,
        "mode": env.mode,
    }
    if env.invalid_penalty is not None:
        agent["invalid_penalty"] = env.invalid_penalty
    if env.template is not None:
        agent["template"] = env.template
    return lambda: make_agent_env(env.id, **agent, **{**env.kwargs, "split": split})


def play_panel(
    policy: Policy | None,
    env: EnvSettings,
    split: str,
    panel: Panel,
    settings: RolloutSettings,
    seed: int,
    batch: int = 128,
    progress: Progress | None = None,
    agent: str = "policy",
) -> list[Episode]:
    """Plays each task of a panel once.

    Args:
        policy: the policy; ``None`` for the other agents.
        env: the environment.
        split: the panel's split.
        panel: the tasks.
        settings: sampling.
        seed: of sampling.
        batch: episodes played together.
        progress: called with (finished, all).
        agent: ``policy``, ``expert`` (the environment's own) or ``random`` (uniform over the
            admissible actions).

    Returns:
        The episodes in the panel's order.
    """
    pool = make_pool(env, split, batch, 1, seed)
    episodes: list[Episode] = []
    for start in range(0, len(panel.task_ids), batch):
        ids = panel.task_ids[start : start + batch]
        if agent == "random":
            played = _play_random(pool, ids, seed + start)
        elif agent == "expert" or policy is None:
            played = demonstrations(pool, None, ids)
        else:
            # the same seed for each part: what an episode draws does not depend on ``batch``
            generator = torch.Generator().manual_seed(seed)
            played = rollout(policy, pool, settings, generator, ids, keep_tokens=False)
        episodes.extend(trajectory.episode for trajectory in played)
        if progress:
            progress(len(episodes), len(panel.task_ids))
    pool.close()
    return episodes


def _play_random(pool: EnvPool, task_ids: Sequence[str], seed: int) -> list[Trajectory]:
    rng = np.random.default_rng(seed)
    pool.reset(task_ids)
    while pool.active:
        answers = []
        for slot in pool.active:
            actions = slot.info["admissible_actions"] or [""]
            action = actions[int(rng.integers(len(actions)))]
            answers.append(pool.env_of(slot).response_for(action))
        pool.step(answers)
    return [Trajectory(episode) for episode in pool.episodes]


def summarise(
    episodes: Sequence[Episode],
    panel: Panel,
    agent: str,
    model: str,
    fingerprint: str,
    settings: Mapping[str, Any],
    seconds: float,
) -> dict[str, Any]:
    """The contents of ``result.json``.

    An episode that failed by an error of the environment counts as no success, and is counted.
    """
    by_type: dict[str, list[Episode]] = {}
    for episode in episodes:
        by_type.setdefault(episode.task_type, []).append(episode)
    steps = [len(e.transitions) for e in episodes]
    invalid = [not t.action_is_valid for e in episodes for t in e.transitions]
    return {
        "panel": panel.name,
        "panel_hash": panel.hash,
        "env_id": episodes[0].env_id,
        "agent": agent,
        "model": model,
        **_rate(episodes),
        "by_type": {name: _rate(by_type[name]) for name in sorted(by_type)},
        "fingerprint": fingerprint,
        "settings": dict(settings),
        "mean_steps": float(np.mean(steps)),
        "invalid_rate": float(np.mean(invalid)) if invalid else 0.0,
        "mean_reward": float(np.mean([e.total_reward for e in episodes])),
        "errors": sum(e.error is not None for e in episodes),
        "seconds": seconds,
        "successes": [bool(e.success) for e in episodes],
    }


def _rate(episodes: Sequence[Episode]) -> dict[str, Any]:
    wins = sum(episode.success for episode in episodes)
    low, high = wilson_interval(wins, len(episodes))
    return {"n": len(episodes), "success_rate": wins / len(episodes), "ci95": [low, high]}


def evaluate(
    policy: Policy | None,
    env: EnvSettings,
    split: str,
    size: int,
    panel_seed: int,
    settings: RolloutSettings,
    seed: int,
    batch: int = 128,
    agent: str = "policy",
    model: str = "",
    progress: Progress | None = None,
) -> tuple[dict[str, Any], list[Episode]]:
    """Plays a panel and sums it up: (``result.json``'s contents, the episodes)."""
    probe = agent_env_maker(env, split)()
    tasks = probe.tasks
    panel = make_panel(tasks, f"{env.id}/{split}/{min(size, len(tasks))}", size, panel_seed)
    probe.close()
    started = time.perf_counter()
    episodes = play_panel(policy, env, split, panel, settings, seed, batch, progress, agent)
    seconds = time.perf_counter() - started
    described = {
        "env": asdict(env),
        "rollout": asdict(settings),
        "panel_seed": panel_seed,
        "seed": seed,
    }
    result = summarise(episodes, panel, agent, model, tasks.fingerprint, described, seconds)
    return result, episodes


def evaluate_from_args(model: str, overrides: Sequence[str], out: str | None = None) -> Path:
    """What ``paw eval`` does: evaluates, prints the table, writes ``result.json`` and the episodes.

    Args:
        model: a run's folder (its trained policy, its settings), a Hugging Face model's folder or hub
            name, a checkpoint's ``model`` folder inside a run, ``openai:MODEL`` (an OpenAI-compatible
            endpoint, settings ``endpoint.KEY=...``), ``vllm:MODEL`` (settings ``vllm.KEY=...``), or
            ``expert`` or ``random``.
        overrides: ``key=value`` settings.
        out: the folder to write to; ``None``: ``eval/<split>`` in the run, or ``runs/eval-...``.

    Returns:
        The path of ``result.json``.
    """
    from paw_train.display import Display

    agent = model if model in ("expert", "random") else "policy"
    run = _run_of(Path(model)) if agent == "policy" else None
    own, source = split_overrides(model, overrides)
    settings = _settings_of(run, own)
    policy: Policy | None = None
    if agent == "policy":
        device = "cuda" if torch.cuda.is_available() else "cpu"
        weights = _weights_of(Path(model), run)
        policy = open_policy(model, source, weights, device, settings.model.dtype)
    chosen = settings.evaluation
    rollout_settings = dataclasses.replace(settings.rollout, temperature=chosen.temperature)
    display = Display()
    with display.task(f"evaluating {model}", chosen.tasks) as advance:
        result, episodes = evaluate(
            policy,
            settings.env,
            chosen.split,
            chosen.tasks,
            chosen.seed,
            rollout_settings,
            chosen.seed,
            chosen.batch,
            agent,
            model if agent == "policy" else "",
            progress=lambda done, _: advance(done),
        )
    describe = getattr(policy, "describe", None)
    if describe is not None:
        result["endpoint"] = {**source, **describe()}
    name = re.sub(r"[^\w.-]+", "-", Path(model).name)
    folder = Path(out) if out else (run or Path("runs")) / f"eval-{name}-{chosen.split}"
    path = evaluate_to_folder(folder, result, episodes)
    display.result(result)
    display.say(f"Written to {path}")
    return path


def _run_of(path: Path) -> Path | None:
    """The run that a folder is, or lies in."""
    places = [path, *path.parents]
    return (
        next((p for p in places if (p / "checkpoints").is_dir()), None) if path.is_dir() else None
    )


def _settings_of(run: Path | None, overrides: Sequence[str]) -> Settings:
    data: dict[str, Any] = {}
    if run is not None:
        data = json.loads((run / "config.json").read_text(encoding="utf-8"))
    for override in overrides:
        apply_override(data, override)
    settings: Settings = build(Settings, data)
    return settings


def _weights_of(path: Path, run: Path | None) -> Path | str:
    """A run's own folder means its final policy: the best on the selection panel, else the last."""
    if run is None or path != run:
        return str(path)
    for name in ("best", "latest", "warm"):
        folder = find_checkpoint(run / "checkpoints" / name)
        if folder is not None:
            return folder / "model"
    raise ValueError(f"The run {run} has no checkpoint yet; nothing can be evaluated.")


def evaluate_to_folder(
    folder: Path, result: Mapping[str, Any], episodes: Sequence[Episode]
) -> Path:
    """Writes ``result.json`` and ``episodes.jsonl`` and returns the path of the result."""
    from paw_gym.transition import write_jsonl
    from paw_train.checkpoint import write_json

    folder.mkdir(parents=True, exist_ok=True)
    write_jsonl(folder / "episodes.jsonl", episodes)
    write_json(folder / "result.json", result)
    return folder / "result.json"
