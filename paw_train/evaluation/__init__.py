"""Success on fixed, hashed panels of tasks, with intervals (``paw eval``), and comparisons.

``panels`` names the panels, ``runner`` runs an agent on one, ``summary`` turns episodes into
numbers, ``comparison`` compares results, ``replay`` checks one, ``world_model`` measures how well a
model predicts observations (``paw eval-wm``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from paw_gym.transition import Episode
from paw_train.environments import agent_env_maker, make_pool, panel_name
from paw_train.evaluation.panels import PANELS, Panel, make_panel
from paw_train.evaluation.program import evaluate_from_args
from paw_train.evaluation.result_folder import evaluate_to_folder
from paw_train.evaluation.runner import PanelRun, Plan
from paw_train.evaluation.summary import joined
from paw_train.rollouts.policy import Policy
from paw_train.settings import Settings

__all__ = [
    "PANELS",
    "Panel",
    "PanelRun",
    "Plan",
    "agent_env_maker",
    "evaluate_from_args",
    "evaluate_members",
    "evaluate_to_folder",
    "make_panel",
    "make_pool",
]


def evaluate_members(
    policy: Policy,
    settings: Settings,
    splits: Mapping[str, str],
    tasks: int,
    plays: int = 1,
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[dict[str, Any], list[list[Episode]]]:
    """Evaluates a policy on a panel of each environment of a run, before, during and after RL.

    Args:
        splits: of the tasks, by environment.
        tasks: of each panel.
        plays: how often each panel is played, with the seeds that follow each other.
        progress: called with the number of episodes that are over.

    Returns:
        (the result: of one environment as ``result.json`` has it, else ``joined``; the episodes of each
        environment, of one run over its panel after another)
    """
    e, members = settings.evaluation, settings.members
    rollout = settings.rollout.replace(temperature=e.temperature)
    seeds = tuple(range(e.seed, e.seed + plays))
    results: dict[str, dict[str, Any]] = {}
    episodes: list[list[Episode]] = []
    for number, member in enumerate(members):
        env, split = member.env, splits[member.name]
        probe = agent_env_maker(env, split)()
        name = panel_name(env, split, min(tasks, len(probe.tasks)))
        panel = make_panel(probe.tasks, name, tasks, e.seed)
        probe.close()
        plan = Plan(env, split, panel, e.seed, rollout, seeds, batch=e.batch)

        def advance(run: PanelRun, before: int = number * tasks * plays) -> None:
            progress(before + run.done)

        run = PanelRun(plan, policy, settings.name, records=False)
        results[member.name], played = run.evaluate(progress=advance)
        episodes.append(played)
    return (joined(results) if settings.mixed else results[members[0].name]), episodes
