"""Many episodes in one process, and in Gymnasium's vector environments."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import gymnasium as gym
import pytest

from paw_gym import AgentInterface, EnvPool, Outcome, Task
from paw_gym.functional import GeneratorEnv

LOOK = "<think></think><action>look</action>"


Make = Callable[..., EnvPool]


@pytest.fixture
def pool(box_env: Any) -> Make:
    """``pool(groups, group_size, seed, seeds, **env settings)``."""

    def make(groups: int = 2, size: int = 3, seed: int = 0, **settings: Any) -> EnvPool:
        seeds = settings.pop("seeds", None)
        return EnvPool(
            lambda: AgentInterface(box_env(**settings)), groups, size, seed=seed, seeds=seeds
        )

    return make


def test_chosen_tasks_and_sizes_are_played(pool: Make) -> None:
    some = pool(1, 1)
    chosen = some.reset(["boxes/4", "boxes/9", "boxes/4"], group_size=2)
    assert [slot.info["task_id"] for slot in chosen[::2]] == ["boxes/4", "boxes/9", "boxes/4"]
    assert [(slot.index, slot.group) for slot in chosen] == [(i, i // 2) for i in range(6)]
    assert len(some.reset()) == 1


def test_finished_episodes_leave_the_batch(pool: Make) -> None:
    some = pool(1, 3, max_steps=4)
    winner = some.reset(["boxes/5"])[1]
    plan, seen = iter(some.env_of(winner).reference_solution()), [[], [], []]
    while some.active:
        for slot in some.active:
            seen[slot.index].append(slot.prompt)
        some.step([next(plan) if slot is winner else LOOK for slot in some.active])
    assert [len(e.transitions) for e in some.episodes] == [4, 2, 4]
    assert [e.success for e in some.episodes] == [False, True, False]
    assert all(e.finished and e.error is None for e in some.episodes)
    assert [[t.prompt for t in e.transitions] for e in some.episodes] == seen, "those answered"


def test_a_failing_step_or_reset_fails_its_episode_alone(box_env: Any) -> None:
    class Failing(box_env):
        def _start(self, task: Any) -> Any:
            if task.id == "boxes/7":
                raise OSError("no such box")
            return super()._start(task)

        def close(self) -> None:
            closed.append(self)

    closed: list[Any] = []
    some = EnvPool(lambda: AgentInterface(Failing("raises on junk", max_steps=2)))
    slots = some.reset(["boxes/3", "boxes/7", "boxes/4", "boxes/5"])
    assert [slot.index for slot in slots] == [0, 2, 3]
    some.step([LOOK, "<think></think><action>dance</action>", LOOK])
    assert [slot.index for slot in some.active] == [0, 3] and len(closed) == 1
    some.step([LOOK, LOOK])
    assert [e.task_id for e in some.episodes] == ["boxes/3", "boxes/7", "boxes/4", "boxes/5"]
    assert [len(e.transitions) for e in some.episodes] == [2, 0, 0, 2]
    started, stepped = (some.episodes[i].error or "" for i in (1, 2))
    assert "Traceback" in started and "OSError: no such box" in started
    assert "Traceback" in stepped and "ValueError: bad action 'dance'" in stepped
    assert [e.task_type for e in some.episodes] == [
        some.tasks[e.task_id].type for e in some.episodes
    ]
    assert some.episodes[1].group == 1 and len(some.reset(["boxes/4"])) == 1


def test_after_a_reset_that_failed_no_episode_goes_on(box_env: Any) -> None:
    class Failing(box_env):
        def _start(self, task: Any) -> Any:
            return super()._start(task) if task.id == "boxes/4" else 1 // 0

    env = Failing()
    env.reset(options={"task_id": "boxes/4"})
    with pytest.raises(ZeroDivisionError):
        env.reset(options={"task_id": "boxes/5"})
    with pytest.raises(RuntimeError, match="call reset"):
        env.step("look")


def test_the_state_makes_the_next_reset_the_same(pool: Make) -> None:
    first = pool(2, 2)
    first.reset()
    state = first.state_dict()
    expected = [(s.prompt, s.episode.episode_id) for s in first.reset()]
    second = pool(2, 2, seed=99)
    second.load_state_dict(state)
    assert [(s.prompt, s.episode.episode_id) for s in second.reset()] == expected


def test_mistakes_start_and_step_nothing(pool: Make) -> None:
    some = pool(2, 3)
    with pytest.raises(KeyError, match="boxes/3"):
        some.reset(["boxes/3", "boxes/33"])
    assert not some.active and not some.episodes
    some.reset()
    wrong: list[Any] = [[LOOK], [LOOK] * 7, dict.fromkeys(range(6), LOOK)]
    for responses in wrong:
        with pytest.raises(ValueError, match=r"a list of 6 responses .*, got a (list|dict) of"):
            some.step(responses)
    assert all(not e.transitions for e in some.episodes)
    with pytest.raises(ValueError, match="at least 1, got 0 and 2"):
        pool(0, 2)
    with pytest.raises(ValueError, match="history_length: these settings go to make_agent_env"):
        EnvPool(lambda: some.env_of(some.active[0]), history_length=3)


def test_planned_seeds_name_episodes_whatever_was_played_before(pool: Make) -> None:
    planned = pool(1, 2, seeds={"boxes/4": 7})
    names = [s.episode.episode_id for s in planned.reset(["boxes/4", "boxes/9", "boxes/4"])]
    assert len(set(names)) == 6, "two groups of one task and seed have names of their own"
    assert names[:2] == [s.episode.episode_id for s in planned.reset(["boxes/4"])]


def test_every_environment_is_told_how_far_training_has_come(pool: Make) -> None:
    some = pool(1, 2)
    (slot, _) = some.reset()
    assert some.env_of(slot).text_env.progress is None
    for fraction in (0.0, 0.25, 1.0):
        some.set_progress(fraction)
        slots = some.reset(["boxes/4", "boxes/9"])  # two more environments than before
        assert [some.env_of(s).text_env.progress for s in slots] == [fraction] * 4
    with pytest.raises(ValueError, match=r"0 to 1, got 1\.5"):
        some.set_progress(1.5)
    assert some.env_of(some.active[0]).text_env.progress == 1.0


LONG = "é🙂\ud800\n" * 30_000


def echo(task: Task, rng: Any) -> Any:
    """Repeat what is said."""
    said = yield Outcome(task.instruction)
    while True:
        said = yield Outcome(said)


def make_echo() -> GeneratorEnv:
    return GeneratorEnv(echo, [Task("a", "Say something.")], max_steps=3)


def test_any_text_comes_through_and_an_episode_ends() -> None:
    with closing(gym.vector.AsyncVectorEnv([make_echo] * 2)) as vector:
        first, _ = vector.reset(seed=0)
        seen = [vector.step(texts)[0] for texts in ((LONG, ""), ("short", LONG), ("a", "b"))]
        assert seen == [(LONG, ""), ("short", LONG), ("a", "b")]
        assert first == ("Say something.",) * 2, "what was given before stays as it was"
        again, _, _, truncated, _ = vector.step(("c", "d"))  # a new episode
        assert again == first and not truncated.any()


def test_without_copies_the_observations_are_those_of_now() -> None:
    with closing(gym.vector.AsyncVectorEnv([make_echo] * 2, copy=False)) as vector:
        seen, _ = vector.reset(seed=0)
        vector.step(("a", "b"))
        assert (list(seen), len(seen), seen[-1], seen[:1]) == (["a", "b"], 2, "b", ("a",))
        with pytest.raises(IndexError):
            seen[2]


def test_agents_in_processes(box_env: Any) -> None:
    def make() -> AgentInterface:
        return AgentInterface(box_env())

    with closing(gym.vector.AsyncVectorEnv([make] * 2)) as vector:
        prompts, _ = vector.reset(seed=4)
        alone = make()
        assert prompts[0] == alone.reset(seed=4)[0]
        response = alone.response_for("look")
        assert vector.step((response, response))[0][0] == alone.step(response)[0]
