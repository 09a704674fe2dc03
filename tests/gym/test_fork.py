"""Branches of an episode go on from exactly its state, in every registered environment."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from paw_gym import AgentInterface, EnvPool, Episode, Outcome, Task
from paw_gym.contract.subject import choose
from paw_gym.functional import GeneratorEnv
from paw_gym.pool import Slot

LOOK = "<think></think><action>look</action>"


def walk(pool: EnvPool, slots: Sequence[Slot], seed: int, steps: int) -> None:
    """The same random responses in each of the slots."""
    rng = random.Random(seed)
    for _ in range(steps):
        running = [slot for slot in slots if slot in pool.active]
        if not running:
            return
        action = choose(rng, running[0].info["admissible_actions"])
        response = pool.env_of(running[0]).response_for(action)
        pool.step({s.index: response if s in running else LOOK for s in pool.active})


def own_steps(episode: Episode) -> list[dict[str, Any]]:
    names = ("episode_id", "parent")
    steps = episode.transitions[episode.shared_steps :]
    return [{k: v for k, v in t.to_dict().items() if k not in names} for t in steps]


@pytest.mark.parametrize("mode", ["window", "conversation"])
def test_continuations_of_branches_are_equal_to_the_byte(
    own_env: tuple[str, dict[str, Any]], mode: str
) -> None:
    env_id, kwargs = own_env
    pool = EnvPool(env_id, 1, 1, seed=3, mode=mode, max_steps=12, **kwargs)
    for seed in range(3):
        (root,) = pool.reset()
        walk(pool, [root], seed, random.Random(seed).randrange(4))
        if root not in pool.active:
            continue
        before = pool.snapshot(root)
        branches = pool.fork(root, 2)
        walk(pool, [root, *branches], 100 + seed, 12)
        later = pool.fork(before, 2)  # the root episode has ended, or gone on
        walk(pool, later, 100 + seed, 12)
        expected = [t.to_dict() for t in root.episode.transitions[before.steps :]]
        for step in expected:
            del step["episode_id"], step["parent"]
        for branch in (*branches, *later):
            assert own_steps(branch.episode) == expected
            assert (
                branch.episode.transitions[: before.steps]
                == root.episode.transitions[: before.steps]
            )
            assert branch.episode.error is None
    pool.close()


def noisy(task: Any, rng: Any) -> Any:
    for _ in range(6):
        yield Outcome(f"noise {rng.integers(10**9)}")
    yield Outcome("end", terminated=True)


def noisy_pool() -> EnvPool:
    tasks = [Task("0", "listen")]
    return EnvPool(lambda: AgentInterface(GeneratorEnv(noisy, tasks, 9), mode="conversation"))


def test_branches_share_the_randomness_of_the_environment_and_branch_again() -> None:
    pool = noisy_pool()
    (root,) = pool.reset()
    pool.step([LOOK])
    (child,) = pool.fork(root, 1)
    pool.step([LOOK] * 2)
    (grandchild,) = pool.fork(child, 1)
    while pool.active:
        pool.step([LOOK] * len(pool.active))
    texts = [[t.next_observation for t in e.transitions] for e in pool.episodes]
    assert texts[0] == texts[1] == texts[2]
    assert len(set(texts[0])) == 6
    names = [e.episode_id for e in pool.episodes]
    assert len(set(names)) == 3
    assert [e.parent for e in pool.episodes] == [None, *names[:2]]
    assert [e.shared_steps for e in pool.episodes] == [0, 1, 2]
    owners = [t.episode_id for t in grandchild.episode.transitions]
    assert owners == [names[0], names[1], *[names[2]] * 4]
    messages = grandchild.episode.messages(5)
    assert [m["role"] for m in messages] == ["user", "assistant"] * 5 + ["user"]
    assert len(pool.reset()) == 1, "branches leave nothing behind in the next update"


def test_an_environment_that_cannot_be_restored_is_refused_by_name(box_env: Any) -> None:
    class Unsaved(box_env):  # type: ignore[misc]
        def _get_state(self) -> Any:
            raise NotImplementedError("it runs in another program")

    class Unrestored(box_env):  # type: ignore[misc]
        def _set_state(self, state: Any) -> None:
            raise OSError("gone")

    for kind, message in ((Unsaved, "cannot be saved"), (Unrestored, "cannot be restored")):
        pool = EnvPool(lambda kind=kind: AgentInterface(kind()))  # type: ignore[misc]
        (slot,) = pool.reset(["boxes/4"])
        with pytest.raises(ValueError, match=rf"{kind.__name__} cannot be branched.*{message}"):
            pool.fork(slot, 2)
        assert (len(pool.episodes), len(pool.active)) == (1, 1)


def test_no_branches_are_an_error(box_env: Any) -> None:
    pool = EnvPool(lambda: AgentInterface(box_env()))
    (slot,) = pool.reset(["boxes/4"])
    with pytest.raises(ValueError, match="times is at least 1, got 0"):
        pool.fork(slot, 0)
