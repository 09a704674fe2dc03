"""Counts what an agent asks of its policy, task by task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.policy import (
    Policy,
    Request,
    Response,
    Sampling,
    ScoreRequest,
    Scores,
    ScoringSession,
    Session,
    require_scoring,
)
from paw_train.settings.rollout import PREFILL_TOKENS


@dataclass(slots=True)
class Spent:
    """Model calls and their tokens; answers from a cache count like any others."""

    calls: int = 0
    prompt_tokens: int = 0
    """of all contexts, each whole as often as it was sent"""
    completion_tokens: int = 0
    counted: bool = True
    """false where the policy did not tell tokens, which then are a lower bound"""

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def task_of(episode: str) -> str:
    """The task id in an episode's name: what stands before the last ``#``."""
    return episode.rpartition("#")[0] or episode


class MeteredPolicy:
    """A policy that counts; otherwise it is the policy inside.

    Args:
        policy: answers.
    """

    def __init__(self, policy: Policy) -> None:
        self.inner = policy
        self._spent: dict[str, Spent] = {}

    @property
    def chat(self) -> ChatFormat | None:
        """The inner policy's."""
        return self.inner.chat

    @property
    def trainable(self) -> bool:
        """The inner policy's."""
        return self.inner.trainable

    def session(
        self, sampling: Sampling, growing: bool, prefill_tokens: int = PREFILL_TOKENS
    ) -> Session:
        """A session of the inner policy that counts."""
        return _MeteredSession(self, self.inner.session(sampling, growing, prefill_tokens))

    def scoring(self, growing: bool, prefill_tokens: int = PREFILL_TOKENS) -> ScoringSession:
        """A scoring session of the inner policy that counts.

        Raises:
            ValueError: the inner policy cannot score.
        """
        inner = require_scoring(self.inner).scoring(growing, prefill_tokens)
        return _MeteredScoring(self, inner)

    def take(self, task_id: str) -> Spent:
        """What a task has cost; the count starts anew."""
        return self._spent.pop(task_id, Spent())

    def count(self, request: Request, response: Response) -> None:
        """Adds one call."""
        if response.error is not None:
            return
        spent = self._spent.setdefault(task_of(request.episode), Spent())
        spent.calls += 1
        prompt, completion = self._tokens(request, response)
        spent.prompt_tokens += prompt
        spent.completion_tokens += completion

    def count_scores(self, request: ScoreRequest, scores: Scores) -> None:
        """Adds one call; everything that is scored was read, nothing was written."""
        if scores.error is not None:
            return
        spent = self._spent.setdefault(task_of(request.episode), Spent())
        spent.calls += 1
        read = len(request.ids) + sum(map(len, request.continuations))
        prompt, completion = scores.usage or (read, 0)
        spent.prompt_tokens += prompt
        spent.completion_tokens += completion

    def _tokens(self, request: Request, response: Response) -> tuple[int, int]:
        if response.usage is not None:
            return response.usage
        if self.chat is None:
            self._spent[task_of(request.episode)].counted = False
            return 0, 0
        ids = request.ids if request.ids is not None else self.chat.dialogue(request.messages)
        return len(ids), len(response.ids)


class _MeteredSession:
    def __init__(self, policy: MeteredPolicy, inner: Session) -> None:
        self.policy, self.inner = policy, inner

    def respond(self, requests: Sequence[Request]) -> list[Response]:
        responses = self.inner.respond(requests)
        for request, response in zip(requests, responses, strict=True):
            self.policy.count(request, response)
        return responses


class _MeteredScoring:
    def __init__(self, policy: MeteredPolicy, inner: ScoringSession) -> None:
        self.policy, self.inner = policy, inner

    def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        scores = self.inner.score(requests)
        for request, found in zip(requests, scores, strict=True):
            self.policy.count_scores(request, found)
        return scores
