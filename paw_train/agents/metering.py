"""The requests of an agent to its policy: counted by task, and kept as they were sent, step by step."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from paw_gym.pool import EnvPool, Slot
from paw_gym.transition import Episode
from paw_train.agents.action_form import ActionForm, problem_of
from paw_train.agents.protocol import note
from paw_train.rollouts.policy import Message, Policy, Request, Response, Sampling, Session, spoken

_EPISODE = re.compile(r".*#[0-9a-f]{8}-\d+", re.DOTALL)
"""the pool's name of an episode; an agent may append to it in its requests' names"""
REFLECTION = "/reflect"
"""the end of the name of a request whose answer is no action"""


@dataclass(slots=True)
class Spent:
    """Model calls and their tokens; answers from a cache count like any others."""

    calls: int = 0
    prompt_tokens: int = 0
    """of all contexts, each counted whole as often as it was sent"""
    completion_tokens: int = 0
    counted: bool = True
    """false if the tokens of some call are unknown: the sums are then a lower bound"""
    cached_tokens: int = 0
    """of the contexts' tokens, those in a server's prefix cache"""

    def add(self, tokens: tuple[int, int] | None, cached: int = 0) -> None:
        """Adds one call; ``None``: its tokens are unknown."""
        self.calls += 1
        prompt, completion = tokens or (0, 0)
        self.prompt_tokens += prompt
        self.completion_tokens += completion
        self.cached_tokens += cached
        self.counted = self.counted and tokens is not None


@dataclass(slots=True)
class Call:
    """One request and its answer."""

    messages: Sequence[Message]
    """as they were sent"""
    response: Response
    """with the text that the environment reads"""
    text: str
    """as it was received"""
    acts: bool
    """whether an action was asked for, not a note of the model's to itself"""
    problem: str | None
    """see ``action_form.problem_of``"""
    tokens: tuple[int, int] | None


def task_of(episode: str) -> str:
    """The task id in an episode's name: the part before the last ``#``."""
    return episode.rpartition("#")[0] or episode


def episode_of(request: str) -> str:
    """The pool's name of the episode that a request's name begins with."""
    found = _EPISODE.match(request)
    return found[0] if found else request


class MeteredPolicy:
    """A policy that counts and remembers its calls; otherwise it is the policy inside.

    Args:
        form: how actions are asked for and read; ``None``: responses are passed on as they come.
    """

    def __init__(self, policy: Policy, form: ActionForm | None = None) -> None:
        self.inner, self.form = policy, form
        self.chat, self.trainable = policy.chat, policy.trainable
        self.total = Spent()
        """of all tasks"""
        self._spent: dict[str, Spent] = {}
        self._calls: dict[str, list[Call]] = {}

    @property
    def stopped(self) -> str | None:
        """The inner policy's budget that is used up, which then is the error of every request."""
        return getattr(self.inner, "stopped", None)

    @property
    def context_tokens(self) -> int | None:
        """The inner policy's context limit, if it is known."""
        return getattr(self.inner, "context_tokens", None)

    def session(self, sampling: Sampling, growing: bool) -> Session:
        return _MeteredSession(self, self.inner.session(sampling, growing), sampling)

    def take(self, task_id: str) -> Spent:
        """The calls and tokens of a task; its count starts anew."""
        return self._spent.pop(task_id, Spent())

    def take_calls(self, episode: str) -> list[Call]:
        """The calls for an episode since the last time, in order."""
        return self._calls.pop(episode, [])

    def keep(self, call: Call, request: str) -> None:
        cached = call.response.cached_tokens
        self._spent.setdefault(task_of(request), Spent()).add(call.tokens, cached)
        self.total.add(call.tokens, cached)
        self._calls.setdefault(episode_of(request), []).append(call)

    def tokens(self, request: Request, response: Response) -> tuple[int, int] | None:
        """Of context and response: as the server counted them, else by the policy's own tokenizer."""
        if response.usage is not None or self.chat is None:
            return response.usage
        ids = request.ids if request.ids is not None else self.chat.dialogue(request.messages)
        return len(ids), len(response.ids)


class _MeteredSession:
    def __init__(self, policy: MeteredPolicy, inner: Session, sampling: Sampling) -> None:
        self.policy, self.inner, self.sampling = policy, inner, sampling
        self._said: dict[str, list[Response]] = {}

    def respond(self, requests: Sequence[Request]) -> list[Response]:
        asked = [self._formed(request) for request in requests]
        responses = self.inner.respond(asked)
        for request, response in zip(asked, responses, strict=True):
            if response.error is None:
                self._take(request, response)
        return responses

    def _formed(self, request: Request) -> Request:
        form = self._form(request)
        return form.request(request, self._said.get(request.episode, ())) if form else request

    def _form(self, request: Request) -> ActionForm | None:
        return None if request.episode.endswith(REFLECTION) else self.policy.form

    def _take(self, request: Request, response: Response) -> None:
        if response.finish_reason is None and response.ids:
            response.finish_reason = self._ending(response)
        form, received = self._form(request), response.text
        problem = problem_of(response, form) if form else None
        tokens = self.policy.tokens(request, response)
        if form:
            response.text = form.read(response)
            self._said.setdefault(request.episode, []).append(response)
        acts = not request.episode.endswith(REFLECTION)
        call = Call(spoken(request.messages), response, received, acts, problem, tokens)
        self.policy.keep(call, request.episode)

    def _ending(self, response: Response) -> str:
        whole = len(response.ids) < self.sampling.max_tokens
        ended = self.policy.chat is not None and response.ids[-1] in self.policy.chat.end_ids
        stopped = any(response.text.endswith(text) for text in self.sampling.stop)
        return "stop" if whole or ended or stopped else "length"


