"""Wrong tasks, outcomes and registrations: each gives one error, which names what is wrong."""

from __future__ import annotations

import inspect
import pickle
from operator import itemgetter
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from paw_gym import Outcome, Task, TaskSet, TextEnv, check_text_env, register_text_env, text_env_ids
from paw_gym.core import EnvDefinitionError
from paw_gym.functional import GeneratorEnv
from paw_gym.internals.constructors import check_arguments, has_splits
from paw_gym.registration import class_defaults, make_text_env

TASKS = [Task("a", "Say a."), Task("b", "Say b.")]
ID = "tests/Bad-v0"


def say(task: Task, rng: Any) -> Any:
    """Say the task's name."""
    said = yield Outcome("Say it.")
    while said != task.id:
        said = yield Outcome("No.")
    yield Outcome("Yes.", 1.0, terminated=True, success=True)


class SayEnv(TextEnv):
    """One step; ``start`` and ``answer`` are what it returns."""

    def __init__(
        self,
        start: Any = None,
        answer: Any = None,
        tasks: Any = TASKS,
        max_steps: Any = 5,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(TaskSet.from_tasks(tasks), max_steps, render_mode)
        self.start = Outcome("Say it.") if start is None else start
        self.answer = answer

    def _start(self, task: Task) -> Outcome:
        return self.start

    def _act(self, action: str) -> Outcome:
        done = Outcome("Yes.", 1.0, terminated=True, success=True)
        return done if action == self.task.id else self.answer

    def reference_solution(self) -> list[str]:
        return [self.task.id]


class Unfinished(TextEnv):
    """It has no ``_act``."""

    def _start(self, task: Task) -> Outcome:
        return Outcome("Say it.")


OUTCOMES = [
    (("No.", 0.0, False), "a tuple, ('No.', 0.0, False); expected an Outcome"),
    (Outcome(None), "observation is None; expected a str"),
    (Outcome("No.", float("nan")), "reward is a float, nan; expected a finite number"),
    (Outcome("No.", np.ones(1)), "reward is a ndarray, array([1.])"),
    (Outcome("No.", terminated=None), "terminated is None; expected True or False"),
    (Outcome("No.", success=1), "success is an int, 1; expected True or False"),
    (Outcome("No.", score=1.5), "score is a float, 1.5; expected None or a number from 0"),
    (Outcome("No.", score="1"), "score is a str, '1'; expected None or a number"),
    (Outcome("No.", action_is_valid=0), "action_is_valid is an int, 0; expected True or"),
    (Outcome("No.", admissible_actions="go"), "admissible_actions is a str, 'go'; expected None"),
    (Outcome("No.", admissible_actions=[1]), "admissible_actions is a list, [1]; expected None or"),
    (Outcome("No.", info=[("a", 1)]), "info is a list, [('a', 1)]; expected a dict"),
    (Outcome("No.", info={"a": (1, 2)}), "info is not plain JSON values: info['a'] holds a tuple"),
    (Outcome("No.", info={"success": True}), "info has the key 'success'; expected other keys"),
    (Outcome("No.", truncated="no"), "truncated is a str, 'no'; expected True or False"),
]
STARTS = [
    (("Say it.", {}), "a tuple, ('Say it.', {}); expected an Outcome"),
    (Outcome("Say it.", terminated=True), "terminated is already True; expected False"),
    (Outcome("Say it.", truncated=True), "truncated is already True; expected False"),
    (Outcome("Say it.", success=True), "success is already True; expected False"),
]


@pytest.mark.parametrize(("outcome", "message"), OUTCOMES, ids=[m[:60] for _, m in OUTCOMES])
def test_a_wrong_outcome_is_one_error(outcome: Any, message: str) -> None:
    register_text_env(ID, SayEnv, answer=outcome)
    env = gym.make(ID, disable_env_checker=True)
    env.reset(options={"task_id": "a"})
    with pytest.raises(EnvDefinitionError) as error:
        env.step("something")
    said = str(error.value)
    assert said.startswith("tests/Bad-v0: step 1 of task 'a' (action 'something') gave ")
    assert message in said and "\n" not in said


@pytest.mark.parametrize(("outcome", "message"), STARTS)
def test_a_wrong_first_outcome_is_one_error(outcome: Any, message: str) -> None:
    register_text_env(ID, SayEnv, start=outcome)
    with pytest.raises(EnvDefinitionError) as error:
        gym.make(ID, disable_env_checker=True).reset(options={"task_id": "a"})
    assert str(error.value).startswith("tests/Bad-v0: reset of task 'a' gave ")
    assert message in str(error.value)


@pytest.mark.parametrize("answer", [OUTCOMES[0][0], OUTCOMES[2][0], OUTCOMES[-3][0]])
def test_the_suite_reports_a_wrong_outcome_once(answer: Any) -> None:
    register_text_env(ID, SayEnv, answer=answer)
    report = check_text_env(ID, time_limit=None)
    assert [failure.name for failure in report.failures] == ["check_env"]
    assert report.failures[0].detail.startswith("tests/Bad-v0: step 1 of task")
    stopped = [r for r in report.results if r.detail == "stopped by what check_env reports"]
    assert len(stopped) > 10
    assert report.summary == f"1 failed, {25 - len(stopped)} passed, {len(stopped)} skipped"


class StumblingEnv(SayEnv):
    """Raises an error of its own at the first step."""

    def _act(self, action: str) -> Outcome:
        return Outcome("Yes." + self.missing)


class ExplainingEnv(SayEnv):
    """Raises from an exception that nobody raised."""

    def _act(self, action: str) -> Outcome:
        raise LookupError("the word is missing") from ValueError("no words")


class ClumsyEnv(SayEnv):
    """Has a method that cannot be called as it is."""

    def _act(self) -> Outcome:
        return Outcome("Yes.")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (StumblingEnv, "AttributeError: 'StumblingEnv' object has no attribute 'missing' (test_d"),
        (ExplainingEnv, "LookupError: the word is missing (test_definition.py, line "),
        (ClumsyEnv, "TypeError: ClumsyEnv._act() takes 1 positional argument but 2 were given"),
    ],
)
def test_the_suite_reports_an_exception_of_the_environment_once(env: Any, message: str) -> None:
    register_text_env(ID, env)
    report = check_text_env(ID, time_limit=None)
    told = [failure for failure in report.failures if message in failure.detail]
    assert len(told) == 1
    stopped = [r for r in report.results if r.detail == f"stopped by what {told[0].name} reports"]
    assert len(stopped) > 10


