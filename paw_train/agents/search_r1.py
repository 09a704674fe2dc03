"""Search-R1's way of asking: one growing text of thoughts, searches, what came back, and an answer.

Source: Jin et al., arXiv 2503.09516, section 3: <think>, <search>, <information> and <answer> in the
model's own turn, which is continued after each search; top-3 passages; at most four turns. The words of
the prompt are this project's own. Deviations are listed in docs/baselines.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paw_gym.prompts import PromptTemplate, fill
from paw_train.agents.protocol import AGENTS, Answer, Responder, TurnAgent, View
from paw_train.rollouts.policy import Message, Request, Response, Session, response_seed
from paw_train.settings.base import Group, Positive

_PROMPT = """\
Answer a question with the help of a search engine. Whenever something new is known, reason about it first \
between <think> and </think>. If you then lack knowledge, search for it by <search> query </search>; what \
is found comes back between <information> and </information>, and you go on from there. You may search \
more than once. When you need no more knowledge, write the answer, without an explanation, between \
<answer> and </answer>. For example: <answer> Lisbon </answer>.
Question: {question}
"""
_BACK = "\n\n{found}\n\n"
_REFUSED = (
    "\nThat was no valid action. To search, I write the query between <search> and </search>; to answer, I "
    "write the answer between <answer> and </answer>. I try again.\n"
)
_TAGS = ("search", "answer")


class SearchR1Settings(Group):
    """Settings of ``search_r1``."""

    turns: Positive = 4
    """most turns of the model; the environment's own ``max_steps`` holds as well"""
    information_tokens: Positive = 500
    """longer search results are truncated, if the model's tokenizer is known"""


@AGENTS.register("search_r1")
class SearchR1Agent(TurnAgent):
    """Searches and answers in one growing text, as models of Search-R1 are trained to."""

    name = "search_r1"
    own_form = True
    Settings = SearchR1Settings

    def interface(self, template: PromptTemplate) -> dict[str, Any]:
        """Actions are searches and answers, with reasoning or without."""
        if not set(_TAGS) <= set(template.own_tags):
            raise ValueError(
                "The agent 'search_r1' needs an environment whose actions are <search> and <answer>, such as "
                f"paw_gym/SearchQA-v0; the template {template.name!r} has others."
            )
        return {"template": template.without_reasoning(), "mode": "window"}

    def prompts(self) -> list[str]:
        return [_PROMPT, _BACK, _REFUSED]

    def responder(self, seed: int) -> Responder:
        return _SearchR1Responder(self, seed)


@dataclass(slots=True)
class Text:
    """One episode's growing text."""

    prompt: str
    ids: list[int] | None
    """of the prompt and the text; ``None``: the policy has no tokenizer"""
    messages: list[Message] = field(default_factory=list)
    """the prompt and the text; without a tokenizer, what came back is a user's message"""

    def grow(self, role: str, words: str, ids: Sequence[int]) -> None:
        """Appends what the model wrote (``assistant``), or what came back (``user``)."""
        if self.ids is None:
            said = words.strip() if role == "user" else words
            self.messages = [*self.messages, {"role": role, "content": said}]
            return
        self.ids += ids
        written = self.messages[1]["content"] if len(self.messages) > 1 else ""
        self.messages = [self.messages[0], {"role": "assistant", "content": f"{written}{words}"}]


class _SearchR1Responder:
    def __init__(self, agent: SearchR1Agent, seed: int) -> None:
        self.settings: SearchR1Settings = agent.settings
        self.policy, self.rollout, self.seed = agent.policy, agent.rollout, seed
        self._texts: dict[str, Text] = {}
        self._session: Session | None = None

    def __call__(self, views: Sequence[View]) -> list[Answer]:
        answers: dict[str, Answer] = {}
        going, requests = [], []
        for view in views:
            if len(view.history) >= self.settings.turns:
                answers[view.episode] = Answer(stops=True, notes={"ended": "turns used up"})
                continue
            try:
                requests.append(self._request(view))
                going.append(view)
            except ValueError as e:
                answers[view.episode] = self._answer(view, Response(error=str(e), overflow=True))
        if requests and self._session is None:
            sampling = self.rollout.sampling([f"</{tag}>" for tag in _TAGS])
            self._session = self.policy.session(sampling, True)
        responses = self._session.respond(requests) if self._session else []
        for view, response in zip(going, responses, strict=True):
            answers[view.episode] = self._answer(view, response)
        return [answers[view.episode] for view in views]

    def _request(self, view: View) -> Request:
        """The next request; raises ``ValueError`` if its text is too long."""
        chat, text = self.policy.chat, self._texts.get(view.episode)
        limit = self.rollout.max_prompt_tokens
        if text is None:
            prompt = fill(_PROMPT, question=view.instruction)
            first: list[Message] = [{"role": "user", "content": prompt}]
            within = chat.first_within(prompt, view.instruction, limit)[0] if chat else None
            text = Text(prompt, within, first)
            self._texts[view.episode] = text
        else:
            refused = "<information>" not in view.observation
            back = _REFUSED if refused else fill(_BACK, found=self._truncated(view.observation))
            text.grow("user", back, chat.content(back) if chat else ())
        if text.ids is not None and len(text.ids) > limit:
            raise ValueError("The context is full.")
        ids = None if text.ids is None else list(text.ids)
        number = response_seed(self.seed, view.episode, len(view.history))
        return Request(view.episode, number, text.messages, ids)

    def _truncated(self, found: str) -> str:
        chat = self.policy.chat
        ids = chat.content(found) if chat else []
        if chat is None or len(ids) <= self.settings.information_tokens:
            return found
        return f"{chat.raw(ids[: self.settings.information_tokens])}\n</information>"

    def _answer(self, view: View, response: Response) -> Answer:
        if response.overflow and view.history:  # the one text that is never shortened
            return Answer(stops=True, notes={"ended": "context full"})
        if response.error is not None:
            return Answer(error=response.error)
        text, ids = self._texts[view.episode], list(response.ids)
        notes: dict[str, Any] = {} if view.history else {"prompt": text.prompt}
        # the turn goes on: an end of turn that the model has written is not part of it
        if self.policy.chat and ids and ids[-1] in self.policy.chat.end_ids:
            ids.pop()
        text.grow("assistant", response.text, ids)
        return Answer(response.text, notes)
