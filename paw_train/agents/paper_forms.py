"""The form in which ReAct writes episodes: one for each kind of environment.

Source: Yao et al., arXiv 2210.03629, appendix C: the definitions of thought, action and observation,
the actions, the number of examples in a prompt and of lines in an episode. The words of the
prompts are this project's own. Deviations are listed in docs/baselines.md.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from paw_train.agents.examples import Example, is_milestone, shortened, thought

NOTHING_MORE = "OK."
"""the reply to a thought"""


@dataclass(frozen=True, slots=True)
class Line:
    """A line that the model wrote in one turn."""

    kind: Literal["thought", "action", "lookup", "unfinished"]
    """``unfinished``: a thought without the action that belongs to it"""
    text: str
    """the thought; the environment's action (empty: there was none); the word to look up"""


class Form(ABC):
    """A way of writing thoughts, actions and observations."""

    name: ClassVar[str]
    rules: ClassVar[str]
    """beginning of the first prompt"""
    lines: ClassVar[int]
    """most turns of the model in an episode, thoughts included"""
    examples: ClassVar[int]
    by_type: ClassVar[bool]
    """whether a task's examples are of its own type"""
    stop: ClassVar[tuple[str, ...]]
    """where a turn of the model ends"""
    observes_first: ClassVar[bool] = True
    """whether an example shows the observation before its first step"""
    unfinished: ClassVar[str] = ""
    """what asks for the action that a thought lacks; ``{number}`` counts turns from 1"""

    @abstractmethod
    def start(self, instruction: str, observation: str) -> str:
        """The task, as it follows the examples."""

    @abstractmethod
    def read(self, text: str) -> Line:
        """The line that the model wrote in a turn."""

    def observation(self, text: str, number: int) -> str:
        """An observation as the model is shown it; ``number`` is that of the turn before it, from 1."""
        return text

    def write(self, example: Example, characters: int) -> str:
        """An example as a transcript; longer observations and instructions are shortened."""
        task = shortened(example.instruction, characters)
        opened = bool(example.steps) and self.observes_first
        first = example.steps[0].observation if opened else ""
        lines = [self.start(task, shortened(first, characters))]
        for number, step in enumerate(example.steps):
            if number:
                lines.append(self.observation(shortened(step.observation, characters), number))
            lines += self.step(task, step.action, number)
        return "\n".join(lines)

    @abstractmethod
    def step(self, task: str, action: str, number: int) -> list[str]:
        """The lines of a step of an example, with the thought before its action; counted from 0."""


class Commands(Form):
    """ALFWorld, and other environments with commands: a line is a command or a thought."""

    name = "commands"
    rules = (
        "You act in a simulated world by typing commands, one line at a time, until the task is done. A "
        "line that begins with 'think:' is a thought of yours: it changes nothing, and the world says OK. "
        "Use thoughts to plan, and to keep track of what is done and what is next. Any other line is a "
        "command; the world answers with what happens."
    )
    lines = 50
    examples = 2
    by_type = True
    stop = ("\n",)

    def start(self, instruction: str, observation: str) -> str:
        return f"{observation}\nYour task is to: {instruction}".strip()

    def read(self, text: str) -> Line:
        line = text.strip().removeprefix(">").strip()
        if line.lower().startswith("think:"):
            return Line("thought", line[len("think:") :].strip())
        return Line("action", line)

    def step(self, task: str, action: str, number: int) -> list[str]:
        if number and not is_milestone(action):
            return [f"> {action}"]
        return [f"> think: {thought(task, action, number)}", NOTHING_MORE, f"> {action}"]


