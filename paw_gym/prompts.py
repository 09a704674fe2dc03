"""Prompt templates with slots, and their rendering in window and in conversation mode.

A template file is TOML (see ``paw_gym/templates/generic.toml``)::

    first = "...{instruction}...{observation}..."       # before anything was done
    step = "...{instruction}...{history}...{observation}..."   # afterwards, window mode
    history_item = "...{observation}...{action}..."     # one past step
    turn = "...{observation}..."                        # afterwards, conversation mode
    actions = "...{admissible_actions}..."              # what {actions} stands for, if there is a list
    ask = "..."                                         # what {ask} stands for: reason, then act
    ask_directly = "..."                                # and for agents that are to act at once

Slots are ``{name}``; any other brace is text.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib import resources
from pathlib import Path

from paw_gym.internals.files import file_at
from paw_gym.internals.naming import did_you_mean
from paw_gym.internals.replies import ParsedResponse, parse_response

SLOTS = {
    "first": {"instruction", "observation", "admissible_actions", "actions", "ask"},
    "step": {
        "instruction",
        "observation",
        "admissible_actions",
        "actions",
        "history",
        "history_length",
        "step_count",
        "current_step",
        "ask",
    },
    "history_item": {"observation", "action", "number"},
    "turn": {"instruction", "observation", "admissible_actions", "actions", "current_step", "ask"},
    "actions": {"admissible_actions"},
}
"""the slots that each text of a template may use"""

_REQUIRED = {
    "first": {"instruction"},
    "step": {"instruction", "history", "observation"},
    "history_item": {"action"},
    "turn": {"observation"},
}
_TEMPLATES = resources.files("paw_gym") / "templates"
_SLOT = re.compile(r"\{([a-z_]+)\}")
_NUMBERED = re.compile(r"^(.*\S) (\d+)$")


@dataclass(frozen=True, slots=True)
class HistoryItem:
    """A past step as a prompt shows it."""

    observation: str
    action: str


@dataclass(frozen=True)
class PromptTemplate:
    """The texts of a prompt, and what the agent is to answer with."""

    first: str
    step: str
    history_item: str
    turn: str
    name: str = "custom"
    action_tag: str = "action"
    think_tag: str | None = "think"
    """tag of the reasoning that an answer must have; ``None``: no reasoning asked for"""
    own_tags: tuple[str, ...] = ()
    """tags that are part of the environment's actions (``search``, ``answer``) and so need no
    ``action_tag`` around them"""
    admissible_format: str = "list"
    """``list``: one action a line; ``grouped``: actions that differ in a final number share a line"""
    opening: str | None = None
    """replaces o_0 in the history, where ``first`` no longer shows it; ``None``: o_0 itself"""
    actions: str = ""
    """text for ``{actions}`` if the environment lists its actions; else that slot is empty"""
    ask: str = ""
    """text for ``{ask}``: how to answer"""
    ask_directly: str | None = None
    """text for ``{ask}`` if no reasoning is wanted (``without_reasoning``)"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "own_tags", tuple(self.own_tags))
        for text_name in SLOTS:
            where = f"Template {self.name!r}: {text_name!r}"
            used = set(_SLOT.findall(getattr(self, text_name)))
            for slot in sorted(used - SLOTS[text_name]):
                hint = did_you_mean(slot, sorted(SLOTS[text_name]))
                raise ValueError(f"{where} has an unknown slot {{{slot}}}. {hint}")
            for slot in sorted(_REQUIRED.get(text_name, set()) - used):
                raise ValueError(
                    f"{where} lacks the required slot {{{slot}}}. Write it where its text is to appear."
                )
        if self.admissible_format not in ("list", "grouped"):
            raise ValueError(
                f"Template {self.name!r}: admissible_format is 'list' or 'grouped', "
                f"got {self.admissible_format!r}."
            )

    @classmethod
    def load(cls, name_or_path: str | Path) -> PromptTemplate:
        """A built-in template by name, or a TOML file."""
        name, known = str(name_or_path), builtin_templates()
        if name in known:
            return cls.parse((_TEMPLATES / f"{name}.toml").read_text(encoding="utf-8"), name)
        if name.endswith(".toml"):
            if (file := file_at(name)) is None:
                raise ValueError(f"There is no template file {name[:200]!r}.")
            return cls.parse(file.read_text(encoding="utf-8"), file.stem)
        raise ValueError(
            f"There is no prompt template {name[:200]!r}. {did_you_mean(name, known)} "
            "Or give the path of a .toml file."
        )

    @classmethod
    def parse(cls, text: str, name: str = "custom") -> PromptTemplate:
        """A template from the text of a TOML file."""
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"Template {name!r} is not valid TOML: {error}") from error
        known = {f.name for f in fields(cls)}
        for key in data:
            if key not in known:
                raise ValueError(
                    f"Template {name!r}: unknown key {key!r}. " + did_you_mean(key, known)
                )
            texts = data[key] if key == "own_tags" else [data[key]]
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                expected = "a list of texts" if key == "own_tags" else "text"
                raise ValueError(
                    f"Template {name!r}: {key!r} is {data[key]!r:.60}; expected {expected}."
                )
        for key in _REQUIRED:
            if key not in data:
                raise ValueError(
                    f"Template {name!r} lacks {key!r}; it needs {', '.join(_REQUIRED)}."
                )
        if data.get("think_tag") == "":
            data["think_tag"] = None
        return cls(**{"name": name, **data})

    def without_reasoning(self) -> PromptTemplate:
        """The same prompt, but it asks for the action alone."""
        if self.think_tag is None:
            return self
        if self.ask_directly is None:
            raise ValueError(
                f"Template {self.name!r} asks for reasoning and has no 'ask_directly': write what it "
                "asks for into 'ask', put {ask} where that stood, and give 'ask_directly' beside it."
            )
        return replace(self, ask=self.ask_directly, ask_directly=None, think_tag=None)

    @property
    def hash(self) -> str:
        """A hash of everything that a prompt is made of, except the name."""
        parts = {key: value for key, value in asdict(self).items() if key != "name"}
        # templates had no such text at first: the hashes in records were made without it
        if not self.actions:
            del parts["actions"]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def read_response(self, response: str) -> ParsedResponse:
        """The action in a raw response, and what is wrong with it (see ``parse_response``)."""
        return parse_response(response, self.action_tag, self.think_tag, self.own_tags)

    def response_for(self, action: str) -> str:
        """The response that a flawless agent would write to take ``action``, with an empty thought."""
        think = f"<{self.think_tag}></{self.think_tag}>" if self.think_tag else ""
        return think + (
            action if self.own_tags else f"<{self.action_tag}>{action}</{self.action_tag}>"
        )

    @property
    def closing_tags(self) -> list[str]:
        """The texts at which a response is complete."""
        return [f"</{tag}>" for tag in self.own_tags or (self.action_tag,)]

    def render_first(
        self, instruction: str, observation: str, admissible: Sequence[str] | None
    ) -> str:
        """The prompt before the first action, in both modes."""
        return self._fill(self.first, admissible, instruction=instruction, observation=observation)

    def render_step(
        self,
        instruction: str,
        history: Sequence[HistoryItem],
        history_length: int | None,
        observation: str,
        admissible: Sequence[str] | None,
    ) -> str:
        """The prompt after some actions, window mode.

        Args:
            history: all past steps, oldest first.
            history_length: how many of them to show; ``None``: all.
        """
        shown = len(history) if history_length is None else min(history_length, len(history))
        start, opening = len(history) - shown, self.opening
        items = [
            fill(
                self.history_item,
                observation=opening if number == 1 and opening is not None else item.observation,
                action=item.action,
                number=str(number),
            )
            for number, item in enumerate(history[start:], start=start + 1)
        ]
        return self._fill(
            self.step,
            admissible,
            instruction=instruction,
            observation=observation,
            history="\n".join(items),
            history_length=str(shown),
            step_count=str(len(history)),
            current_step=str(len(history) + 1),
        )

    def render_turn(
        self, instruction: str, observation: str, admissible: Sequence[str] | None, step: int
    ) -> str:
        """The message after an action, conversation mode; ``step`` counts from 0."""
        texts = {"instruction": instruction, "observation": observation}
        return self._fill(self.turn, admissible, **texts, current_step=str(step + 1))

    def turn_span(
        self, instruction: str, observation: str, admissible: Sequence[str] | None, step: int
    ) -> tuple[int, int]:
        """The place of the observation in ``render_turn``'s text: [start, end) in characters."""
        head = self.turn[: self.turn.index("{observation}")]
        texts = {"instruction": instruction, "current_step": str(step + 1)}
        filled = self._fill(head, admissible, **texts)
        return len(filled), len(filled) + len(observation)

    def _fill(self, text: str, actions: Sequence[str] | None, **values: str) -> str:
        """Fills a text's slots, also those for the admissible actions and for how to answer."""
        if actions is None or "actions}" not in text:  # neither slot: nothing to list
            return fill(text, ask=self.ask, admissible_actions="", actions="", **values)
        lines = actions if self.admissible_format == "list" else group_numbered(actions)
        listed = "\n".join(lines)
        shown = fill(self.actions, admissible_actions=listed)
        return fill(text, ask=self.ask, admissible_actions=listed, actions=shown, **values)


def fill(text: str, **values: str) -> str:
    """Fills ``{name}`` slots in one pass: what a value contains is never taken for a slot.

    >>> fill("{a} and {b}", a="{b}", b="x")
    '{b} and x'
    """
    return _SLOT.sub(lambda match: values.get(match.group(1), match.group(0)), text)


def group_numbered(actions: Sequence[str]) -> list[str]:
    """Joins actions that differ only in a final number: ``go to shelf 1 2 3``. Keeps first places.

    >>> group_numbered(["go to bed 1", "look", "go to bed 2"])
    ['go to bed 1 2', 'look']
    """
    lines: dict[tuple[str, bool], list[str]] = {}
    for action in actions:
        match = _NUMBERED.match(action)
        stem, number = match.groups() if match else (action, "")
        lines.setdefault((stem, bool(match)), []).append(number)
    return [
        " ".join([stem, *sorted(numbers, key=int)]) if numbered else stem
        for (stem, numbered), numbers in lines.items()
    ]


def builtin_templates() -> list[str]:
    """Names of the templates that come with the package."""
    return sorted(Path(p.name).stem for p in _TEMPLATES.iterdir())
