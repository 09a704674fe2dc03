"""Copies, pickles and branches of an episode go on from exactly its state."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from programs import said

from paw_gym import AgentInterface, EnvPool, Episode, Outcome, Task, Transition
from paw_gym.contract.subject import choose
from paw_gym.functional import GeneratorEnv
from paw_gym.pool import Slot

WAYS: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda env: pickle.loads(pickle.dumps(env)),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_end_of_an_episode_is_copied_too(box_env: Any, way: str) -> None:
    env = AgentInterface(box_env(), mode="conversation")
    env.reset(seed=0)
    env.text_env.set_progress(0.5)
    for response in env.reference_solution():
        env.step(response)
    twin = WAYS[way](env)
    assert twin.text_env.progress == 0.5
    assert twin.save_state() == env.save_state()
    with pytest.raises(RuntimeError, match="The episode is over"):
        twin.step("more")


def test_a_generator_function_is_found_again_in_another_process(tmp_path: Any) -> None:
    (tmp_path / "echo_env.py").write_text(
        "from paw_gym import Outcome, Task, register_text_env\n"
        "@register_text_env('echo/Echo-v0', tasks=[Task('a', 'Say.')], solve=lambda t, r: ['x'])\n"
        "def echo(task, rng):\n"
        "    said = yield Outcome('Well?')\n"
        "    while True:\n"
        "        said += yield Outcome(said)\n"
    )
    save = (
        "import gymnasium as gym, pickle, sys, echo_env\n"
        "env = gym.make('echo/Echo-v0'); env.reset(seed=0); env.step('a')\n"
        "pickle.dump(env, open(sys.argv[1], 'wb'))\n"
    )
    load = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).step('b')[0])"
    for program in (save, load):
        answer = said("-c", program, tmp_path / "env.pickle", folder=tmp_path)
    assert answer == "ab"


class TestRefusals:
    def test_an_argument_that_cannot_be_pickled(self) -> None:
        def local(task: Task, rng: Any) -> Any:
            yield Outcome("Well?")

        env = GeneratorEnv(local, [Task("a", "x")])
        with pytest.raises((AttributeError, pickle.PicklingError), match="local"):
            pickle.dumps(env)
        assert copy.deepcopy(env).reset(seed=0)[0] == "Well?"

    def test_an_id_that_is_not_registered_here(self) -> None:
        from paw_gym.functional import registered_factory

        with pytest.raises(ValueError, match=r"'tests/Gone-v0' in this process: import the module"):
            registered_factory("tests/Gone-v0", "json")


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


def steps(episode: Episode, first: int) -> list[Transition]:
    return [replace(t, episode_id="", parent=None) for t in episode.transitions[first:]]


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
        for branch in (*branches, *later):
            assert steps(branch.episode, before.steps) == steps(root.episode, before.steps)
            assert branch.episode.shared_steps == before.steps
            shared = root.episode.transitions[: before.steps]
            assert branch.episode.transitions[: before.steps] == shared
            assert branch.episode.error is None
    pool.close()


def noisy(task: Any, rng: Any) -> Any:
    for _ in range(6):
        yield Outcome(f"noise {rng.integers(10**9)}")
    yield Outcome("end", terminated=True)


def test_branches_share_the_randomness_of_the_environment_and_branch_again() -> None:
    env = partial(GeneratorEnv, noisy, [Task("0", "listen")], 9)
    pool = EnvPool(lambda: AgentInterface(env(), mode="conversation"))
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
    class Unsaved(box_env):
        def _get_state(self) -> Any:
            raise NotImplementedError("it runs in another program")

    class Unrestored(box_env):
        def _set_state(self, state: Any) -> None:
            raise OSError("gone")

    for kind, message, error in (
        (Unsaved, "cannot be saved", NotImplementedError),
        (Unrestored, "cannot be restored", OSError),
    ):
        pool = EnvPool(lambda kind=kind: AgentInterface(kind()))
        (slot,) = pool.reset(["boxes/4"])
        with pytest.raises(ValueError, match=rf"{kind.__name__} cannot be branched.*{message}"):
            pool.fork(slot, 2)
        assert (len(pool.episodes), len(pool.active)) == (1, 1)
        with pytest.raises(error):
            copy.deepcopy(pool.env_of(slot).text_env)
