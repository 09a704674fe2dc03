"""Tasks, task sets, and the environment's base class."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import said

from paw_gym import Task, TaskSet, UnicodeText
from paw_gym.core import EnvDefinitionError


@dataclass
class Where:
    """Data of a task."""

    cells: set[tuple[int, int]]


@dataclass(frozen=True)
class Riddle:
    """Data of a task that hides a part in its ``repr``."""

    answer: str = field(repr=False)


def tasks(count: int, **changes: Any) -> TaskSet:
    return TaskSet.from_tasks(Task(f"t{i}", f"Do {i}.", **changes) for i in range(count))


@given(st.text())
def test_the_space_of_texts_holds_every_string_that_is_not_too_long(text: str) -> None:
    assert text in UnicodeText()
    assert (text in UnicodeText(3)) == (len(text) <= 3)
    assert text.encode() not in UnicodeText() and len(text) not in UnicodeText()


class TestTaskSet:
    def test_gives_tasks_by_id_index_and_slice(self) -> None:
        some = tasks(4)
        assert (len(some), some["t2"].id, some[-1].id) == (4, "t2", "t3")
        assert some[np.int64(1)].id == "t1"
        assert [task.id for task in some[1:3]] == ["t1", "t2"]
        assert [task.id for task in some] == ["t0", "t1", "t2", "t3"]

    def test_what_is_not_there_is_a_plain_sentence(self) -> None:
        some = TaskSet(["a"], lambda i: Task(i, "Go."), "f", "train")
        with pytest.raises(KeyError) as caught:
            some["x"]
        assert str(caught.value).startswith("There is no task 'x' in split 'train'. ")
        with pytest.raises(IndexError, match="3 is out of range: there are 1 tasks"):
            some[3]

    def test_tasks_are_loaded_when_asked_for(self) -> None:
        loaded = []

        def load(task_id: str) -> Task:
            loaded.append(task_id)
            return Task(task_id, "Go.")

        some = TaskSet(["a", "b", "c"], load, "f")
        assert (len(some), "b" in some, loaded) == (3, True, [])
        assert some["b"].id == "b"
        assert loaded == ["b"]

    def test_the_fingerprint_covers_every_field_and_the_order(self) -> None:
        base = Task("a", "Go.", "walk", {"x": 1})
        variants = [
            [base],
            [Task("b", "Go.", "walk", {"x": 1})],
            [Task("a", "Run.", "walk", {"x": 1})],
            [Task("a", "Go.", "run", {"x": 1})],
            [Task("a", "Go.", "walk", {"x": 2})],
            [base, Task("b", "Go.")],
            [Task("b", "Go."), base],
        ]
        prints = [TaskSet.from_tasks(v).fingerprint for v in variants]
        assert len(set(prints)) == len(variants)
        assert TaskSet.from_tasks([Task("a", "Go.", "walk", {"x": 1})]).fingerprint == prints[0]

    @pytest.mark.parametrize(
        ("data", "other"),
        [
            ({(0, 0): "start", (0, 1): "exit"}, {(0, 0): "exit", (0, 1): "start"}),
            ({1: "one", "x": "unknown"}, {1: "unknown", "x": "one"}),
            ({"words": {"x", "y", "z"}}, {"words": {"x", "y"}}),
            ([b"\x00", (1.5, None)], [b"\x01", (1.5, None)]),
            (np.zeros(5000), np.eye(1, 5000, 2500)[0]),
            (np.zeros(4), np.zeros((2, 2))),
            (np.array([{"a": 1}, None]), np.array([{"a": 2}, None])),
            (Where({(1, 2)}), Where({(2, 1)})),
            (Riddle("cat"), Riddle("dog")),
            (len, max),
        ],
    )
    def test_the_fingerprint_covers_data_of_any_kind(self, data: Any, other: Any) -> None:
        def fingerprint(value: Any) -> str:
            return TaskSet.from_tasks([Task("a", "Go.", data=value)]).fingerprint

        assert fingerprint(data) == fingerprint(copy.deepcopy(data)) != fingerprint(other)

    def test_the_fingerprint_is_the_same_in_every_process(self) -> None:
        program = (
            "from paw_gym import Task\nfrom paw_gym.core import TaskSet\n"
            "data = {'s': {'x', 'y', 'z', 'w'}, (1, 2): frozenset('abcd')}\n"
            "print(TaskSet.from_tasks([Task('a', 'Go.', data=data)]).fingerprint)"
        )
        assert len({said("-c", program, PYTHONHASHSEED=seed) for seed in ("0", "1")}) == 1

    def test_data_known_only_by_its_place_in_memory_is_refused(self) -> None:
        with pytest.raises(EnvDefinitionError, match="of task 'a' has no fingerprint: a object"):
            TaskSet.from_tasks([Task("a", "Go.", data=[object()])])


class TestTextEnv:
    def test_the_options_do_not_shift_the_generator(self, box_env: Any) -> None:
        first, second = box_env(), box_env()
        first.reset(seed=3, options={"task_id": "boxes/9"})
        second.reset(seed=3, options={"task_index": 7})
        assert first.task.id == second.task.id
        assert first.reset()[1]["task_id"] == second.reset()[1]["task_id"]

    def test_odd_options_are_refused(self, box_env: Any) -> None:
        with pytest.raises(ValueError, match="Did you mean 'task_id'"):
            box_env().reset(options={"task_idd": "boxes/3"})
        with pytest.raises(ValueError, match="not both"):
            box_env().reset(options={"task_id": "boxes/3", "task_index": 1})
        with pytest.raises(ValueError, match=r"'task_index' is 1\.5; expected a whole number"):
            box_env().reset(options={"task_index": 1.5})

    def test_success_in_the_last_step_is_no_truncation(self, box_env: Any) -> None:
        env = box_env(max_steps=2)
        env.reset(seed=0)
        ends = [env.step(action)[2:4] for action in env.reference_solution()]
        assert ends == [(False, False), (True, False)]

    def test_a_step_needs_an_episode_and_a_string(self, box_env: Any) -> None:
        env = box_env()
        with pytest.raises(RuntimeError, match="No episode was started: call reset"):
            env.step("look")
        env.reset(seed=0)
        with pytest.raises(TypeError, match="An action is a str, got int: 3"):
            env.step(3)

    def test_a_state_of_other_tasks_is_refused_and_a_set_of_none(self, box_env: Any) -> None:
        env, other = box_env(), box_env()
        other.tasks = other.tasks.subset(lambda i: i != "boxes/2")
        env.reset(seed=0)
        with pytest.raises(ValueError, match="This state was saved by BoxEnv over tasks"):
            other.restore_state(env.save_state())
        with pytest.raises(ValueError, match="task set is empty"):
            super(box_env, env).__init__(env.tasks.subset(lambda i: False), 5)

    def test_ansi_rendering_shows_the_last_observation(self, box_env: Any) -> None:
        env = box_env(render_mode="ansi")
        observation, _ = env.reset(seed=0)
        assert env.render() == observation
        assert env.render() != env.step("look")[0] == env.render()
        assert box_env().render() is None
