"""Actions are found in whatever a model writes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paw_gym.replies import parse_response

plain = st.text().filter(lambda text: "<" not in text)
soup = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<action>", "</action>", "<", ">", "go", " ", "\n", "<|im_end|>"]
    ),
    max_size=30,
).map("".join)


@given(thought=soup.filter(lambda text: "</think>" not in text), action=plain, tail=soup)
def test_a_well_formed_response_gives_its_action(thought: str, action: str, tail: str) -> None:
    tail = tail.replace("</think>", "")
    parsed = parse_response(f"<think>{thought}</think><action>{action}</action>{tail}")
    assert parsed.action == action.strip()
    assert (parsed.problem is None) == bool(action.strip())


@given(soup | st.text())
def test_any_string_gives_an_action_or_a_problem(response: str) -> None:
    for think_tag in ("think", None):
        parsed = parse_response(response, think_tag=think_tag)
        assert parsed.action or parsed.problem
        assert parsed.action in response
        assert parsed.action == parsed.action.strip()


@given(soup)
def test_without_reasoning_asked_for_the_first_block_counts(response: str) -> None:
    response = response.replace("think>", "")
    parsed = parse_response(response, think_tag=None)
    opened = response.find("<action>")
    closed = response.find("</action>", opened) if opened >= 0 else -1
    block = response[opened + len("<action>") : closed].strip() if closed >= 0 else ""
    assert parsed.action == block


@pytest.mark.parametrize(
    ("response", "action", "problem"),
    [
        ("<think>a</think><action>look</action>", "look", None),
        ("<think>a</think>\n<action>\n look \n</action> <|im_end|>", "look", None),
        ("<think><action>no</action></think><action>yes</action>", "yes", None),
        ("<think>a</think><action>1</action><action>2</action>", "1", None),
        ("<action>look</action>", "look", "no <think>...</think> block"),
        ("a</think><action>look</action>", "look", None),
        ("a <action>no</action></think>\n<think>b</think><action>yes</action>", "yes", None),
        ("[THINK]a <action>no</action>[/THINK]<action>yes</action>", "yes", None),
        ("<think>a <think>..</think><action>no</action>.</think><action>yes</action>", "yes", None),
        ("<think>I write <think> first</think><action>look</action>", "look", None),
        ("<think>a</think><action>1</action><think>b</think><action>2</action>", "1", None),
        ("</think><think><action>look</action>", "", "the thought does not end"),
        ("<think>a <action>look</action>", "", "the thought does not end"),
        ("<|channel|>analysis<|message|>a <action>no</action><|end|><|start|>assistant"
         "<|channel|>final<|message|><action>yes</action>", "yes", None),
        ("<|channel|>analysis<|message|>a <action>no</action><|end|>", "", "the thought does not end"),
        ("<think>a</think>look", "", "no <action>...</action> block"),
        ("<think>a</think><action>look", "", "no <action>...</action> block"),
        ("<think>a</think></action><action>", "", "no <action>...</action> block"),
        ("<think>a</think><action> </action>", "", "the <action> block is empty"),
        ("", "", "no <action>...</action> block"),
        ("<THINK></THINK><ACTION>look</ACTION>", "", "no <action>...</action> block"),
    ],
)  # fmt: skip
def test_responses_of_all_sorts(response: str, action: str, problem: str | None) -> None:
    parsed = parse_response(response)
    assert (parsed.action, parsed.problem) == (action, problem)


def test_other_tags_can_be_asked_for() -> None:
    response = "<why>a</why><search>who</search>"
    assert parse_response(response, "search", "why").action == "who"
    assert parse_response(response, "search", None).problem is None


@pytest.mark.parametrize(
    "piece", ["<action>", "<think>", "</think><action>", "<think></think>", "<"]
)
def test_long_responses_take_linear_time(piece: str) -> None:
    """In a scan that starts over at each tag, the many tags here would take hours."""
    parsed = parse_response("<think></think>" + piece * 200_000)
    assert parsed.action == ""
    long = "x" * 100_000
    assert parse_response(f"<think></think><action>{long}</action>").action == long


OWN = ("search", "answer")


@pytest.mark.parametrize(
    ("response", "action", "problem"),
    [
        ("<think>why</think><search> who </search>", "<search>who</search>", None),
        ("<think></think><answer>x</answer><search>y</search>", "<answer>x</answer>", None),
        ("<think></think><search>a<answer>b</answer></search>", "<search>a<answer>b</answer></search>", None),
        ("<think><search>no</search></think><answer>x</answer>", "<answer>x</answer>", None),
        ("<search>who</search>", "<search>who</search>", "no <think>"),
        ("<think></think><search> </search>", "<search></search>", "<search> block is empty"),
        ("<think></think><action>who</action>", "", "no <search>"),
        ("<think></think><search>who</answer>", "", "no <search>"),
    ],
)  # fmt: skip
def test_tags_of_the_environments_own(response: str, action: str, problem: str | None) -> None:
    parsed = parse_response(response, own_tags=OWN)
    assert parsed.action == action
    assert (parsed.problem is None) == (problem is None)
    assert problem is None or problem in str(parsed.problem)
