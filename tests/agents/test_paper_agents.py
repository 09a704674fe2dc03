"""The agents that keep to the protocols of their papers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from paw_train.agents.examples import read_examples
from paw_train.agents.paper_forms import Questions
from paw_train.rollouts.policy import Request
from paw_train.settings import EnvSettings

ALFWORLD = EnvSettings(id="paw_gym/ALFWorld-v0", kwargs={"max_steps": 8})
SEARCH = EnvSettings(id="paw_gym/SearchQA-v0", kwargs={"num_passages": 300, "max_steps": 7})
WEBSHOP = EnvSettings(id="paw_gym/WebShop-v0", kwargs={"max_steps": 5})


def users(request: Request) -> list[str]:
    return [m["content"] for m in request.messages if m["role"] == "user"]


class TestReactPaper:
    def test_a_thought_is_answered_with_ok_and_costs_a_line_but_no_step(self, table: Any) -> None:
        said = iter(["think: first I look\n", "> look\n", "think: now I know\n", "open door 1\n"])
        players = table("react_paper", lambda _: next(said), count=1, examples=0)
        (episode,) = players.play().values()
        assert [t.action for t in episode.transitions] == ["look", "open door 1"]
        assert episode.success
        assert all(t.action_is_valid for t in episode.transitions)
        last = players.policy.requests[-1]
        assert users(last)[1:] == ["OK.", "Nothing moves.", "OK."]
        assert episode.transitions[0].info["agent"]["said"] == [
            ["think: first I look", "OK."],
            ["> look"],
        ]

    def test_a_task_is_shown_two_examples_of_its_own_type_and_not_what_is_admissible(
        self, table: Any
    ) -> None:
        players = table("react_paper", lambda _: "look\n", ALFWORLD, "train", 6)
        players.play()
        types = {e.type for e in players.agent.examples}
        assert len(types) == 6
        for request in players.policy.requests[:6]:
            task_id = request.episode.rpartition("#")[0]
            kind = task_id.split("/")[2]
            of_type = [e.text for e in players.agent.examples if e.type == kind]
            assert len(of_type) == 2
            first = users(request)[0]
            assert all(text in first for text in of_type)
            assert first.count("Your task is to:") == 3
        for request in players.policy.requests:
            assert "go to" not in users(request)[0].rpartition("Here is your task.")[2]
            assert not any("ommands that the room accepts" in text for text in users(request))

    def test_an_episode_ends_when_its_lines_are_used_up(self, table: Any) -> None:
        thinker = table("react_paper", lambda _: "think: hm\n", count=1, examples=0, lines=3)
        (episode,) = thinker.play().values()
        assert len(thinker.policy.requests) == 3
        assert not episode.success
        assert episode.finished
        said = iter(["look\n", "think: a\n", "think: b\n"])
        players = table("react_paper", lambda _: next(said), count=1, examples=0, lines=3)
        (episode,) = players.play().values()
        assert [t.action for t in episode.transitions] == ["look"]
        assert episode.transitions[-1].truncated
        assert episode.transitions[-1].info["agent"]["ended"] == "lines used up"

    def test_questions_search_look_up_and_finish(self, table: Any) -> None:
        def answers(request: Request) -> str:
            number = sum(m["role"] == "assistant" for m in request.messages) + 1
            question = re.findall(r"Question: (.*)", users(request)[0])[-1]
            actions = [f"Search[{question}]", "Lookup[is]", "Lookup[is]", "Finish[nobody]"]
            return f"Thought {number}: hm\nAction {number}: {actions[number - 1]}\nObservation"

        players = table("react_paper", answers, SEARCH, "dev", 1)
        (episode,) = players.play().values()
        assert len(episode.transitions) == 2
        assert episode.transitions[0].action.startswith("<search>")
        assert episode.transitions[1].action == "<answer>nobody</answer>"
        first, second = episode.transitions[1].info["agent"]["said"][:2]
        assert first[1].startswith("Observation 2: (Result 1 / ")
        assert second[1].startswith("Observation 3: ")
        assert first[1] != second[1]
        assert users(players.policy.requests[0])[0].count("Action 1: ") >= 6

    def test_a_thought_without_an_action_is_asked_for_it_once(self, table: Any) -> None:
        said = iter(["Thought 1: I wonder", "Action 1: Finish[x]"])
        players = table("react_paper", lambda _: next(said), SEARCH, "dev", 1)
        (episode,) = players.play().values()
        assert episode.transitions[0].action == "<answer>x</answer>"
        assert "Action 1" in users(players.policy.requests[1])[-1]
        silent = table("react_paper", lambda _: "I wonder", SEARCH, "dev", 1, lines=3)
        (episode,) = silent.play().values()
        assert not episode.transitions[0].action_is_valid
        assert len(silent.policy.requests) == 6

    def test_the_shop_has_one_example_and_thoughts_in_brackets(self, table: Any) -> None:
        said = iter(["think[a thought]\n", "Action: search[red shirt]\n", *["click[x]\n"] * 9])
        players = table("react_paper", lambda _: next(said), WEBSHOP, "train", 1)
        (episode,) = players.play().values()
        assert episode.transitions[0].action == "search[red shirt]"
        assert episode.transitions[0].action_is_valid
        first = users(players.policy.requests[0])[0]
        assert first.count("Instruction:") == 2
        assert "click[buy now]" in first.lower()


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("Thought 1: a\nAction 1: Search[b c]", "<search>b c</search>"),
        ("Action: finish[ yes ]", "<answer>yes</answer>"),
        ("Finish[no]", "<answer>no</answer>"),
        ("Thought: Search[x] comes to mind\nAction 2: Search[y]", "<search>y</search>"),
        ("Action 1: Search[]", ""),
    ],
)
def test_actions_of_questions_are_read(text: str, action: str) -> None:
    line = Questions().read(text)
    assert (line.kind, line.text) == ("action", action)


class TestExamplesFile:
    def write(self, tmp_path: Path, text: str) -> str:
        path = tmp_path / "examples.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    def test_a_users_examples_and_rules_stand_in_the_prompt(
        self, table: Any, tmp_path: Path
    ) -> None:
        file = self.write(
            tmp_path,
            "rules = 'MY RULES'\n[[example]]\ntype = 'plain'\ntext = '''\nONE\n'''\n"
            "[[example]]\ntext = 'TWO'\n[[example]]\ntype = 'other'\ntext = 'THREE'\n",
        )
        players = table("react_paper", lambda _: "look\n", count=1, examples_file=file)
        players.play()
        first = users(players.policy.requests[0])[0]
        assert first.startswith("MY RULES")
        assert "ONE\n\nTWO" in first
        assert "THREE" not in first
        assert "plain: ONE" in players.agent.prompts()

    def test_a_type_without_an_example_is_named(self, table: Any, tmp_path: Path) -> None:
        file = self.write(tmp_path, "[[example]]\ntype = 'plian'\ntext = 'ONE'\n")
        players = table("react_paper", lambda _: "look\n", count=1, examples_file=file)
        with pytest.raises(ValueError, match="'plain', only for plian"):
            players.play()

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", r"holds no \[\[example\]\]"),
            ("[[exmaple]]\ntext = 'x'", "'exmaple'. Did you mean 'example'"),
            ("[[example]]\ntext = 'x'\ntxt = 'x'", "'example 1.txt'. Did you mean 'text'"),
            ("[[example]]\ntext = 'x'\n[[example]]\ntype = 'x'", "example 2.text is needed"),
            ("[[example]]\ntext = '  '", "example 1.text is not empty"),
            ("example = ['x']", "example 1 is a group"),
            ("rules = 1\n[[example]]\ntext = 'x'", "rules: expected str"),
            ("[[", "examples_file=.*Invalid initial character"),
        ],
    )
    def test_a_damaged_file_is_refused(self, tmp_path: Path, text: str, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            read_examples(self.write(tmp_path, text))


class TestSearchR1:
    def test_it_searches_and_answers_in_at_most_four_turns(self, table: Any) -> None:
        players = table("search_r1", lambda _: "<search>who</search>", SEARCH, "dev", 1)
        (episode,) = players.play().values()
        assert len(episode.transitions) == 4
        assert episode.transitions[-1].truncated
        assert "<information>" in users(players.policy.requests[1])[-1]

    def test_neither_search_nor_answer_is_refused_and_tried_again(self, table: Any) -> None:
        said = iter(["<think>hm</think> Lisbon", "<think>hm</think><answer>Lisbon</answer>"])
        players = table("search_r1", lambda _: next(said), SEARCH, "dev", 1)
        (episode,) = players.play().values()
        assert [t.action_is_valid for t in episode.transitions] == [False, True]
        assert "no valid action" in users(players.policy.requests[1])[-1]
