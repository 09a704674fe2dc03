"""The texts of a run's environments, which a policy from scratch takes its vocabulary from."""

from __future__ import annotations

from collections.abc import Sequence
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
from paw_train.settings import Settings
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
    episodes: list[Episode] = []
    most = max(_LEAST, _TASKS // len(settings.members))
    for member in settings.members:
        with closing(make_pool(member.env, member.env.train_split, 1, 1, settings.seed)) as pool:
            ids = pool.tasks.ids
            evenly = np.linspace(0, len(ids) - 1, min(len(ids), most))
            episodes += _played(settings, member, pool, [ids[int(i)] for i in evenly], display)
    texts = []
    for episode in episodes:
        steps = [(t.prompt, t.response, t.next_observation) for t in episode.transitions]
        texts += [episode.instruction, *(text for step in steps for text in step)]
    return texts


def _played(
    settings: Settings, member: Member, pool: EnvPool, task_ids: Sequence[str], display: Display
) -> list[Episode]:
    env, seed = member.env, settings.seed
    rng = np.random.default_rng(seed) if has_solver(env, env.train_split) else None
    episodes: list[Episode] = []
    steps = count(1)

    def note(at: int, _: object) -> None:
        advance(at, f"{next(steps)} steps")

    with display.task(f"reading the language of {member.name}", len(task_ids)) as advance:
        for start in range(0, len(task_ids), _TOGETHER):
            part = task_ids[start : start + _TOGETHER]
            for number, task_id in enumerate(part, start):
                advance(number, "loading tasks")  # those generated only now may take a second each
                pool.tasks[task_id]
            if rng is None:
                agent = make_agent("random", None, settings.rollout, {})
                agent.run(pool, part, seed, episodes.append)
                continue
            tell = partial(note, start)
            played = demonstrations(pool, None, part, _NOISE, rng, each_step=tell)
            episodes += [trajectory.episode for trajectory in played]
    return episodes