def test_a_loaded_task_with_another_id_is_named() -> None:
    tasks = TaskSet(["a", "b"], lambda task_id: Task("b", "Say b."), "0")
    assert tasks["b"].id == "b"
    for get in (*map(itemgetter, ("a", 0, slice(None))), list):
        with pytest.raises(EnvDefinitionError, match="listed as 'a' has the id 'b'; expected"):
            get(tasks)


BAD_TASKS = [
    ({"a": "Say a."}, "; expected a list of Task objects, such as"),
    ("ab", "tasks is a str, 'ab'; expected a list of Task objects"),
    (Task("a", "Say a."), "tasks is a Task, Task(id='a'"),
    ([TASKS[0], ("b", "Say b.")], "tasks[1] is a tuple, ('b', 'Say b.'); expected a Task"),
    ([Task(1, "Say 1.")], "the id is an int, 1; expected a non-empty str"),
    ([Task("", "Say.")], "the id is a str, ''; expected a non-empty str"),
    ([Task("a\nb", "Say.")], r"the id is a str, 'a\nb'; expected a non-empty str of printable"),
    ([Task("a ", "Say.")], "the id is a str, 'a '; expected a non-empty str"),
    ([Task("/etc/a", "Say.")], "the id is a str, '/etc/a'; expected a non-empty str"),
    ([Task("a/../../b", "Say.")], "the id is a str, 'a/../../b'; expected a non-empty str"),
    ([*TASKS, Task("a", "Again.")], "tasks 0 and 2 are both 'a'; expected an id of its own"),
    ([Task("a", "")], "tasks[0] ('a'): its instruction is a str, ''; expected a str that says"),
    ([Task("a", "Say.", type=2)], "tasks[0] ('a'): its type is an int, 2; expected a non-empty"),
]


@pytest.mark.parametrize(("tasks", "message"), BAD_TASKS, ids=[m[:60] for _, m in BAD_TASKS])
def test_wrong_tasks_are_one_error(tasks: Any, message: str) -> None:
    with pytest.raises(EnvDefinitionError) as error:
        register_text_env(ID, say, tasks=tasks)
    assert str(error.value).startswith(f"{ID}: ") and message in str(error.value)
    assert ID not in text_env_ids() and ID not in gym.registry
    with pytest.raises(EnvDefinitionError) as error:
        SayEnv(tasks=tasks)
    assert str(error.value).startswith("SayEnv: ") and message in str(error.value)
    with pytest.raises(EnvDefinitionError, match=r"expected a TaskSet: TaskSet.from_tasks"):
        TextEnv.__init__(SayEnv(), tasks, 5)


