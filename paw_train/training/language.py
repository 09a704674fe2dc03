"""The texts of a run's environments, which a policy from scratch takes its vocabulary from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from itertools import count

import numpy as np

from paw_gym.pool import EnvPool
from paw_gym.transition import Episode
from paw_train.agents import make_agent
from paw_train.environments import has_solver, make_pool
from paw_train.evaluation.terminal import Display
from paw_train.rollouts.rollout import demonstrations
from paw_train.settings import RolloutSettings, Settings
from paw_train.settings.env import Member

_TASKS = 600
"""training tasks that are played, over all environments of a run"""
_LEAST = 200
"""the least for one environment"""
_TOGETHER = 100
"""episodes that run at the same time"""
_NOISE = 0.2
"""share of steps at which something other than the expert's action is done: an environment has words for
mistakes, too"""


def language_texts(settings: Settings, display: Display) -> list[str]:
    """Texts that hold the words of a run's environments: prompts, responses and observations.

    They come from episodes of the training tasks: the expert's, with perturbed actions, or random ones if
    there is no expert.
    """
    texts: list[str] = []
    most = max(_LEAST, _TASKS // len(settings.members))
    for member in settings.members:
        with closing(make_pool(member.env, member.env.train_split, 1, 1, settings.seed)) as pool:
            ids = pool.tasks.ids
            evenly = np.linspace(0, len(ids) - 1, min(len(ids), most))
            texts += _read(settings, member, pool, [ids[int(i)] for i in evenly], display)
    return texts


def _read(
    settings: Settings,
    member: Member,
    pool: EnvPool,
    task_ids: Sequence[str],
    display: Display,
) -> list[str]:
    """Texts of episodes of the tasks."""
    env, seed = member.env, settings.seed
    rng = np.random.default_rng(seed) if has_solver(env, env.train_split) else None
    texts: list[str] = []
    with display.task(f"reading the language of {member.name}", len(task_ids)) as advance:
        for start in range(0, len(task_ids), _TOGETHER):
            part = task_ids[start : start + _TOGETHER]
            for number, task_id in enumerate(part, start):
                advance(number, "loading tasks")  # those generated only now may take a second each
                pool.tasks[task_id]
            if rng is not None:
                episodes = _expert_episodes(pool, part, rng, partial(advance, start))
            else:
                episodes = _random_episodes(pool, part, settings.rollout, seed)
            texts += [text for episode in episodes for text in _texts_of(episode)]
    return texts


def _expert_episodes(
    pool: EnvPool, task_ids: Sequence[str], rng: np.random.Generator, note: Callable[[str], None]
) -> list[Episode]:
    steps = count(1)
    played = demonstrations(
        pool, None, task_ids, _NOISE, rng, each_step=lambda _: note(f"{next(steps)} steps")
    )
    return [trajectory.episode for trajectory in played]


def _random_episodes(
    pool: EnvPool, task_ids: Sequence[str], rollout: RolloutSettings, seed: int
) -> list[Episode]:
    episodes: list[Episode] = []
    make_agent("random", None, rollout, {}).run(pool, task_ids, seed, episodes.append)
    return episodes


def _texts_of(episode: Episode) -> list[str]:
    steps = [(t.prompt, t.response, t.next_observation) for t in episode.transitions]
    return [episode.instruction, *(text for step in steps for text in step)]
