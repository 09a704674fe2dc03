"""ReAct by the protocol of its paper, as closely as other prompts and other environments allow.

Source: Yao et al., arXiv 2210.03629. In contrast to ``react``, the prompt does not list the admissible
actions, and the model writes thoughts as lines of their own whenever it likes, and sees the paper's number of
examples, of the task's own type if the paper has that. Deviations are listed in docs/baselines.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from paw_gym.internals.replies import split_thought
from paw_gym.prompts import PromptTemplate, fill
from paw_train.agents.dialogue import Dialogues
from paw_train.agents.examples import ExampleSource, WrittenExample, matching, read_examples
from paw_train.agents.paper_forms import (
    FORMS,
    NOTHING_MORE,
    Commands,
    Form,
    Line,
    Lookup,
    form_for,
)
from paw_train.agents.protocol import AGENTS, Answer, Responder, TurnAgent, View
from paw_train.rollouts.policy import Response, response_seed
from paw_train.settings.base import Count, Group, Positive

_EXAMPLES = "Here {are} of how it is done:\n\n{examples}"
_TASK = "Here is your task.\n\n{task}"
_CANDIDATES, _CANDIDATES_OF_TYPES = 12, 40
"""expert episodes looked through for each example; the second if every type of task must be among them"""


class ReactPaperSettings(Group):
    """Settings of ``react_paper``."""

    examples: Count | None = None
    """examples in a prompt; null: the paper's number (2 for commands, 6 for questions, 1 for the shop)"""
    examples_file: str | None = None
    """TOML file with examples of your own (docs/baselines.md); null: the environment's expert makes them"""
    example_seed: int = 0
    """of the choice of the expert's examples"""
    observation_chars: Positive = 1000
    """longer observations and instructions in the expert's examples are shortened in the middle"""
    lines: Positive | None = None
    """most turns of the model in an episode, thoughts included; null: the paper's (50, 7, 15)"""
    form: Literal["commands", "questions", "shop"] | None = None
    """how actions are written: ``commands``, ``questions`` or ``shop``; null: the form that fits the
    environment's actions"""


@AGENTS.register("react_paper")
class ReactPaperAgent(TurnAgent):
    """Thinks in lines of its own and acts without a list of actions, after examples of the task's type."""

    name = "react_paper"
    own_form = True
    Settings = ReactPaperSettings

    def check(self) -> None:
        form = self.settings.form
        self.form: Form = FORMS[form]() if form else Commands()
        self.examples: tuple[WrittenExample, ...] = ()
        self.rules = self.form.rules

    @property
    def example_count(self) -> int:
        count = self.settings.examples
        return self.form.examples if count is None else int(count)

    @property
    def line_count(self) -> int:
        return int(self.settings.lines or self.form.lines)

    def interface(self, template: PromptTemplate) -> dict[str, Any]:
        """Responses are read without reasoning blocks: thoughts never reach the environment."""
        return {"template": template.without_reasoning(), "mode": "window"}

    def prepare(self, source: ExampleSource) -> None:
        env = source.make_env()
        try:
            _, info = env.reset(seed=0)
            if self.settings.form is None:
                self.form = form_for(env.template.own_tags, info["admissible_actions"])
        finally:
            env.close()
        self.rules = self.form.rules
        if self.example_count == 0:
            return
        if self.settings.examples_file is not None:
            given, rules = read_examples(self.settings.examples_file)
            self.examples, self.rules = tuple(given), rules or self.form.rules
        else:
            self.examples = self._made(source)

    def _made(self, source: ExampleSource) -> tuple[WrittenExample, ...]:
        s, count = self.settings, self.example_count
        share = _CANDIDATES_OF_TYPES if self.form.by_type else _CANDIDATES
        solved = source.solved(share * count, s.example_seed)
        if not solved:
            raise source.none_found()
        if not self.form.by_type:
            texts = [self.form.write(e, s.observation_chars) for e in solved[:count]]
            return tuple(WrittenExample(text=text) for text in texts)
        kept: dict[str, list[WrittenExample]] = {}
        for example in solved:
            of_type = kept.setdefault(example.task_type, [])
            if len(of_type) < count:
                text = self.form.write(example, s.observation_chars)
                of_type.append(WrittenExample(text=text, type=example.task_type))
        return tuple(e for texts in kept.values() for e in texts)

    def prompts(self) -> list[str]:
        own = [self.rules, _EXAMPLES, _TASK, self.form.unfinished]
        return [*own, *(f"{e.type}: {e.text}" for e in self.examples)]

    def preface(self, task_type: str) -> str:
        """The text before a task."""
        parts = [self.rules]
        given = self.settings.examples_file is not None
        texts = matching(self.examples, task_type, self.example_count, strict=given)
        if texts:
            are = "is an example" if len(texts) == 1 else f"are {len(texts)} examples"
            parts.append(fill(_EXAMPLES, are=are, examples="\n\n".join(texts)))
        return "\n\n".join(parts)

    def responder(self, seed: int) -> Responder:
        return _ReactPaperResponder(self, seed)