def needs_more(task: Task, rng: Any, extra: Any) -> Any:
    yield Outcome("Say it.")


REGISTRATIONS: list[tuple[Any, Any, dict[str, Any], str]] = [
    (ID, say, {}, "a generator function needs tasks=[Task(...), ...]"),
    (ID, say, {"tasks": {"train": TASKS, "test": []}}, "tasks['test'] is empty; expected at least"),
    (ID, say, {"tasks": {"test": TASKS}}, "tasks has the splits 'test'; expected 'train', which"),
    (ID, say, {"tasks": {"train": TASKS, "test": TASKS}}, "task 'a' is in the splits 'train' and"),
    (ID, say, {"tasks": {"train": ["a"]}}, "tasks['train'][0] is a str, 'a'; expected a Task"),
    (ID, say, {"tasks": TASKS, "max_step": 5}, "no option 'max_step'. Did you mean 'max_steps'?"),
    (ID, say, {"tasks": TASKS, "max_steps": 0}, "max_steps is an int, 0; expected an int of at"),
    (ID, say, {"tasks": TASKS, "max_steps": True}, "max_steps is a bool, True; expected an int"),
    (ID, say, {"tasks": TASKS, "solve": ["a"]}, "solve is a list, ['a']; expected a function"),
    (ID, say, {"tasks": TASKS, "solve": lambda: 1}, "expected a function solve(task, rng)"),
    (ID, needs_more, {"tasks": TASKS}, "needs_more(task: 'Task', rng: 'Any', extra: 'Any') -> "),
    (ID, lambda task, rng: 1, {"tasks": TASKS}, "neither a class nor a generator function"),
    (ID, SayEnv, {"tasks": TASKS, "max_step": 5}, "tasks is an option of generator functions"),
    (ID, SayEnv, {"max_step": 5}, "SayEnv.__init__ has no option 'max_step'. Did you mean 'max_"),
    (ID, SayEnv, {"solve": len}, "solve is an option of generator functions"),
    (ID, Unfinished, {}, "Unfinished lacks _act; expected a class"),
    (ID, dict, {}, "dict is no subclass of TextEnv; expected one, or"),
    (ID, "tests.MazeEnv", {}, "the entry point is 'tests.MazeEnv'; expected 'module:Class'"),
    (7, SayEnv, {}, "7: the id is an int, 7; expected namespace/Name-vN"),
    ("tests/Bad v0", SayEnv, {}, "the id is a str, 'tests/Bad v0'; expected namespace/Name-vN"),
    ("CartPole-v1", SayEnv, {}, "CartPole-v1: this id is registered already by Gymnasium"),
    ("paw_gym/ALFWorld-v0", SayEnv, {}, "this id is registered already by paw_gym"),
]


@pytest.mark.parametrize(
    ("id", "entry_point", "options", "message"),
    REGISTRATIONS,
    ids=[message[:60] for *_, message in REGISTRATIONS],
)
def test_a_wrong_registration_is_one_error(
    id: Any, entry_point: Any, options: dict[str, Any], message: str
) -> None:
    before = text_env_ids(), set(gym.registry)
    with pytest.raises(EnvDefinitionError) as error:
        register_text_env(id, entry_point, **options)
    assert str(error.value).startswith(f"{id}: ") and message in str(error.value)
    assert (text_env_ids(), set(gym.registry)) == before


def test_the_arguments_of_a_class_can_be_looked_up() -> None:
    names = ["start", "answer", "tasks", "max_steps", "render_mode"]
    assert list(inspect.signature(SayEnv).parameters) == names
    register_text_env(ID, say, tasks=TASKS)
    with pytest.raises(ValueError, match="has no setting 'solve'"):  # making it takes none
        check_arguments(ID, ["solve"])


def test_tasks_that_are_loaded_later_are_checked_then() -> None:
    env = SayEnv()
    env.tasks = TaskSet(["a", "b"], lambda i: Task(i, "Say." if i == "a" else ""), "print")
    env.reset(options={"task_id": "a"})
    with pytest.raises(
        EnvDefinitionError, match=r"SayEnv: .*\('b'\): its instruction is a str, ''"
    ):
        env.reset(options={"task_id": "b"})


