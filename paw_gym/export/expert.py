"""Episodes of an environment's own expert, one after the other: no model, no trainer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np

from paw_gym.internals.validation import naming_authors_line
from paw_gym.transition import Episode
from paw_gym.wrappers import AgentInterface, make_agent_env


def expert_episodes(
    env_id: str, episodes: int, seed: int = 0, **agent_kwargs: Any
) -> Iterator[Episode]:
    """Runs the expert on tasks that are sampled without repetition while there are any left.

    Yields:
        Each episode as the expert played it, successful or not.
    """
    env = make_agent_env(env_id, **agent_kwargs)
    rng = np.random.default_rng(seed)
    shuffled = (rng.permutation(len(env.tasks)) for _ in count())
    tasks = (env.tasks.ids[int(index)] for order in shuffled for index in order)
    try:
        for number, task_id in zip(range(episodes), tasks, strict=False):
            options = {"task_id": task_id, "episode_id": f"{task_id}#expert-{seed}-{number}"}
            with naming_authors_line(f"Task {task_id!r}"):
                env.reset(seed=int(rng.integers(2**31)), options=options)
                episode = _play(env)
            yield episode
    finally:
        env.close()


def _play(env: AgentInterface) -> Episode:
    episode = env.new_episode()
    try:
        act = env.text_env.expert()
    except NotImplementedError as error:
        raise ValueError(f"{env.env_id} has no expert to take examples from ({error})") from error
    over = False
    while not over:
        try:
            response = env.response_for(act())
        except StopIteration:
            break  # the plan is at its end and the episode is not: it counts as a failure
        _, _, terminated, truncated, info = env.step(response)
        episode.transitions.append(info["transition"])
        over = terminated or truncated
    return episode
