"""Copies and pickles of an episode go on from exactly its state."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from programs import said

from paw_gym import AgentInterface, Outcome, Task
from paw_gym.functional import GeneratorEnv, registered_factory

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
        with pytest.raises(ValueError, match=r"'tests/Gone-v0' in this process: import the module"):
            registered_factory("tests/Gone-v0", "json")