def test_numpy_numbers_and_flags_are_as_good() -> None:
    outcome = Outcome("No.", np.float32(0.5), np.bool_(False), np.bool_(True), np.float64(1.0))
    env = SayEnv(answer=outcome)
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step("something")
    assert (reward, terminated, info["success"], info["score"]) == (0.5, False, True, 1.0)
    assert [type(info[key]) for key in ("success", "score")] == [bool, float]


def test_a_class_takes_the_budget_of_its_registration() -> None:
    register_text_env(ID, SayEnv, max_steps=3)
    assert gym.make(ID).unwrapped.max_steps == 3
    assert gym.make(ID, max_steps=4).unwrapped.max_steps == 4


class TestSolvers:
    @staticmethod
    def doors(task: Task, rng: np.random.Generator) -> Any:
        """Open the door that is drawn, then leave; a slammed door stays shut."""
        right, slammed, opened = int(rng.integers(1000)), False, False
        said = yield Outcome("Well?")
        while not (opened and said == "leave"):
            slammed |= said == "slam"
            opened |= said == f"open {right}" and not slammed
            said = yield Outcome("And now?")
        yield Outcome("Bye.", 1.0, terminated=True, success=True)

    @staticmethod
    def solve(task: Task, rng: np.random.Generator) -> list[str]:
        return [f"open {rng.integers(1000)}", "leave"]

    def env(self, solve: Any = solve) -> GeneratorEnv:
        return GeneratorEnv(self.doors, TASKS, solve=solve)

    def test_it_draws_what_the_episode_drew(self) -> None:
        env = self.env()
        for seed in range(3):
            env.reset(seed=seed)
            plan = env.reference_solution()
            assert [env.step(action)[4]["success"] for action in plan] == [False, True]

    def test_after_other_actions_it_gives_what_still_leads_to_success(self) -> None:
        env = self.env()
        env.reset(seed=0)
        first, last = env.reference_solution()
        env.step("look")
        assert env.reference_solution() == [first, last]
        env.step(first)
        env.step("look")
        assert env.reference_solution() == [last]
        expert = env.expert()
        assert env.step(expert())[4]["success"]

    def test_where_nothing_leads_on_there_is_no_solution(self) -> None:
        env = self.env()
        env.reset(seed=0)
        env.step("slam")
        assert env.reference_solution() == []
        with pytest.raises(StopIteration):
            env.expert()()
        without = self.env(None)
        without.reset(seed=0)
        with pytest.raises(NotImplementedError, match="has no reference solver: register it with"):
            without.reference_solution()

    @pytest.mark.parametrize("answer", ["a", None, [1]])
    def test_a_wrong_answer_is_named(self, answer: Any) -> None:
        env = self.env(lambda task, rng: answer)
        env.reset(options={"task_id": "a"})
        with pytest.raises(
            EnvDefinitionError, match="doors: solve for task 'a' gave .*; expected a"
        ):
            env.reference_solution()


def test_a_function_has_the_splits_that_its_tasks_are_given_in() -> None:
    splits = {name: [Task(f"{name}/a", "Say a.")] for name in ("train", "valid", "test")}
    register_text_env(ID, say, tasks=splits)
    assert gym.make(ID).unwrapped.tasks.ids == ["train/a"], "as training makes it"
    env = gym.make(ID, split="test").unwrapped
    assert (env.tasks.ids, env.tasks.split) == (["test/a"], "test")
    assert pickle.loads(pickle.dumps(env)).tasks.ids == ["test/a"]
    assert has_splits(ID) and class_defaults(ID, {}).held_out_splits == ("valid", "test")
    with pytest.raises(
        ValueError, match=r"Unknown split of tests/Bad-v0 'tset'\. Did you mean 'test'\?"
    ):
        make_text_env(ID, split="tset")
    del splits["valid"]
    register_text_env(ID, say, tasks=splits, replace=True)
    assert class_defaults(ID, {}).held_out_splits == ("train", "test"), "results keep theirs alone"
    register_text_env(ID, say, tasks=splits["train"], replace=True)
    assert not has_splits(ID)
    with pytest.raises(ValueError, match="has no setting 'split'"):
        make_text_env(ID, split="train")
