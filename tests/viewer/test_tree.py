"""A group of a branching rollout is shown as a tree."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra `viewer`")

from paw_train.viewer.store import in_tree_order


def episode(name: str, parent: str | None = None) -> dict[str, Any]:
    return {"episode_id": name, "parent": parent}


def test_branches_follow_the_episode_they_branched_from() -> None:
    recorded = [
        episode("a"), episode("b"), episode("a1", "a"), episode("b1", "b"), episode("a2", "a"),
        episode("a1x", "a1"), episode("lost", "not recorded"),
    ]  # fmt: skip
    shown = [e["episode_id"] for e in in_tree_order(recorded)]
    assert shown == ["a", "a1", "a1x", "a2", "b", "b1", "lost"]
    roots = [episode(name) for name in "cab"]
    assert in_tree_order(roots) == roots
