"""Success on fixed, hashed panels of tasks, with intervals (``paw eval``), and comparisons.

``panels`` names the panels, ``runner`` runs an agent on one, ``summary`` turns episodes into
numbers, ``comparison`` compares results, ``replay`` checks one, ``world_model`` measures how well a
model predicts observations (``paw eval-wm``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paw_gym.transition import Episode
from paw_train.environments import agent_env_maker, make_pool, panel_name
from paw_train.evaluation.panels import PANELS, Panel, make_panel
from paw_train.evaluation.program import evaluate_from_args
from paw_train.evaluation.result_folder import evaluate_to_folder
from paw_train.evaluation.runner import Plan, Progress, evaluate_plan
from paw_train.evaluation.summary import joined
from paw_train.rollouts.policy import Policy
from paw_train.settings import EnvSettings, Settings
from paw_train.settings.rollout import RolloutSettings

__all__ = [
    "PANELS",
    "Panel",
    "Plan",
    "Progress",
    "agent_env_maker",
    "evaluate",
    "evaluate_from_args",
    "evaluate_members",
    "evaluate_plan",
    "evaluate_to_folder",
    "make_panel",
    "make_pool",
]


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
    plays: int = 1,
) -> tuple[dict[str, Any], list[Episode]]:
    """Evaluates a policy on a panel, as training does before, during and after RL.

    Args:
        policy: answers; ``None`` for agents that need no model.
        seed: of sampling; further runs over the panel use the seeds that follow it.
        agent: one of ``paw_train.agents.AGENTS``.

    Returns:
        (the contents of ``result.json``, the episodes: of one run over the panel after another, each in
        the panel's order)
    """
    probe = agent_env_maker(env, split)()
    tasks = probe.tasks
    panel = make_panel(tasks, panel_name(env, split, min(size, len(tasks))), size, panel_seed)
    probe.close()
    seeds = tuple(range(seed, seed + plays))
    plan = Plan(env, split, panel, panel_seed, settings, seeds, agent, {}, batch)
    return evaluate_plan(plan, policy, model, progress=progress, records=False)


def evaluate_members(
    policy: Policy,
    settings: Settings,
    splits: Mapping[str, str],
    tasks: int,
    plays: int = 1,
    model: str = "",
    progress: Progress | None = None,
) -> tuple[dict[str, Any], list[list[Episode]]]:
    """Evaluates a policy on a panel of each environment of a run.

    Returns:
        (the result: for a run of one environment as ``evaluate`` gives it, else ``joined``; the episodes of
        each environment)
    """
    e, members = settings.evaluation, settings.members
    rollout = settings.rollout.replace(temperature=e.temperature)
    results: dict[str, dict[str, Any]] = {}
    episodes: list[list[Episode]] = []
    done = 0
    for member in members:

        def advance(now: int, _: int, before: int = done) -> None:
            if progress is not None:
                progress(before + now, tasks * plays * len(members))

        result, played = evaluate(
            policy,
            member.env,
            splits[member.name],
            tasks,
            e.seed,
            rollout,
            e.seed,
            e.batch,
            model=model,
            progress=advance,
            plays=plays,
        )
        results[member.name] = result
        episodes.append(played)
        done += len(played)
    return (joined(results) if settings.mixed else results[members[0].name]), episodes
