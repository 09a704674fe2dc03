"""Environments are found by their id: classes, strings, generator functions, and other packages'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from programs import install, python

from paw_gym import Outcome, Task, register_text_env
from paw_gym.functional import GeneratorEnv
from paw_gym.registration import text_env_spec


def test_a_class_or_its_string_is_registered_with_settings_of_its_own(box_env: Any) -> None:
    register_text_env("tests/Odd-v0", box_env, defect="warns")
    assert gym.make("tests/Odd-v0").unwrapped.defect == "warns"
    assert gym.make("tests/Odd-v0", defect="").unwrapped.defect == ""
    assert text_env_spec("tests/Odd-v0").description.startswith("Find the ball")
    register_text_env("tests/Absent-v0", "no_such_module.here:Env", description="not there")
    assert text_env_spec("tests/Absent-v0").package == "no_such_module"
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        gym.make("tests/Absent-v0")


def say(task: Task, rng: Any) -> Any:
    """Say something.

    More on that.
    """
    yield Outcome("Well?")
    yield Outcome("Thanks.", terminated=True)


def test_one_that_runs_out_says_what_to_do() -> None:
    def stops(task: Task, rng: Any) -> Any:
        yield Outcome("Once.")

    env = GeneratorEnv(stops, [Task("a", "x")])
    env.reset(seed=0)
    with pytest.raises(ValueError, match="stops: stops returned without a last Outcome: yield one"):
        env.step("x")


def test_a_definition_that_is_run_again_replaces_itself() -> None:
    """A notebook's cell, a reloaded module: the same name in the same module, another object."""
    program = """
@register_text_env("tests/Cell-v0", tasks=[Task("a", "x")], max_steps={steps})
def cell(task, rng):
    yield Outcome("Well?")
"""
    names: dict[str, Any] = {"register_text_env": register_text_env, "Task": Task}
    names |= {"Outcome": Outcome, "__name__": "a_notebook"}
    for steps in (3, 4):
        exec(program.format(steps=steps), names)
    assert gym.make("tests/Cell-v0").unwrapped.max_steps == 4
    with pytest.raises(ValueError, match="registered already by a_notebook"):
        register_text_env("tests/Cell-v0", names["cell"], tasks=[Task("a", "x")])


def test_registering_again_is_refused_unless_it_replaces(box_env: Any) -> None:
    register_text_env("tests/Twice-v0", box_env, description="one")
    again = {"tasks": [Task("a", "x")]}
    with pytest.raises(ValueError, match=r"tests/Twice-v0: this id is registered already.*replace"):
        register_text_env("tests/Twice-v0", say, **again)
    assert text_env_spec("tests/Twice-v0").description == "one"
    register_text_env("tests/Twice-v0", say, replace=True, **again)
    assert text_env_spec("tests/Twice-v0").description == "Say something."
    assert isinstance(gym.make("tests/Twice-v0").unwrapped, GeneratorEnv)


PLUGIN = """
from paw_gym import Outcome, Task, register_text_env

@register_text_env("other/Hello-v0", tasks=[Task("a", "Say hello.")], description="says hello")
def hello(task, rng):
    said = yield Outcome("Well?")
    yield Outcome("Bye.", terminated=True, success=said == "hello")
"""


def test_other_packages_bring_theirs_and_a_broken_one_is_only_warned_of(tmp_path: Path) -> None:
    for name, code in {"hello": PLUGIN, "broken_plugin": "raise ZeroDivisionError('oh')"}.items():
        install(tmp_path, name, code, {"paw_gym.envs": {name: name}})
    done = python(
        "-c",
        "import paw_gym, gymnasium as gym\n"
        "print('other/Hello-v0' in paw_gym.text_env_ids())\n"
        "print(gym.make('other/Hello-v0').reset(seed=0)[0])",
        path=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "Well?"]
    assert "The paw_gym plug-in 'broken_plugin'" in done.stderr
    assert "ZeroDivisionError: oh" in done.stderr


def test_an_installed_package_is_not_called_missing(tmp_path: Path) -> None:
    install(tmp_path, "hello-envs", PLUGIN, {"paw_gym.envs": {"other": "hello_envs"}})
    (tmp_path / "pyproject.toml").write_text('[project.entry-points."paw_gym.envs"]\nother = "x"\n')
    places = {"folder": tmp_path, "path": tmp_path}
    (tmp_path / "mine.py").write_text(PLUGIN.replace("other/Hello", "mine/Bye"))
    missing = python("-m", "paw_train.cli", "envs", "other/Hello-v1", **places)
    assert "Did you mean 'other/Hello-v0'?" in missing.stderr
    wrong = python("-m", "paw_train.cli", "envs", "mine:q", **places)
    assert "registers no environment 'q'. Valid: 'mine/Bye-v0'." in wrong.stderr