class MeteredPool(EnvPool):
    """A pool that notes in each transition what was asked and answered for it (``info["agent"]``).

    ``finish_reason`` and ``problem`` of the answer that was taken, the ``tools`` that were offered; with
    ``messages`` also ``calls``, every request since the step before. ``turn`` is called after each step with
    the number of answers that were given in it.
    """

    def __init__(
        self,
        meter: MeteredPolicy | None,
        messages: bool,
        turn: Callable[[int], None],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._meter, self._messages, self._turn = meter, messages, turn
        self._last: dict[str, Sequence[Message]] = {}

    def step(self, responses: Sequence[str]) -> list[Slot]:
        slots = list(self.active)
        active = super().step(responses)
        for slot in slots:
            self._note(slot, slot.episode.error is None)
            # without its search engine, an episode does not measure the agent
            if (reason := slot.info.get("retrieval_error")) and slot in active:
                self.fail(slot, f"The search engine did not answer: {reason}")
        self._turn(len(slots))
        return active

    def fail(self, slot: Slot, error: str) -> None:
        super().fail(slot, error)
        self._note(slot, False)

    def truncate(self, slot: Slot, **info: Any) -> None:
        super().truncate(slot, **info)
        self._note(slot, False)

    def _note(self, slot: Slot, acted: bool) -> None:
        """Notes the calls since the last action; those that led to no other (not ``acted``) with its own."""
        episode, meter = slot.episode, self._meter
        calls = meter.take_calls(episode.episode_id) if meter else []
        if not calls or not episode.transitions:
            return
        last = episode.transitions[-1]
        notes = self._of_answer(calls, last.response) if acted else {}
        if self._messages:
            noted = [] if acted else last.info.get("agent", {}).get("calls", [])
            if acted and len(episode.transitions) == 1:
                self._last.pop(episode.episode_id, None)
            before = [self._last.get(episode.episode_id, ()), *(call.messages for call in calls)]
            added = [_record(c, b) for c, b in zip(calls, before, strict=False)]
            notes["calls"] = [*noted, *added]
            self._last[episode.episode_id] = before[-1]
        note(episode, **notes)

    def _of_answer(self, calls: Sequence[Call], response: str) -> dict[str, Any]:
        acting = [call for call in calls if call.acts]
        taken = next((c for c in acting if c.response.text == response), calls[-1])
        notes: dict[str, Any] = {"finish_reason": taken.response.finish_reason}
        if taken.problem is not None:
            notes["problem"] = taken.problem
        if self._meter and self._meter.form and self._meter.form.tool_names:
            notes["tools"] = self._meter.form.tool_names
        if taken.response.reasoning is not None:
            notes["reasoning"] = taken.response.reasoning
        return notes


def _record(call: Call, before: Sequence[Message]) -> dict[str, Any]:
    """A call as JSON values; ``exchanges`` puts calls together again.

    Args:
        before: the messages of the episode's previous call, whose beginning is not written again.

    Returns:
        ``same`` (how many messages ``before`` also begins with), ``messages`` (those after
        them, as sent), ``text`` (as received), and, if there are any, ``reasoning``,
        ``finish_reason``, ``tool_calls``, ``refusal``, ``tokens``.
    """
    pairs = zip(before, call.messages, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: dict(pair[0]) == dict(pair[1]), pairs))
    response = call.response
    there = {
        "reasoning": response.reasoning,
        "tool_calls": response.tool_calls or None,
        "refusal": response.refusal,
        "tokens": None if call.tokens is None else list(call.tokens),
    }
    return {
        "same": same,
        "messages": [dict(message) for message in call.messages[same:]],
        "text": call.text,
        "finish_reason": response.finish_reason,
        **{name: value for name, value in there.items() if value is not None},
    }


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request to the model and its answer."""

    step: int
    """of the transition that it was made for; of the last one, if no action came of it"""
    messages: list[dict[str, Any]]
    """the whole request's, exactly as sent"""
    text: str
    """of the answer, as received"""
    finish_reason: str | None = None
    reasoning: str | None = None
    """the thought, if the server gave it apart from the text"""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    refusal: str | None = None
    tokens: Sequence[int] | None = None
    """of the request and of the answer"""


def exchanges(episode: Episode) -> list[Exchange]:
    """Every recorded request for an episode, in order, with those of the reflections before it."""
    found: list[Exchange] = []
    before: list[dict[str, Any]] = []
    for transition in episode.transitions:
        for call in transition.info.get("agent", {}).get("calls", []):
            before = [*before[: call["same"]], *call["messages"]]
            answer = {key: call[key] for key in call if key not in ("same", "messages")}
            found.append(Exchange(transition.step, before, **answer))
    return found
