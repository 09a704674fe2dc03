"""The texts of a run's environments, which a policy from scratch takes its vocabulary from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import count

import numpy as np

from paw_gym.pool import EnvPool
from paw_gym.transition import Episode
from paw_train.agents import make_agent
from paw_train.environments import has_solver, is_split, make_pool
from paw_train.evaluation.terminal import Display
from paw_train.rollouts.rollout import demonstrations
from paw_train.settings import RolloutSettings, Settings
from paw_train.settings.env import Member

_TASKS = 600
"""training tasks that are played, over all environments of a run"""
_LEAST = 200
"""the least for one environment"""
_OTHERS = 100
"""other tasks of a split that are played, to find words that the training tasks lack"""
_LISTED = 20
"""unknown words of a split that a warning lists"""
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
    for member in settings.members:
        with _pool(settings, member, member.env.train_split) as pool:
            texts += _read(settings, member, pool, _vocabulary_tasks(settings, pool), display)
    return texts


def other_texts(settings: Settings, display: Display) -> dict[str, list[str]]:
    """The same for tasks that ``language_texts`` leaves out, by split: held-out ones, and training's.

    With several environments, ``ENVIRONMENT SPLIT`` names a split.
    """
    chosen, found = settings.evaluation, {}
    for member in settings.members:
        env = member.env
        used = {
            member.split: chosen.tasks or settings.world_model_learning.held_out_episodes,
            member.selection_split: chosen.every and settings.updates,
        }
        held_out = [split for split, tasks in used.items() if tasks and is_split(env)]
        for split in dict.fromkeys([env.train_split, *held_out]):
            with _pool(settings, member, split) as pool:
                seen = _vocabulary_tasks(settings, pool) if split == env.train_split else ()
                left = _spread(sorted(set(pool.tasks.ids) - set(seen)), _OTHERS)
                texts = _read(settings, member, pool, left, display, split) if left else []
            found[f"{member.name} {split}" if settings.mixed else split] = texts
    return found


def warnings_of(unknown: Mapping[str, Sequence[str]], settings: Settings) -> Iterator[str]:
    """Sentences about words of each split that training does not show, and what becomes of them."""
    for split, words in unknown.items():
        if words:
            more = f" and {len(words) - _LISTED} more" if len(words) > _LISTED else ""
            noun = "word" if len(words) == 1 else "words"
            yield (
                f"Warning: training does not show {len(words)} {noun} of the split {split}: "
                f"{', '.join(words[:_LISTED])}{more}."
            )
    if not any(unknown.values()):
        return
    if not settings.model.scratch.spell_unknown:
        yield (
            "The model cannot tell such words apart (model.scratch.spell_unknown=true: it spells them)."
        )
    elif settings.cloning.episodes:
        yield (
            "The model spells such words letter by letter, which the warm start practices with made-up words."
        )
    else:
        yield (
            "The model spells such words letter by letter, and without a warm start (cloning.episodes=0) it "
            "has to find out by itself how to copy them."
        )


def _pool(settings: Settings, member: Member, split: str) -> closing[EnvPool]:
    return closing(make_pool(member.env, split, 1, 1, settings.seed))


def _vocabulary_tasks(settings: Settings, pool: EnvPool) -> list[str]:
    return _spread(pool.tasks.ids, max(_LEAST, _TASKS // len(settings.members)))


def _spread(ids: Sequence[str], most: int) -> list[str]:
    """At most so many of the ids, evenly spread."""
    return [ids[int(i)] for i in np.linspace(0, len(ids) - 1, min(len(ids), most))]


def _read(
    settings: Settings,
    member: Member,
    pool: EnvPool,
    task_ids: Sequence[str],
    display: Display,
    split: str | None = None,
) -> list[str]:
    """Texts of episodes of the tasks."""
    env, seed = member.env, settings.seed
    solved = has_solver(env, split or env.train_split)
    rng = np.random.default_rng(seed) if solved else None
    texts: list[str] = []
    named = member.name if split is None else f"{member.name}, {split}"
    with display.task(f"reading the language of {named}", len(task_ids)) as advance:
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
