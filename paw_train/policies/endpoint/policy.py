"""A policy behind any OpenAI-compatible endpoint: OpenAI's own, vLLM's, llama.cpp's, a gateway's.

All requests of a turn are under way together. A temporary failure is tried again; what was
answered once is read from disk, so an interrupted run continues at no cost. A
request that fails for good fails its episode; an endpoint that cannot serve the run ends it at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from paw_gym.internals.files import user_path
from paw_train.policies.endpoint.answers import (
    AnswerCache,
    context_tokens,
    cut_in_thought,
    finish_text,
    may_be_in_thought,
    read_reply,
    request_key,
)
from paw_train.policies.endpoint.failures import (
    Fallbacks,
    hint,
    is_overflow,
    is_passing,
    overflow_limit,
    run_failure,
)
from paw_train.policies.endpoint.transport import (
    CONNECT_SECONDS,
    LONGEST_ASKED,
    BudgetReached,
    EndpointError,
    Limits,
    asked_wait,
    http_library,
    longest_wait,
    retry_wait,
    route_to,
)
from paw_train.rollouts.policy import Request, Response, Sampling, spoken
from paw_train.settings.endpoint import EndpointSettings

if TYPE_CHECKING:
    from paw_train.rollouts.chat import ChatFormat

_LOG = logging.getLogger("paw_train.endpoint")
_OPENAI = "https://api.openai.com/v1"
_FIRST_CONTACT_RETRIES = 3
"""if a server has never answered, a wrong address is likelier than a passing fault"""
_SHORTEST_KEY = 6
"""shorter keys are placeholders of local servers ("x", "none") and may be parts of words"""
_T = TypeVar("_T")


@dataclass(slots=True)
class Usage:
    """Requests, tokens and cost."""

    requests: int = 0
    """answered by the server"""
    cached: int = 0
    """answered from disk: free"""
    retries: int = 0
    """tries that failed and were repeated"""
    failed: int = 0
    """requests given up"""
    prompt_tokens: int = 0
    """read by the server"""
    cached_tokens: int = 0
    """of these, in the server's prefix cache"""
    completion_tokens: int = 0
    """written by it"""
    uncounted: int = 0
    """answers whose tokens the server did not count: the numbers of tokens are then too low"""
    cost: float | None = None
    """of both, if prices are given"""


