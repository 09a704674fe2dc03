"""The texts of a run's environments, which a policy from scratch takes its vocabulary from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

import numpy as np

from paw_gym.pool import EnvPool
from paw_gym.transition import Episode
from paw_train.baselines import make_agent
from paw_train.environments import has_solver, make_pool
from paw_train.evaluation.terminal import Advance, Display
from paw_train.rollouts.rollout import demonstrations
from paw_train.settings import RolloutSettings, Settings
from paw_train.settings.mixture import Member

_TASKS = 600
"""training tasks that are played, over all environments of a run"""
_LEAST = 200
"""the least for one environment"""
_TOGETHER = 100
"""episodes that run at the same time"""
_NOISE = 0.2
"""share of steps at which something else than the expert's action is done: an environment has words for
mistakes, too"""


def language_texts(settings: Settings, display: Display) -> list[str]:
    """Texts that hold the words of a run's environments: prompts, responses and observations.

    They are of episodes of the training tasks: the expert's, with perturbed actions, or random ones where
    there is no expert.

    Args:
        settings: of the run; ``seed`` decides on the perturbed actions.
        display: shows the progress.
    """
    most = max(_LEAST, _TASKS // len(settings.members))
    return [
        text
        for member in settings.members
        for text in _member_texts(member, most, settings.seed, settings.rollout, display)
    ]


def _member_texts(
    member: Member, most: int, seed: int, rollout: RolloutSettings, display: Display
) -> list[str]:
    env = member.env
    pool = make_pool(env, env.train_split, 1, 1, seed)
    ids = pool.tasks.ids
    few = [ids[int(i)] for i in np.linspace(0, len(ids) - 1, min(len(ids), most))]
    rng = np.random.default_rng(seed) if has_solver(env, env.train_split) else None
    texts: list[str] = []
    with display.task(f"reading the language of {member.name}", len(few)) as advance:
        for start in range(0, len(few), _TOGETHER):
            part = few[start : start + _TOGETHER]
            _load(pool, part, start, advance)
            if rng is not None:
                episodes = _expert_episodes(pool, part, rng, partial(advance, start))
            else:
                episodes = _random_episodes(pool, part, rollout, seed)
            texts += [text for episode in episodes for text in _texts_of(episode)]
    pool.close()
    return texts


def _load(pool: EnvPool, task_ids: Sequence[str], start: int, advance: Advance) -> None:
    """Loads tasks one by one: those that are generated only now may take a second each."""
    for number, task_id in enumerate(task_ids, start):
        advance(number, "loading tasks")
        pool.tasks[task_id]


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
