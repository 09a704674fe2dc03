"""Episodes are divided equally among engines, and groups stay together where that costs nothing."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from paw_train.training.openrlhf.episodes import engines_of


def test_whole_groups_stay_together_where_they_divide_evenly() -> None:
    places = defaultdict(set)
    for episode, engine in enumerate(engines_of(16 * 8, 8)):
        places[episode // 8].add(engine)
    assert all(len(engines) == 1 for engines in places.values())


@pytest.mark.parametrize(("engines", "busy"), [(1, 1), (16, 16), (64, 64), (128, 128), (200, 128)])
def test_no_engine_idles_while_there_are_episodes(engines: int, busy: int) -> None:
    used = Counter(engines_of(16 * 8, engines))
    assert len(used) == busy and used.total() == 128
    assert max(used.values()) - min(used.values()) <= 1
