"""Thoughts for the expert's actions in few-shot examples, written by rule.

Each rule is a pattern of an action and a thought before it; the first that matches is used. Rules refer to
actions, not to environments, so they also serve a new environment with similar actions; other actions get
the general thought.
"""

from __future__ import annotations

import re

from paw_gym.prompts import fill

_RULES: tuple[tuple[str, str], ...] = (
    # places and things
    (r"go to (?P<place>.+)", "I should check {place}; it may have what I need, or be where it goes."),
    (r"open (?P<thing>.+)", "{thing} is closed. I open it to see what is inside."),
    (r"close (?P<thing>.+)", "I am done with {thing} and close it."),
    (r"take (?P<thing>.+) from (?P<place>.+)", "{thing} is here and the task asks for one. I take it."),
    (r"(?:put|move) (?P<thing>.+?) (?:in/on|to) (?P<place>.+)",
     "I hold {thing} as the task wants it, and {place} is where it belongs. I put it there."),
    (r"(?P<how>heat|cool|clean) (?P<thing>.+) with (?P<tool>.+)",
     "The task wants me to {how} {thing}, and {tool} can do that."),
    (r"(?:use|turn on|toggle) (?P<thing>.+)", "{thing} is what I need to switch on now."),
    (r"(?:examine|look at) (?P<thing>.+)", "I look at {thing} more closely."),
    (r"look|inventory", "I am not sure where things stand, so I look first."),
    # questions and search engines
    (r"<search>(?P<words>.*)</search>", "I do not know this yet. A search for {words} should tell me."),
    (r"<answer>(?P<words>.*)</answer>", "What I have read is enough: the answer is {words}."),
    # shops
    (r"search\[(?P<words>.*)\]", "I search for the product in a few words of its description."),
    (r"click\[(?:buy now|purchase)\]", "The product and its options fit what was asked for. I buy it."),
    (r"click\[(?:back to search|< prev|prev)\]", "This does not fit. I go back and look further."),
    (r"click\[(?:next >|next)\]", "Nothing on this page fits. I look at the next one."),
    (r"click\[(?P<thing>b[0-9a-z]{9}|[a-z]+\d{4,})\]",
     "{thing} looks closest to what was asked for. I open it."),
    (r"click\[(?P<thing>.+)\]", "{thing} is what was asked for, so I choose it."),
    # customers and tools
    (r'\{"name": "(?P<tool>\w+)".*\}', "I know enough for the tool {tool}. I call it."),
    (r"it is done.*", "Everything that was asked for is done. I say so."),
    (r"please (?P<wish>.+?)\.?", "I need the customer's help. I ask: {wish}."),
)  # fmt: skip
_COMPILED = tuple(
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), text) for pattern, text in _RULES
)
_ON_THE_WAY = re.compile(r"(?:go to|open|close|examine|look at) .+|look|inventory", re.IGNORECASE)
_GENERAL = "As far as I can see, this brings me closer to the goal: {action}."


def thought(instruction: str, action: str, step: int) -> str:
    """A possible thought before an action; that of the first step recalls the task.

    Args:
        instruction: the task; its first paragraph is recalled.
        action: the next action.
        step: counts from 0.
    """
    written = fill(_GENERAL, action=action)
    for pattern, text in _COMPILED:
        match = pattern.fullmatch(action.strip())
        if match:
            written = fill(text, **{k: v.strip() for k, v in match.groupdict().items()})
            break
    task = instruction.strip().partition("\n\n")[0]
    start = f"My task: {task}{'' if task.endswith(('.', '?', '!')) else '.'} " if step == 0 else ""
    return start + written[0].upper() + written[1:]


def is_milestone(action: str) -> bool:
    """Whether an action is more than walking, opening and looking: only such actions get a sparse thought."""
    return _ON_THE_WAY.fullmatch(action.strip()) is None
