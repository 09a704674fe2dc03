"""A policy that is a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from paw_train.rollouts.policy import Request, Response

Answers = Callable[[Request], str | Exception | Response]


class ScriptedPolicy:
    """Answers by a function of the request; an exception becomes the response's error."""

    chat = None
    trainable = False

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.requests: list[Request] = []

    def session(self, *_: Any) -> ScriptedPolicy:
        return self

    def respond(self, requests: Sequence[Request]) -> list[Response]:
        # requests may be changed later by their owner: their messages are kept as they are now
        self.requests += [
            Request(r.episode, r.seed, [dict(m) for m in r.messages], r.ids) for r in requests
        ]
        return [self._one(request) for request in requests]

    def _one(self, request: Request) -> Response:
        said = self.answers(request)
        if isinstance(said, Exception):
            return Response(error=str(said))
        if isinstance(said, Response):
            return said
        prompt = sum(len(m["content"].split()) for m in request.messages)
        return Response(text=said, usage=(prompt, len(said.split())))
