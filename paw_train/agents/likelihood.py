"""The admissible action to which the model assigns the highest likelihood.

The response is never sampled, so it cannot be malformed and the action cannot be inadmissible: the
result measures which action a model prefers, not whether it keeps to a format. Sources: scoring actions by
the log-probability of their tokens, SayCan (Ahn et al., arXiv 2204.01691) and GLAM (Carta et al., arXiv
2302.02662); dividing by their number, TWOSOME (Tan et al., arXiv 2401.14151).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from paw_gym.internals.replies import fill_blank
from paw_gym.prompts import PromptTemplate
from paw_train.agents.dialogue import Dialogues
from paw_train.agents.examples import ExampleSource
from paw_train.agents.protocol import AGENTS, Answer, Responder, TurnAgent, View
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.policy import Response, ScoreRequest, Scores, ScoringSession
from paw_train.settings.base import Group

_DIGITS = 4
"""decimals of a score: smaller differences come from the rounding of the model's arithmetic, and are ties"""
_FIRST = """\
You act in a text environment, one action at a time, to solve a task. Answer every observation with your \
next action alone, between <action> and </action>.

Task: {instruction}

{observation}"""
_TURN = "{observation}"
_STEP = "Task: {instruction}\n{history}\n{observation}"
_ITEM = "{observation}\n{action}"


class LikelihoodSettings(Group):
    """Settings of ``likelihood``."""

    normalise: Literal["tokens", "characters", "none"] = "tokens"
    """what an action's log-probability is divided by: its ``tokens``, its ``characters``, or ``none``:
    nothing, which favours short actions; only then the token that ends the action counts as well, as
    ``open box`` would never lose to ``open box 2`` without it"""
    prompt: Literal["environment", "bare"] = "environment"
    """``environment``: its own prompt, in the configured mode; ``bare``: one dialogue of observations
    and actions that lists no actions, which is the fastest"""


@AGENTS.register("likelihood")
class LikelihoodAgent(TurnAgent):
    """Takes the admissible action with the highest log-probability per token, always.

    Of equal ones, the first listed wins; temperature has no effect. If an action has words to fill in
    (WebShop's ``search[...]``), they come from the task.
    """

    name = "likelihood"
    own_form = True
    samples = False
    Settings = LikelihoodSettings

    def check(self) -> None:
        self.policy.scoring(False)  # type: ignore[attr-defined]

    def interface(self, template: PromptTemplate) -> dict[str, Any]:
        if self.settings.prompt == "environment":
            return {"template": template.without_reasoning()}
        bare = PromptTemplate(_FIRST, _STEP, _ITEM, _TURN, "bare", think_tag=None)
        return {"template": bare, "mode": "conversation"}

    def prepare(self, source: ExampleSource) -> None:
        env = source.make_env()
        try:
            _, info = env.reset(seed=0)
            name = env.env_id
        finally:
            env.close()
        if info["admissible_actions"] is None:
            raise ValueError(
                f"The agent 'likelihood' chooses among listed actions, and {name} lists none. Use an "
                "agent that writes its action, such as plain or react."
            )

    def responder(self, seed: int) -> Responder:
        return _LikelihoodResponder(self)


@dataclass(frozen=True, slots=True)
class Choice:
    """An admissible action as a response of the model."""

    action: str
    ids: list[int]
    """tokens that are scored"""

    def score(self, logprobs: Sequence[float], normalise: str) -> float:
        """The log-probability, divided according to ``normalise``, and rounded."""
        total = math.fsum(logprobs)
        if normalise == "tokens":
            total /= len(logprobs)
        elif normalise == "characters":
            total /= len(self.action)
        return round(total, _DIGITS)


@dataclass(frozen=True, slots=True)
class Offer:
    """The choices of one step: responses that differ in their action alone."""

    opening: list[int]
    """tokens before the action"""
    choices: list[Choice]

    @classmethod
    def of(cls, chat: ChatFormat, view: View, normalise: str) -> Offer:
        """The admissible actions in the form of answer that the template asks for.

        Each piece is tokenised on its own, so that it is known by construction which tokens are an
        action's.
        """
        actions = dict.fromkeys(fill_blank(a, view.instruction) for a in view.admissible or ())
        if not actions:
            raise ValueError(f"Task {view.task_id}: the environment lists no admissible action.")
        opening, _, closing = view.template.response_for("\0").partition("\0")
        end = chat.content(closing)[:1] if normalise == "none" else []
        choices = [Choice(action, [*chat.content(action), *end]) for action in actions]
        return cls(chat.content(opening), choices)


class _LikelihoodResponder:
    """Chooses for one batch of episodes; in a conversation, keeps the dialogues."""

    def __init__(self, agent: LikelihoodAgent) -> None:
        self.agent, self.policy, self.rollout = agent, agent.policy, agent.rollout
        assert self.policy.chat is not None  # whatever scores has a tokenizer
        self.chat = self.policy.chat
        self._dialogues = Dialogues(self.policy, self.rollout)
        self._growing: ScoringSession | None = None

    def __call__(self, views: Sequence[View]) -> list[Answer]:
        normalise = self.agent.settings.normalise
        answers: dict[str, Answer] = {}
        asked, requests = [], []
        for view in views:
            try:
                offer = Offer.of(self.chat, view, normalise)
                ids = [*self._context(view), *offer.opening]
                requests.append(ScoreRequest(view.episode, ids, [c.ids for c in offer.choices]))
                asked.append((view, offer))
            except ValueError as error:  # nothing to choose from, or the task alone is too long
                answers[view.episode] = Answer(error=str(error))
        found = self._session(views[0].env.mode == "conversation").score(requests)
        for (view, offer), scores in zip(asked, found, strict=True):
            answers[view.episode] = self._answer(view, offer, scores)
        return [answers[view.episode] for view in views]

    def _context(self, view: View) -> Sequence[int]:
        if view.env.mode == "window":
            limit = self.rollout.max_prompt_tokens
            return self.chat.first_within(view.prompt, view.instruction, limit)[0]
        dialogue = self._dialogues.add_message(view.episode, view.prompt)
        reason = self._dialogues.too_long(view.episode)
        if reason is not None:
            raise ValueError(reason)
        return dialogue.ids or []

    def _session(self, growing: bool) -> ScoringSession:
        """For dialogues a session that stays, for prompts that stand alone a new one."""
        if growing and self._growing is not None:
            return self._growing
        session: ScoringSession = self.policy.scoring(growing)  # type: ignore[attr-defined]
        self._growing = session if growing else None
        return session

    def _answer(self, view: View, offer: Offer, scores: Scores) -> Answer:
        if scores.error is not None:
            return Answer(error=scores.error)
        normalise = self.agent.settings.normalise
        rated = {
            choice.action: choice.score(logprobs, normalise)
            for choice, logprobs in zip(offer.choices, scores.logprobs, strict=True)
        }
        # max takes the first of equals, and the actions are in the environment's order
        action = max(rated, key=lambda name: rated[name])
        text = view.template.response_for(action)
        notes: dict[str, Any] = {"scores": rated}
        if view.episode in self._dialogues:
            dialogue = self._dialogues[view.episode]
            notes |= dialogue.notes
            dialogue.add_response(self._response(offer, action, text))
        return Answer(text, notes)

    def _response(self, offer: Offer, action: str, text: str) -> Response:
        """The chosen response in the tokens that were scored."""
        closing = text.rpartition(action)[2]
        ids = [*offer.opening, *self.chat.content(action), *self.chat.content(closing)]
        return Response(ids, text=text)