class EndpointPolicy:
    """Answers through an endpoint. It gives text, so it can be evaluated but not trained.

    Args:
        api_key: instead of the one in the environment; kept in memory only.

    Raises:
        EndpointError: no key for OpenAI's own address, or the address cannot be read.
    """

    chat: ChatFormat | None = None
    trainable = False

    def __init__(
        self, model: str, settings: EndpointSettings | None = None, api_key: str | None = None
    ) -> None:
        self.model, self.settings = model, settings or EndpointSettings()
        self.url = self.settings.url or os.environ.get("OPENAI_BASE_URL") or _OPENAI
        self._key = api_key or os.environ.get(self.settings.api_key_env) or ""
        if not self._key and self.url == _OPENAI:
            raise EndpointError(
                f"No address and no key: give endpoint.url=http://HOST:PORT/v1 for a server of your "
                f"own, or put a key for {_OPENAI} into {self.settings.api_key_env}."
            )
        self._route = route_to(self.url)
        self.usage = Usage()
        self.fallbacks = Fallbacks()
        self.limits = Limits(self.settings)
        self.stopped: str | None = None
        """the budget that is used up; it is then the error of every request"""
        self._context_tokens = self.settings.context_tokens
        self._context_asked = self._context_tokens is not None
        self._cache = _cache_of(self.settings)
        self._thread = _LoopThread()
        self._client = self._thread.run(self._connect())
        self._reached = False
        self._thoughts_seen = False
        """prose before an action was found not to be a thought"""

    async def _connect(self) -> Any:
        from openai import AsyncOpenAI

        azure = self._key and "api-version" in dict(self._route.query)
        return AsyncOpenAI(
            api_key=self._key or "none",
            base_url=self._route.base,
            default_headers={"api-key": self._key} if azure else None,
            timeout=http_library().Timeout(self.settings.timeout, connect=CONNECT_SECONDS),
            # the client's own retries bypass limits and budgets, and ignore waits above a minute
            max_retries=0,
            http_client=self._route.client(),
        )

    @property
    def context_tokens(self) -> int | None:
        """The model's limit on context and response together, if it is known by now."""
        if not self._context_asked:
            self._context_asked = True
            self._context_tokens = self._thread.run(self._ask_context_tokens())
        return self._context_tokens

    def session(self, sampling: Sampling, growing: bool) -> EndpointSession:
        return EndpointSession(self, sampling)

    def answer(self, requests: Sequence[Request], sampling: Sampling) -> list[Response]:
        return self._thread.run(self._answers(requests, sampling))

    async def _answers(self, requests: Sequence[Request], sampling: Sampling) -> list[Response]:
        tasks = [asyncio.ensure_future(self._answer(request, sampling)) for request in requests]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            raise

    async def _answer(self, request: Request, sampling: Sampling) -> Response:
        seed = request.seed if sampling.temperature > 0 else None
        body = self._body(request, sampling)
        key = request_key(self.url, "chat", body, seed)
        known = self._cache.get(key) if self._cache else None
        if known is not None:
            self._reached = True  # at this address, by an earlier run
            self.usage.cached += 1
            self.fallbacks.recall(known.get("fallbacks"))
            return self._response(known, sampling)
        try:
            answer = await self._ask(key, body)
        except BudgetReached as reached:
            self.stopped = self.stopped or str(reached)
            return Response(error=self.stopped)
        return answer if isinstance(answer, Response) else self._response(answer, sampling)

    # --- one request ---------------------------------------------------------------------------------

    def _body(self, request: Request, sampling: Sampling) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": sampling.max_tokens,
            "messages": spoken(request.messages),
            "temperature": sampling.temperature,
        }
        if request.tools:
            body |= {"tools": [dict(tool) for tool in request.tools], "tool_choice": "auto"}
        elif sampling.stop:
            body["stop"] = list(sampling.stop)
        if sampling.temperature > 0:
            body["seed"] = request.seed % 2**31
            optional = {"top_p": (sampling.top_p, 1.0), "top_k": (sampling.top_k, 0)}
            body |= {name: value for name, (value, off) in optional.items() if value != off}
        return body | self.settings.extra

    async def _ask(self, key: str, body: Mapping[str, Any]) -> dict[str, Any] | Response:
        """The server's answer, or a response with an error once it has failed for good."""
        failures = 0
        first: dict[str, Any] | None = None
        while True:
            if self.stopped is not None:
                raise BudgetReached(self.stopped)
            sent = self.fallbacks.apply(body)
            if first is not None:
                sent.pop("stop", None)
            try:
                answer = await self._try(sent)
            except BudgetReached:
                raise
            except Exception as error:
                if self.fallbacks.learn(error, sent):
                    continue
                failures += 1
                self._raise_if_hopeless(error, failures)
                hopeless = is_overflow(error) or not is_passing(error)
                if hopeless or failures > self.settings.retries:
                    return self._given_up(error, failures, sent)
                await self._wait(failures, error)
                continue
            self._reached = True
            if first is None and self._is_doubtful(answer, sent):
                first = answer
                continue
            if first is not None:
                answer = self._settled(first, answer, body["stop"])
            if self.fallbacks.taken:
                answer["fallbacks"] = self.fallbacks.taken
            if self._cache:
                self._cache.put(key, answer)
            return answer

    def _is_doubtful(self, answer: Mapping[str, Any], sent: Mapping[str, Any]) -> bool:
        """True if an answer may have ended at a stop text in its thought; one without is then asked for."""
        stops = sent.get("stop")
        if not stops or cut_in_thought(answer):
            return bool(stops)
        return not self._thoughts_seen and may_be_in_thought(answer, stops)

    def _settled(
        self, first: dict[str, Any], second: dict[str, Any], stops: Sequence[str]
    ) -> dict[str, Any]:
        """The one that counts, of an answer with stop texts and one without."""
        if not cut_in_thought(first) and not second.get("reasoning"):
            self._thoughts_seen = True
            return first
        if finish_text(first, stops) == finish_text(second, stops):
            return first  # the model says no more than that
        self.fallbacks.take("stop in thoughts")
        return second

    async def _wait(self, failures: int, error: Exception) -> None:
        asked = asked_wait(error, time.time())
        if asked is not None and asked > LONGEST_ASKED:
            raise BudgetReached(
                f"The server asks for a wait of {asked:,.0f} s (Retry-After), and a run waits "
                f"{LONGEST_ASKED:,.0f} s at most. Its message: {self._in_words(error, 1)}"
            )
        long = asked is not None and asked > longest_wait()
        if self.usage.retries == 0 or (long and not self.limits.paused):
            when = f"in {asked:.0f} s, as the server asks" if asked else "soon"
            _LOG.warning(
                "%s: %s Trying again %s.", self._route.shown, self._in_words(error, 1), when
            )
        self.usage.retries += 1
        if asked and getattr(error, "status_code", None) in (429, 503):
            self.limits.pause(asked)
        await asyncio.sleep(retry_wait(failures, asked))

    def _given_up(self, error: Exception, failures: int, sent: Mapping[str, Any]) -> Response:
        self.usage.failed += 1
        overflow = is_overflow(error)
        if overflow and self._context_tokens is None:
            self._context_tokens, self._context_asked = overflow_limit(error), True
        advice = hint(error, sent, self._context_tokens)
        text = self._in_words(error, failures)
        return Response(error=f"{text} {advice}" if advice else text, overflow=overflow)

    async def _try(self, body: Mapping[str, Any]) -> dict[str, Any]:
        u, s = self.usage, self.settings
        most = s.cost(*_most_tokens(body))
        async with self.limits.request(most):
            # the raw call: the typed one would check field names, and servers have their own
            reply = await self._client.post("/chat/completions", body=dict(body), cast_to=object)
            answer = read_reply(reply)
            names = ("prompt_tokens", "completion_tokens", "cached_tokens")
            prompt, completion, cached = (answer[name] for name in names)
            counted = bool(prompt or completion)
            self.limits.charge(s.cost(prompt, completion, cached) if counted else most)
        u.requests += 1
        u.prompt_tokens += prompt
        u.completion_tokens += completion
        u.cached_tokens += cached
        u.uncounted += not counted
        if s.priced:
            u.cost = s.cost(u.prompt_tokens, u.completion_tokens, u.cached_tokens)
        return answer

    async def _ask_context_tokens(self) -> int | None:
        """The model's context limit by the server's report, if it gives one."""
        key = request_key(self.url, "models", {"model": self.model}, None)
        known = self._cache.get(key) if self._cache else None
        if known is not None:
            return cast("int | None", known["context_tokens"])
        client = self._client.with_options(max_retries=_FIRST_CONTACT_RETRIES)
        try:
            limit = context_tokens(await client.get("/models", cast_to=object), self.model)
        except Exception:  # a request of the run reports what is wrong, if something is
            return None
        if self._cache:
            self._cache.put(key, {"context_tokens": limit})
        return limit

    def _raise_if_hopeless(self, error: Exception, failures: int) -> None:
        enough = min(_FIRST_CONTACT_RETRIES, self.settings.retries)
        first_contact = not self._reached and failures > enough
        refusal = {
            401: f"The key in {self.settings.api_key_env} is missing or wrong.",
            402: "The account is empty.",
            403: f"The key in {self.settings.api_key_env} may not use this model.",
            404: f"There is no model {self.model!r} there, or the address is not that of an "
            "OpenAI-compatible API (it usually ends in /v1).",
        }
        said = self._in_words(error, 1)
        reason = run_failure(error, self._route, first_contact, said, refusal)
        if reason is not None:
            raise EndpointError(reason) from error

    def _in_words(self, error: Exception, tries: int) -> str:
        text = " ".join(f"{type(error).__name__}: {error}".split())  # pages have many lines
        if len(self._key) >= _SHORTEST_KEY:
            text = text.replace(self._key, "***")
        ended = text[:500] if text[:500].endswith((".", "!", "?")) else f"{text[:500]}."
        return f"{ended[:-1]} (after {tries} tries)." if tries > 1 else ended

    def _response(self, answer: Mapping[str, Any], sampling: Sampling) -> Response:
        text, reason = finish_text(answer, sampling.stop)
        used = (answer.get("prompt_tokens", 0), answer.get("completion_tokens", 0))
        return Response(
            text=text,
            usage=used if any(used) else None,
            cached_tokens=answer.get("cached_tokens", 0),
            reasoning=answer.get("reasoning"),
            reasoning_field=answer.get("reasoning_field"),
            finish_reason=reason,
            tool_calls=list(answer.get("tool_calls") or []),
            refusal=answer.get("refusal"),
        )

    def describe(self) -> dict[str, Any]:
        """Address, usage and fallbacks, for a result file; no secret is among them."""
        return {"url": self._route.shown, **asdict(self.usage), "fallbacks": self.fallbacks.taken}

    def close(self) -> None:
        self._thread.run(self._client.close())
        self._thread.stop()
        if self._cache:
            self._cache.close()


class EndpointSession:
    """An endpoint at work on a batch of episodes; it keeps nothing, contexts are sent whole."""

    def __init__(self, policy: EndpointPolicy, sampling: Sampling) -> None:
        self.policy, self.sampling = policy, sampling

    def respond(self, requests: Sequence[Request]) -> list[Response]:
        return self.policy.answer(requests, self.sampling)


def _most_tokens(body: Mapping[str, Any]) -> tuple[float, float]:
    """The tokens of a request and of the longest response; messages by about four characters a token."""
    longest = body.get("max_tokens") or body.get("max_completion_tokens") or 0
    return sum(len(str(m["content"] or "")) for m in body["messages"]) / 4, longest


def _cache_of(settings: EndpointSettings) -> AnswerCache | None:
    if settings.cache is None:
        return None
    if settings.cache == "auto":
        from paw_gym.internals.files import private_folder

        return AnswerCache(private_folder("endpoint") / "answers.sqlite")
    return AnswerCache(user_path(settings.cache))


class _LoopThread:
    """An event loop in a thread of its own, so that it lives from call to call, in notebooks too."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """The work's result; Ctrl-C cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5.0)
