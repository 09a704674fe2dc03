"""The agent's side: prompts in, raw responses out, complete transitions, and their record."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from paw_gym import AgentDefaults, AgentInterface, RecordTransitions
from paw_gym.transition import read_jsonl

THINK = "<think>hm</think>"


@pytest.fixture
def agent(box_env: Any) -> Callable[..., AgentInterface]:
    """``agent(**settings)``: the box environment behind the interface, task boxes/3 started."""

    def make(**settings: Any) -> AgentInterface:
        made = AgentInterface(box_env(), **settings)
        made.reset(seed=0, options={"task_id": "boxes/3", "episode_id": "e1"})
        return made

    return make


Make = Callable[..., AgentInterface]


class TestTransition:
    def test_it_holds_all_of_the_step(self, agent: Make) -> None:
        env = agent(invalid_penalty=-0.5)
        prompt = env.reset(seed=0, options={"task_id": "boxes/3", "episode_id": "e1"})[0]
        response = f"{THINK} I look. <action> look </action>"
        _, reward, _, _, info = env.step(response)
        t = info["transition"]
        assert (t.env_id, t.task_id, t.episode_id, t.step) == ("BoxEnv", "boxes/3", "e1", 0)
        assert (t.prompt, t.response, t.action) == (prompt, response, "look")
        assert t.observation == "There are 3 boxes."
        assert (t.reward, t.next_observation) == (reward, "You look around.")
        assert (t.terminated, t.truncated, t.action_is_valid) == (False, False, True)
        told = {"env_reward": 0.0, "penalty": 0.0, "success": False, "score": 0.0}
        assert t.info == {**told, "problem": None, "malformed": False}

    def test_episode_ids_are_drawn_by_seed(self, box_env: Any) -> None:
        env = AgentInterface(box_env())
        ids = [env.reset(seed=seed)[1]["episode_id"] for seed in (1, 1, 2)]
        assert ids[0] == ids[1] != ids[2]
        assert env.reset()[1]["episode_id"] not in ids


class TestRewards:
    @pytest.mark.parametrize(
        ("response", "malformed", "problem"),
        [
            (f"{THINK}<action>dance</action>", False, "the environment did not accept the action"),
            ("<action>look</action>", True, "no <think>...</think> block"),
        ],
    )
    def test_an_invalid_response_costs_the_penalty_or_only_a_malformed_one_does(
        self, agent: Make, response: str, malformed: bool, problem: str
    ) -> None:
        for invalid_when, valid in (("rejected", False), ("malformed", not malformed)):
            env = agent(invalid_penalty=-0.25, invalid_when=invalid_when)
            _, reward, _, _, info = env.step(response)
            assert reward == (0.0 if valid else -0.25)
            assert info["action_is_valid"] is info["transition"].action_is_valid is valid
            told = info["transition"].info  # what was wrong is recorded all the same
            assert (told["problem"], told["malformed"]) == (problem, malformed)

    def test_the_environments_own_settings_hold_unless_given(self, box_env: Any) -> None:
        own = AgentDefaults("compact", 7, 3.0, -0.75)
        env = AgentInterface(box_env(agent=own))
        assert env.settings == own
        env = AgentInterface(box_env(agent=own), history_length=None, success_reward=None)
        assert env.settings == AgentDefaults("compact", None, None, -0.75)

    def test_an_unlisted_one_is_not_even_if_accepted(self, box_env: Any) -> None:
        class Tolerant(box_env):
            def _act(self, action: str) -> Any:
                return super()._act(action.lower())

        response = f"{THINK}<action>LOOK</action>"
        for required, valid in ((False, True), (True, False)):
            env = AgentInterface(Tolerant(), require_admissible=required)
            env.reset(seed=0)
            info = env.step(response)[4]
            assert info["action_is_valid"] is valid
            assert info["transition"].next_observation == "You look around."
        assert info["transition"].info["problem"] == "the action is not admissible"


class TestModes:
    def test_a_window_shows_history_length_steps(self, agent: Make) -> None:
        env = agent(history_length=2)
        for box in (1, 2, 3):
            prompt = env.step(env.response_for(f"open box {box}"))[0]
        assert [f"did: open box {box}" in prompt for box in (1, 2, 3)] == [False, True, True]

    def test_a_conversation_grows_by_two_messages_a_step(self, agent: Make) -> None:
        env = agent(mode="conversation")
        first, info = env.reset(seed=0, options={"task_id": "boxes/3"})
        assert info["messages"] == [{"role": "user", "content": first}]
        response = env.response_for("look")
        second, _, _, _, info = env.step(response)
        assert [m["content"] for m in info["messages"]] == [first, response, second]
        assert "You look around." in second and "3 boxes" not in second
        info["messages"][0]["content"] = "changed"
        assert env.step(response)[4]["messages"][0]["content"] == first

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"mode": "chat"}, "Unknown mode 'chat'. Valid: 'window', 'conversation'"),
            ({"invalid_when": "never"}, "Unknown invalid_when 'never'. Valid: 'rejected'"),
            ({"history_length": -1}, "history_length is 0 or more, or None for all, got -1"),
            ({"history_length": 2.5}, "history_length is 0 or more, or None for all, got 2.5"),
            ({"success_reward": float("nan")}, "success_reward is a finite number, got nan"),
            ({"invalid_penalty": None}, "invalid_penalty is a finite number, got None"),
            ({"template": "genric"}, "Did you mean 'generic'"),
        ],
    )
    def test_wrong_settings_are_refused(
        self, box_env: Any, settings: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            AgentInterface(box_env(), **settings)

    def test_a_response_is_a_text_and_the_environment_one_of_texts(self, agent: Make) -> None:
        with pytest.raises(TypeError, match="A response is a str, got NoneType: None"):
            agent().step(None)
        with pytest.raises(TypeError, match="wraps a TextEnv, got CartPoleEnv"):
            AgentInterface(gym.make("CartPole-v1"))


class TestRecord:
    def test_bare_episodes_are_written_when_they_end_or_are_left(
        self, box_env: Any, tmp_path: Path
    ) -> None:
        path = tmp_path / "new" / "e.jsonl"
        env, lengths = RecordTransitions(box_env(max_steps=3), path), [3, 2, 1]
        for number, steps in enumerate(lengths):
            observation, info = env.reset(seed=number)
            first, *_ = [env.step("dance")[4]["transition"] for _ in range(steps)]
            assert (first.prompt, first.response) == (observation, "dance")
            assert not first.action_is_valid and first.next_observation == "You cannot do that."
            found = list(read_jsonl(path))
            assert [len(e.transitions) for e in found] == lengths[: max(1, number)]
        env.close()
        *others, last = read_jsonl(path)
        assert [(len(e.transitions), e.finished) for e in others] == [(3, True), (2, False)]
        assert last.transitions == [first] and not last.finished
        assert (last.task_id, last.instruction) == (info["task_id"], info["instruction"])

    def test_nothing_is_appended_to_a_file_of_something_else(
        self, box_env: Any, tmp_path: Path
    ) -> None:
        (notes := tmp_path / "notes.md").write_text("# Mine\n")
        with pytest.raises(ValueError, match=r"notes\.md, line 1: not an episode"):
            RecordTransitions(box_env(), notes).reset(seed=0)
        assert notes.read_text() == "# Mine\n"

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
    def test_a_pipe_is_not_read(self, box_env: Any, tmp_path: Path) -> None:
        os.mkfifo(pipe := tmp_path / "pipe")
        assert RecordTransitions(box_env(), pipe).reset(seed=0)[0]

    def test_agent_transitions_are_written_as_they_are(self, agent: Make, tmp_path: Path) -> None:
        env = RecordTransitions(agent(mode="conversation"), tmp_path / "e.jsonl")
        env.reset(seed=0, options={"episode_id": "mine"})
        inner = env.unwrapped
        assert isinstance(inner, AgentInterface)
        infos = [env.step(response)[4] for response in inner.reference_solution()]
        episode = next(read_jsonl(tmp_path / "e.jsonl"))
        assert episode.transitions == [info["transition"] for info in infos]
        assert (episode.episode_id, episode.context_mode) == ("mine", "conversation")
        assert episode.success

    def test_an_episode_begins_with_a_reset(self, box_env: Any, tmp_path: Path) -> None:
        env = RecordTransitions(box_env(), tmp_path / "e.jsonl")
        with pytest.raises(RuntimeError, match="call reset"):
            env.step("look")
