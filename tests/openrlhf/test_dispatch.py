"""Episodes go to the least loaded engine, and groups stay together where that costs nothing."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest

from paw_train.training.openrlhf.episodes import EpisodeQueue


def _groups(count: int, size: int) -> list[int]:
    return [group for group in range(count) for _ in range(size)]


def test_whole_groups_stay_together_where_they_divide_evenly() -> None:
    queue = EpisodeQueue(_groups(16, 8), 8)
    places = defaultdict(set)
    for episode, engine in queue.start():
        places[queue.groups[episode]].add(engine)
    assert all(len(engines) == 1 for engines in places.values())
    assert queue.running == [16] * 8


@pytest.mark.parametrize(("engines", "busy"), [(1, 1), (16, 16), (64, 64), (128, 128), (200, 128)])
def test_no_engine_idles_while_there_are_episodes(engines: int, busy: int) -> None:
    queue = EpisodeQueue(_groups(16, 8), engines)
    used = Counter(engine for _, engine in queue.start())
    assert len(used) == busy
    assert max(used.values()) - min(used.values()) <= 1


@pytest.mark.parametrize("resident", [1, 3, None])
@pytest.mark.parametrize("seed", range(5))
def test_every_episode_runs_once_within_the_limit(resident: int | None, seed: int) -> None:
    rng = random.Random(seed)
    queue = EpisodeQueue(_groups(7, 5), 4, resident)
    under_way, ran = queue.start(), []
    while under_way:
        assert Counter(engine for _, engine in under_way) == Counter(
            {engine: n for engine, n in enumerate(queue.running) if n}
        )
        assert resident is None or max(queue.running) <= resident
        ended = under_way.pop(rng.randrange(len(under_way)))
        ran.append(ended[0])
        under_way += queue.ended(ended[1])
    assert sorted(ran) == list(range(35))
    assert queue.running == [0] * 4


def test_the_next_episode_is_of_a_group_that_the_engine_has_read() -> None:
    queue = EpisodeQueue(_groups(3, 4), 2, resident=2)
    assert queue.start() == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert queue.ended(0) == [(4, 0)]  # nothing of group 0 is left
    assert queue.ended(1) == [(5, 1)]
    # engine 0 has read groups 0 and 1
    assert queue.ended(0) == [(6, 0)]