@dataclass(slots=True)
class Talk:
    """One episode's dialogue."""

    preface: str
    lines: int = 0
    """turns of the model so far"""
    calls: int = 0
    """requests so far"""
    reply: str | None = None
    """the next message to the model, if it is not the environment's observation"""
    asked_again: bool = False
    """whether the last line was a thought that lacked its action"""
    said: list[list[str]] = field(default_factory=list)
    """lines since the last action and their replies"""
    lookup: Lookup = field(default_factory=lambda: Lookup(""))


class _ReactPaperResponder:
    """Keeps the dialogues of one batch of episodes."""

    def __init__(self, agent: ReactPaperAgent, seed: int) -> None:
        self.agent, self.form, self.seed = agent, agent.form, seed
        self._dialogues = Dialogues(agent.policy, agent.rollout)
        self._talks: dict[str, Talk] = {}

    def __call__(self, views: Sequence[View]) -> list[Answer]:
        answers: dict[str, Answer] = {}
        asking: list[View] = []
        for view in views:
            talk = self._talks.get(view.episode) or self._begin(view)
            if view.history and talk.reply is None and talk.lines >= self.agent.line_count:
                answers[view.episode] = self._stop(talk)
            else:
                self._add_message(talk, view)
                asking.append(view)
        seeds = {
            view.episode: response_seed(self.seed, view.episode, self._talks[view.episode].calls)
            for view in asking
        }
        sampling = self.agent.rollout.sampling(self.form.stop)
        responses = self._dialogues.ask(seeds, sampling) if seeds else []
        for view, response in zip(asking, responses, strict=True):
            answers[view.episode] = self._answer(view, response)
        return [answers[view.episode] for view in views]

    def _stop(self, talk: Talk) -> Answer:
        notes: dict[str, Any] = {"ended": "lines used up"}
        if talk.said:
            notes["said_last"] = talk.said
        return Answer(stops=True, notes=notes)

    def _begin(self, view: View) -> Talk:
        preface = self.agent.preface(view.task_type)
        talk = self._talks[view.episode] = Talk(preface)
        task = self.form.start(view.instruction, view.observation)
        talk.reply = f"{preface}\n\n{fill(_TASK, task=task)}"
        return talk

    def _add_message(self, talk: Talk, view: View) -> None:
        if talk.reply is None:
            talk.lookup = Lookup(view.observation)
            talk.reply = self.form.observation(view.observation, talk.lines)
        self._dialogues.add_message(view.episode, talk.reply)
        talk.reply = None

    def _answer(self, view: View, response: Response) -> Answer:
        if response.error is not None:
            return Answer(error=response.error)
        talk, dialogue = self._talks[view.episode], self._dialogues[view.episode]
        text = split_thought(response.text)[1]
        for stop in self.form.stop:
            text = text.partition(stop)[0]
        dialogue.add_response(replace(response, text=text))
        talk.calls += 1
        # a thought and the action that was asked for apart are one turn, as in the paper
        talk.lines += not talk.asked_again
        line = self.form.read(text)
        talk.asked_again = line.kind == "unfinished" and not talk.asked_again
        if line.kind in ("thought", "lookup") or talk.asked_again:
            return self._reply(talk, view, line, text)
        return self._act(talk, view, line.text if line.kind == "action" else "", text)

    def _reply(self, talk: Talk, view: View, line: Line, text: str) -> Answer:
        if line.kind == "thought":
            talk.reply = self.form.observation(NOTHING_MORE, talk.lines)
        elif line.kind == "lookup":
            talk.reply = self.form.observation(talk.lookup.next(line.text), talk.lines)
        else:
            talk.reply = fill(self.form.unfinished, number=str(talk.lines))
        talk.said.append([text, talk.reply])
        if talk.lines < self.agent.line_count or talk.asked_again:
            return Answer(acts=False)
        if view.history:
            return self._stop(talk)
        return self._act(talk, view, text, text)  # an episode must have a step: this one is refused

    def _act(self, talk: Talk, view: View, action: str, text: str) -> Answer:
        notes: dict[str, Any] = {"said": [*talk.said, [text]]}
        if not view.history:
            notes["preface"] = talk.preface
        notes |= self._dialogues[view.episode].notes
        talk.said, talk.reply = [], None
        return Answer(view.template.response_for(action), notes)
