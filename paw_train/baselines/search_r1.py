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
from paw_train.baselines.protocol import Answer, Responder, TurnAgent, View
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.policy import Message, Request, Response, Session, response_seed
from paw_train.settings.base import Group
from paw_train.settings.ranges import Positive

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
    """Of ``search_r1``."""

    turns: Positive = 4
    """most turns of the model; the environment's own ``max_steps`` holds as well"""
    information_tokens: Positive = 500
    """longer search results are truncated, where the model's tokenizer is known"""


class SearchR1Agent(TurnAgent):
    """Searches and answers in one growing text, as models of Search-R1 are trained to."""

    name = "search_r1"
    own_form = True
    Settings = SearchR1Settings

    def interface(self, template: PromptTemplate) -> dict[str, Any]:
        """Actions are searches and answers, with reasoning or without.

        Raises:
            ValueError: the environment has other actions.
        """
        if not set(_TAGS) <= set(template.own_tags):
            raise ValueError(
                "The agent 'search_r1' needs an environment whose actions are <search> and <answer>, such as "
                f"paw_gym/SearchQA-v0; the template {template.name!r} has others."
            )
        return {"template": template.without_reasoning(), "mode": "window"}

    def prompts(self) -> list[str]:
        """The texts that prompts are made of."""
        return [_PROMPT, _BACK, _REFUSED]

    def responder(self, seed: int) -> Responder:
        """See ``TurnAgent.responder``."""
        return _SearchR1Responder(self, seed)


@dataclass(slots=True)
class Text:
    """One episode's growing text."""

    prompt: str
    ids: list[int] = field(default_factory=list)
    """of the prompt and the text, where the policy has a tokenizer"""
    messages: list[Message] = field(default_factory=list)
    """where it has none: what came back is then a user's message"""
    response: str = ""
    """the model's last part"""


class _SearchR1Responder:
    """Keeps the texts of one batch of episodes."""

    def __init__(self, agent: SearchR1Agent, seed: int) -> None:
        self.settings: SearchR1Settings = agent.settings
        self.policy, self.rollout, self.seed = agent.policy, agent.rollout, seed
        self._texts: dict[str, Text] = {}
        self._session: Session | None = None

    def __call__(self, views: Sequence[View]) -> list[Answer]:
        answers: dict[str, Answer] = {}
        going = []
        for view in views:
            reason = self._ended(view)
            if reason is None:
                going.append(view)
            else:
                answers[view.episode] = Answer(stops=True, notes={"ended": reason})
        requests = [self._request(view) for view in going]
        if requests and self._session is None:
            sampling = self.rollout.sampling([f"</{tag}>" for tag in _TAGS])
            self._session = self.policy.session(sampling, True, self.rollout.prefill_tokens)
        responses = self._session.respond(requests) if self._session else []
        for view, response in zip(going, responses, strict=True):
            answers[view.episode] = self._answer(view, response)
        return [answers[view.episode] for view in views]

    def _ended(self, view: View) -> str | None:
        """Why the text goes on no further, or ``None``."""
        text = self._texts.get(view.episode)
        room = self.rollout.max_context_tokens - self.rollout.max_response_tokens
        if text is not None and len(text.ids) > room:
            return "context full"
        return "turns used up" if len(view.history) >= self.settings.turns else None

    def _request(self, view: View) -> Request:
        chat, text = self.policy.chat, self._texts.get(view.episode)
        if text is None:
            text = self._begin(view)
        else:
            self._continue(text, view)
        number = response_seed(self.seed, view.episode, len(view.history))
        return Request(view.episode, number, text.messages, list(text.ids) if chat else None)

    def _begin(self, view: View) -> Text:
        prompt = fill(_PROMPT, question=view.instruction)
        chat = self.policy.chat
        text = Text(
            prompt, chat.first(prompt) if chat else [], [{"role": "user", "content": prompt}]
        )
        self._texts[view.episode] = text
        return text

    def _continue(self, text: Text, view: View) -> None:
        """Continues the text with the environment's observation, or with a note on an invalid action."""
        refused = "<information>" not in view.observation
        back = _REFUSED if refused else fill(_BACK, found=self._truncated(view.observation))
        if self.policy.chat:
            text.ids += self.policy.chat.content(back)
            written = text.messages[-1]["content"] if len(text.messages) > 1 else ""
            text.messages = [
                {"role": "user", "content": text.prompt},
                {"role": "assistant", "content": f"{written}{back}"},
            ]
        else:
            text.messages = [*text.messages, {"role": "user", "content": back.strip()}]

    def _truncated(self, found: str) -> str:
        chat = self.policy.chat
        ids = chat.content(found) if chat else []
        if chat is None or len(ids) <= self.settings.information_tokens:
            return found
        return f"{chat.raw(ids[: self.settings.information_tokens])}\n</information>"

    def _answer(self, view: View, response: Response) -> Answer:
        if response.error is not None:
            return Answer(error=response.error)
        text, chat = self._texts[view.episode], self.policy.chat
        notes: dict[str, Any] = {} if view.history else {"prompt": text.prompt}
        if chat:
            # the turn goes on: an end of turn that the model has written is not part of it
            text.ids += _without_end(chat, response.ids)
            written = text.messages[-1]["content"] if len(text.messages) > 1 else ""
            text.messages = [
                {"role": "user", "content": text.prompt},
                {"role": "assistant", "content": f"{written}{response.text}"},
            ]
        else:
            text.messages = [*text.messages, {"role": "assistant", "content": response.text}]
        return Answer(response.text, notes)


def _without_end(chat: ChatFormat, ids: Sequence[int]) -> list[int]:
    return list(ids[:-1] if ids and ids[-1] in chat.end_ids else ids)
