"""Prompt templates, and reading the action in a response."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paw_gym import PromptTemplate
from paw_gym.internals.replies import parse_response
from paw_gym.prompts import HistoryItem, builtin_templates, group_numbered

PARTS = {
    "first": "Task: {instruction} See: {observation} Can: {admissible_actions}",
    "step": "Task: {instruction} After {step_count} (last {history_length}): {history} "
    "Now {current_step}: {observation} Can: {admissible_actions}",
    "history_item": "[{number}: {observation} -> {action}]",
    "turn": "Answer: {observation}",
}
PAST = [HistoryItem(f"o{i}", f"a{i}") for i in range(4)]


def template(**changes: str) -> PromptTemplate:
    return PromptTemplate(**{**PARTS, **changes})


def test_a_list_of_actions_has_its_heading_only_where_there_is_a_list() -> None:
    mine = template(first="{instruction}{actions} End", actions=" Can ({admissible_actions})")
    assert mine.render_first("win", "", ["{ask}", "go"]) == "win Can ({ask}\ngo) End"
    assert mine.render_first("win", "", None) == "win End"
    assert mine.hash != template(first="{instruction}{actions} End").hash
    braces = template(turn='{"json": {observation}, "n": {3}}')  # are text where they are no slot
    assert braces.render_turn("win", "x", None, 0) == '{"json": x, "n": {3}}'


def test_the_generic_prompt_has_no_empty_list() -> None:
    generic, heading = PromptTemplate.load("generic"), "Actions that are possible now:"
    for render in (
        lambda actions: generic.render_first("win", "a room", actions),
        lambda actions: generic.render_step("win", PAST, 2, "a room", actions),
        lambda actions: generic.render_turn("win", "a room", actions, 1),
    ):
        assert f"a room\n\n{heading}\nlook\ngo" in render(["look", "go"])
        assert heading not in render(None)
        assert "\n\n\n" not in render(None)


@pytest.mark.parametrize(
    ("length", "shown", "items"),
    [
        (2, 2, "[3: o2 -> a2]\n[4: o3 -> a3]"),
        (0, 0, ""),
        (None, 4, "[1: o0 -> a0]\n[2: o1 -> a1]\n[3: o2 -> a2]\n[4: o3 -> a3]"),
    ],
)
def test_the_window_shows_the_latest_steps(length: int | None, shown: int, items: str) -> None:
    text = template().render_step("win", PAST, length, "now", [])
    assert text == f"Task: win After 4 (last {shown}): {items} Now 5: now Can: "


@given(observation=st.text(), action=st.text())
def test_what_a_value_holds_is_never_taken_for_a_slot(observation: str, action: str) -> None:
    braces = "{instruction}{history}{observation}{}{0}" + observation
    text = template().render_step("WIN", [HistoryItem(braces, action)], 1, braces, [])
    assert text.count(braces) >= 2
    assert f"[1: {braces} -> {action}] Now 2: {braces} Can: " in text


@given(observation=st.text(), actions=st.none() | st.lists(st.text(), max_size=3))
def test_the_span_of_a_turn_is_its_observation(observation: str, actions: list[str] | None) -> None:
    one = template(turn="{instruction} {admissible_actions} {current_step}: {observation}.")
    text = one.render_turn("win", observation, actions, 2)
    start, end = one.turn_span("win", observation, actions, 2)
    assert text[start:end] == observation
    assert (text[:start].endswith(" 3: "), text[end:]) == (True, ".")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first": "{observation}"}, "'first' lacks the required slot {instruction}"),
        ({"history_item": "{observation}"}, "'history_item' lacks the required slot {action}"),
        ({"turn": "{observation} {histry}"}, "'turn' has an unknown slot {histry}"),
        ({"actions": "{observation}"}, "'actions' has an unknown slot {observation}"),
        ({"admissible_format": "table"}, "admissible_format is 'list' or 'grouped', got 'table'"),
    ],
)
def test_a_wrong_template_says_what_is_wrong(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        template(**changes)
    assert message in str(caught.value)


class TestFiles:
    def text(self, **changes: str) -> str:
        return "\n".join(f"{key} = '''{value}'''" for key, value in {**PARTS, **changes}.items())

    def test_a_template_file_is_read(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.toml"
        path.write_text(self.text(think_tag="", action_tag="do"), encoding="utf-8")
        mine = PromptTemplate.load(path)
        assert (mine.name, mine.action_tag, mine.think_tag) == ("mine", "do", None)
        assert mine.read_response("<why>a</why><do>go</do>").action == "go"

    def test_what_is_no_template_is_named(self) -> None:
        for name, message in (
            ("genric", "Did you mean 'generic'"),
            ("missing.toml", r"There is no template file 'missing\.toml'"),
            ("Do this: " * 100, "no prompt template 'Do this"),
            ("~nobody/mine.toml", "no template file '~nobody"),
            (None, "no prompt template 'None'. Valid: 'alfworld'"),
        ):
            with pytest.raises(ValueError, match=message):
                PromptTemplate.load(name)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("first = ", "not valid TOML"),
            ("first = '{instruction}'", "lacks 'step'"),
            ("frist = ''", "unknown key 'frist'. Did you mean 'first'"),
            ("own_tags = 'search'", "'own_tags' is 'search'; expected a list of texts"),
            ("think_tag = false", "'think_tag' is False; expected text"),
        ],
    )
    def test_damaged_files_say_what_is_wrong(self, text: str, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            PromptTemplate.parse(text, "mine")


class TestGrouping:
    def test_numbered_actions_share_a_line(self) -> None:
        actions = ["go to bed 1", "go", "go to bed 10", "go to bed 2", "put mug 1 in bed 1", "go 3"]
        assert group_numbered(actions) == ["go to bed 1 2 10", "go", "put mug 1 in bed 1", "go 3"]

    @given(
        st.lists(
            st.tuples(st.sampled_from(["go", "open door", "look 3 x"]), st.integers(0, 99)),
            unique=True,
        )
    )
    def test_nothing_is_lost(self, pairs: list[tuple[str, int]]) -> None:
        lines = group_numbered([f"{stem} {number}" for stem, number in pairs])
        found = set()
        for line in lines:
            stem = next(s for s in ("go", "open door", "look 3 x") if line.startswith(s + " "))
            found |= {(stem, int(n)) for n in line.removeprefix(stem).split()}
        assert found == set(pairs)


def test_own_tags_stand_in_for_the_action_tag() -> None:
    plain, own = template(), PromptTemplate(**PARTS, own_tags=("search", "answer"))
    assert plain.response_for("look") == "<think></think><action>look</action>"
    assert own.response_for("<answer>x</answer>") == "<think></think><answer>x</answer>"
    assert own.read_response(own.response_for("<answer>x</answer>")).action == "<answer>x</answer>"
    assert (plain.closing_tags, own.closing_tags) == (["</action>"], ["</search>", "</answer>"])
    told = "\n".join(f"{key} = {text!r}" for key, text in PARTS.items())
    assert PromptTemplate.parse(told + '\nown_tags = ["search"]').own_tags == ("search",)


class TestAsking:
    def test_the_direct_variant_asks_for_no_reasoning(self) -> None:
        one = template(
            first="{instruction} {ask}", turn="{observation} {ask}", ask="Think. Act.",
            ask_directly="Act.",
        )  # fmt: skip
        direct = one.without_reasoning()
        assert one.render_first("Win.", "", None) == "Win. Think. Act."
        assert direct.render_first("Win.", "", None) == "Win. Act."
        assert direct.render_turn("", "A door", None, 0) == "A door Act."
        assert direct.read_response("<action>go</action>").problem is None
        assert direct.without_reasoning() is direct
        assert direct.hash != one.hash

    def test_what_it_asks_is_never_searched_for_slots(self) -> None:
        one = template(turn="{ask} {observation}", ask="{observation}")
        assert one.render_turn("", "seen", None, 0) == "{observation} seen"
        assert one.turn_span("", "seen", None, 0) == (14, 18)
        with pytest.raises(ValueError, match="has no 'ask_directly'"):
            one.without_reasoning()

    @pytest.mark.parametrize("name", builtin_templates())
    def test_built_in_ones_have_a_direct_variant(self, name: str) -> None:
        built_in = PromptTemplate.load(name)
        direct = built_in.without_reasoning()
        past = [HistoryItem("here", "look")]
        assert "think>" not in direct.render_first("win", "here", ["look"])
        assert "think>" not in direct.render_step("win", past, 1, "there", ["look"])
        assert direct.closing_tags == built_in.closing_tags


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
        ("<think>a</think>\n<action>\n look \n</action> <|im_end|>", "look", None),
        ("<think><action>no</action></think><action>yes</action>", "yes", None),
        ("<action>look</action>", "look", "no <think>...</think> block"),
        ("a</think><action>look</action>", "look", None),
        ("a <action>no</action></think>\n<think>b</think><action>yes</action>", "yes", None),
        ("<think>a <action>look</action>", "", "the thought does not end"),
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