class Shop(Form):
    """WebShop: search, click, and thoughts written like actions."""

    name = "shop"
    rules = (
        "You shop in an online store for what a customer wants, and act by one line at a time: "
        "search[words] looks for products, click[thing] follows a button, an option or a product of the "
        "page, and think[thought] writes down a thought, which changes nothing. Buy the product that fits "
        "the instruction, with the right options and below its price."
    )
    lines = 15
    examples = 1
    by_type = False
    stop = ("\n",)

    def start(self, instruction: str, observation: str) -> str:
        return f"Instruction: {instruction}\nObservation:\n{observation}".strip()

    def observation(self, text: str, number: int) -> str:
        return text if text == NOTHING_MORE else f"Observation:\n{text}"

    def read(self, text: str) -> Line:
        line = text.strip().removeprefix("Action:").strip()
        if line.lower().startswith("think["):
            return Line("thought", line[len("think[") :].removesuffix("]").strip())
        return Line("action", line)

    def step(self, task: str, action: str, number: int) -> list[str]:
        written = f"Action: {action}"
        if not number:
            return [written]
        return [f"Action: think[{thought(task, action, number)}]", NOTHING_MORE, written]


_ACTION = re.compile(r"Action\s*\d*\s*:\s*(search|lookup|finish)\s*\[(.*?)\]\s*$", re.I | re.M)
_BARE = re.compile(r"\s*(search|lookup|finish)\s*\[(.*?)\]", re.I)
_TAGGED = re.compile(r"<(search|answer)>(.*)</\1>", re.DOTALL)


class Questions(Form):
    """Question answering: numbered thoughts and actions, which search, look up and finish."""

    name = "questions"
    rules = (
        "Answer a question in numbered turns. In each turn write a thought about what you know and need "
        "('Thought 1: ...') and, on the next line, one action ('Action 1: ...'), which is one of three: "
        "Search[words] finds passages of an encyclopedia; Lookup[word] gives the next sentence of the "
        "passages found last that has the word in it; Finish[answer] ends with the answer, which is as "
        "short as possible."
    )
    lines = 7
    examples = 6
    by_type = False
    stop = ("\nObservation",)
    observes_first = False
    unfinished = "Write only the action that follows from this thought, as 'Action {number}: ...'."

    def start(self, instruction: str, observation: str) -> str:
        return f"Question: {instruction}\n{observation}".strip()

    def observation(self, text: str, number: int) -> str:
        return f"Observation {number}: {text}"

    def read(self, text: str) -> Line:
        found = _ACTION.search(text) or _BARE.match(text)
        if found is None:
            return Line("unfinished", text.strip())
        verb, inside = found.group(1).lower(), found.group(2).strip()
        if verb == "lookup":
            return Line("lookup", inside)
        tag = "search" if verb == "search" else "answer"
        return Line("action", f"<{tag}>{inside}</{tag}>" if inside else "")

    def step(self, task: str, action: str, number: int) -> list[str]:
        found, turn = _TAGGED.fullmatch(action), number + 1
        named = action
        if found is not None:
            named = f"{'Search' if found[1] == 'search' else 'Finish'}[{found[2]}]"
        return [f"Thought {turn}: {thought(task, action, turn)}", f"Action {turn}: {named}"]


class Lookup:
    """The place in the passages found last from which ``Lookup`` reads on."""

    def __init__(self, text: str) -> None:
        inside = re.sub(r"</?information>", " ", text)
        self._sentences = [s.strip() for s in re.split(r"(?<=[.!?])\s+|\n+", inside) if s.strip()]
        self._word, self._found, self._next = "", list[str](), 0

    def next(self, word: str) -> str:
        """The next sentence with a word; a new word is looked for from the beginning."""
        if word.lower() != self._word:
            self._word, self._next = word.lower(), 0
            self._found = [s for s in self._sentences if word.lower() in s.lower()]
        if self._next >= len(self._found) or not word:
            return "No more results."
        self._next += 1
        return f"(Result {self._next} / {len(self._found)}) {self._found[self._next - 1]}"


FORMS: dict[str, type[Form]] = {form.name: form for form in (Commands, Questions, Shop)}
"""the forms by name"""


def form_for(own_tags: Sequence[str], admissible: Sequence[str] | None) -> Form:
    """The form that goes with an environment, by what its actions look like."""
    if {"search", "answer"} <= set(own_tags):
        return Questions()
    if any(action.startswith("search[") for action in admissible or ()):
        return Shop()
    return Commands()
