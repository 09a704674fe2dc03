"""A policy behind any OpenAI-compatible endpoint: OpenAI's own, vLLM's, llama.cpp's, a gateway's.

All requests of a turn are under way together. What fails by chance is asked again; what was
answered once is read from disk, so a run that was cut goes on where it stopped, for nothing. A
request that fails for good fails its episode; an endpoint that cannot serve the run ends it at once.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from paw_train.policies.endpoint.cache import AnswerCache, request_key
from paw_train.policies.endpoint.retry import (
    Backoff,
    EndpointError,
    Gate,
    MalformedAnswer,
    asked_wait,
    concerns_the_run,
    is_passing,
)
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.policy import Request, Response, Sampling
from paw_train.settings.endpoint import EndpointSettings
from paw_train.settings.rollout import PREFILL_TOKENS

_OPENAI = "https://api.openai.com/v1"
_FIRST_CONTACT_RETRIES = 3
"""a server that never answered yet is a wrong address sooner than a passing fault"""
_T = TypeVar("_T")


@dataclass(slots=True)
class Usage:
    """What was asked and what it took."""

    requests: int = 0
    """answered by the server"""
    cached: int = 0
    """answered from disk, or by an equal request under way: free"""
    retries: int = 0
    """tries that failed and were repeated"""
    failed: int = 0
    """requests given up"""
    prompt_tokens: int = 0
    """read by the server"""
    completion_tokens: int = 0
    """written by it"""
    cost: float | None = None
    """of both, where prices are given"""


class EndpointPolicy:
    """Answers through an endpoint. It gives text, so it can be evaluated but not trained.

    Args:
        model: the model's name there.
        settings: address, limits, prices, cache.
        api_key: instead of the one in the environment; kept in memory only.

    Raises:
        EndpointError: no key for OpenAI's own address.
    """

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
        self.chat = _chat_of(self.settings)
        self.usage = Usage()
        self._cache = _cache_of(self.settings)
        self._backoff = Backoff(self.settings)
        self._thread = _LoopThread()
        self._client, self._gate = self._thread.run(self._connect())
        self._under_way: dict[str, asyncio.Task[dict[str, Any]]] = {}
        self._reached = False

    async def _connect(self) -> tuple[Any, Gate]:
        from openai import AsyncOpenAI

        client = AsyncOpenAI(
            api_key=self._key or "none",
            base_url=self.url,
            timeout=self.settings.timeout,
            max_retries=0,  # ours count, pace and share the waits
        )
        return client, Gate(self.settings)

    def session(
        self, sampling: Sampling, growing: bool, prefill_tokens: int = PREFILL_TOKENS
    ) -> EndpointSession:
        """Opens a session on a batch of episodes (see ``protocol.Policy``)."""
        return EndpointSession(self, sampling)

    def answer(self, requests: Sequence[Request], sampling: Sampling) -> list[Response]:
        """A response to each request.

        Raises:
            EndpointError: no request of this run can succeed.
        """
        return self._thread.run(self._answer_all(requests, sampling))

    async def _answer_all(self, requests: Sequence[Request], sampling: Sampling) -> list[Response]:
        tasks = [asyncio.ensure_future(self._answer(request, sampling)) for request in requests]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in (*tasks, *self._under_way.values()):
                task.cancel()
            raise

    async def _answer(self, request: Request, sampling: Sampling) -> Response:
        body = self._body(request, sampling)
        seed = request.seed if sampling.temperature > 0 else None
        key = request_key(self.url, self.settings.api, body, seed)
        answer = self._cache.get(key) if self._cache else None
        self._reached |= answer is not None  # at this address, by an earlier run
        shared = answer is not None or key in self._under_way
        if answer is None:
            if key not in self._under_way:
                task = asyncio.ensure_future(self._ask(key, body))
                self._under_way[key] = task
                task.add_done_callback(lambda _: self._under_way.pop(key, None))
            # shielded: a request that another episode waits for as well outlives this one
            answer = await asyncio.shield(self._under_way[key])
        if "error" in answer:
            return Response(error=str(answer["error"]))
        self.usage.cached += shared
        return self._response(answer, sampling)

    # --- one request ---------------------------------------------------------------------------------

    def _body(self, request: Request, sampling: Sampling) -> dict[str, Any]:
        s = self.settings
        body: dict[str, Any] = {"model": self.model, s.token_limit_field: sampling.max_tokens}
        if s.api == "chat":
            body["messages"] = [dict(message) for message in request.messages]
        else:
            assert self.chat is not None
            ids = request.ids if request.ids is not None else self.chat.dialogue(request.messages)
            body["prompt"] = list(ids)
        body["temperature"] = sampling.temperature
        if s.send_stop and sampling.stop:
            body["stop"] = list(sampling.stop)
        if sampling.temperature > 0:
            if s.send_seed:
                body["seed"] = request.seed % 2**31
            optional = {"top_p": (sampling.top_p, 1.0), "top_k": (sampling.top_k, 0),
                        "min_p": (sampling.min_p, 0.0)}  # fmt: skip
            body |= {name: value for name, (value, off) in optional.items() if value != off}
        return body | s.extra

    async def _ask(self, key: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The server's answer, or ``{"error": ...}`` once it has failed for good."""
        failures = 0
        while True:
            try:
                answer = await self._try(body)
            except Exception as error:
                failures += 1
                self._raise_if_hopeless(error, failures)
                if not is_passing(error) or failures > self.settings.retries:
                    self.usage.failed += 1
                    return {"error": self._told(error, failures)}
                self.usage.retries += 1
                asked = asked_wait(error, time.time())
                if asked and _is_overload(error):
                    self._gate.pause(asked)
                await asyncio.sleep(self._backoff.wait(failures, error))
                continue
            self._reached = True
            self._count(answer)
            if self._cache:
                self._cache.put(key, answer)
            return answer

    async def _try(self, body: Mapping[str, Any]) -> dict[str, Any]:
        chat = self.settings.api == "chat"
        estimate = _estimate(body, self.settings.token_limit_field)
        await self._gate.enter(estimate)
        used = estimate
        try:
            # the raw call: the typed one would check field names, and servers have fields of their own
            reply = await self._client.post(
                "/chat/completions" if chat else "/completions", body=dict(body), cast_to=object
            )
            answer = _read(reply, chat)
            used = answer["prompt_tokens"] + answer["completion_tokens"]
            return answer
        finally:
            self._gate.leave(used - estimate)

    def _raise_if_hopeless(self, error: Exception, failures: int) -> None:
        import openai

        unreachable = isinstance(error, openai.APIConnectionError) and not isinstance(
            error, openai.APITimeoutError
        )
        if unreachable and not self._reached and failures > _FIRST_CONTACT_RETRIES:
            cause = error.__cause__ or error
            raise EndpointError(
                f"Nothing answers at {self.url} ({cause}). Is the server running, and does the address "
                "end in /v1 (endpoint.url=...)?"
            ) from error
        if concerns_the_run(error):
            raise EndpointError(self._run_error(error)) from error

    def _run_error(self, error: Any) -> str:
        hints = {
            401: f"The key in {self.settings.api_key_env} is missing or wrong.",
            402: "The account is empty.",
            403: f"The key in {self.settings.api_key_env} may not use this model.",
            404: f"There is no model {self.model!r} there, or the address is not that of an "
            "OpenAI-compatible API (it usually ends in /v1).",
        }
        hint = hints.get(error.status_code, "The account's quota is used up.")
        return f"{self.url} refuses: {hint} It says: {self._told(error, 1)}"

    def _told(self, error: Exception, tries: int) -> str:
        """An error in words, without the key."""
        text = f"{type(error).__name__}: {error}"
        if self._key:
            text = text.replace(self._key, "***")
        return f"{text[:500]} (after {tries} tries)" if tries > 1 else text[:500]

    def _count(self, answer: Mapping[str, Any]) -> None:
        u, s = self.usage, self.settings
        u.requests += 1
        u.prompt_tokens += answer["prompt_tokens"]
        u.completion_tokens += answer["completion_tokens"]
        if s.input_price is not None or s.output_price is not None:
            u.cost = (
                u.prompt_tokens * (s.input_price or 0.0)
                + u.completion_tokens * (s.output_price or 0.0)
            ) / 1e6

    def _response(self, answer: Mapping[str, Any], sampling: Sampling) -> Response:
        text = finish_text(answer, sampling.stop)
        ids = answer.get("ids") or (self.chat.content(text) if self.chat else [])
        used = (answer.get("prompt_tokens", 0), answer.get("completion_tokens", 0))
        return Response(
            list(ids), list(answer.get("logprobs") or []), text, usage=used if any(used) else None
        )

    def describe(self) -> dict[str, Any]:
        """Address and usage, for a result file; no secret is among them."""
        address = urlsplit(self.url)
        host = address.netloc.rpartition("@")[2]  # a password in the address stays out
        return {"url": address._replace(netloc=host).geturl(), **asdict(self.usage)}

    def close(self) -> None:
        """Ends the connections."""
        self._thread.run(self._client.close())
        self._thread.stop()
        if self._cache:
            self._cache.close()


class EndpointSession:
    """An endpoint at work on a batch of episodes; it keeps nothing, contexts are sent whole."""

    def __init__(self, policy: EndpointPolicy, sampling: Sampling) -> None:
        self.policy, self.sampling = policy, sampling

    def respond(self, requests: Sequence[Request]) -> list[Response]:
        """See ``protocol.Session``."""
        return self.policy.answer(requests, self.sampling)


def _read(reply: Any, chat: bool) -> dict[str, Any]:
    """The parts of a reply that are kept.

    Raises:
        MalformedAnswer: there is no choice in it.
    """
    try:
        choice = reply["choices"][0]
        text = (choice["message"]["content"] if chat else choice["text"]) or ""
        usage = reply.get("usage") or {}
        answer = {
            "text": _sendable(str(text)),
            "finish_reason": choice.get("finish_reason"),
            "prompt_tokens": int(usage.get("prompt_tokens") or 0),
            "completion_tokens": int(usage.get("completion_tokens") or 0),
        }
        if "stop_reason" in choice:  # vLLM's: which stop text it was, null for the end token
            answer["stop_reason"] = choice["stop_reason"]
        if choice.get("token_ids"):
            answer["ids"] = [int(i) for i in choice["token_ids"]]
            answer["logprobs"] = (choice.get("logprobs") or {}).get("token_logprobs") or []
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise MalformedAnswer(f"no answer in the reply: {str(reply)[:200]!r}") from error
    return answer


def _sendable(text: str) -> str:
    """Text without lone surrogates: JSON may carry them, but they could not be sent back."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def finish_text(answer: Mapping[str, Any], stops: Sequence[str]) -> str:
    """A response's text up to and with the stop text, as every policy gives it.

    Servers leave the stop text out. Which one it was, vLLM says; elsewhere a closing tag is put back
    where its opening tag stands alone and the server says it stopped. (So a model that ends its turn
    inside the tag is given the benefit of the doubt.)
    """
    text = str(answer["text"])
    ends = [at + len(stop) for stop in stops if (at := text.find(stop)) >= 0]
    if ends:
        return text[: min(ends)]
    if "stop_reason" in answer:
        reason = answer["stop_reason"]
        return text + reason if reason in stops else text
    if answer.get("finish_reason") == "stop":
        closing = [stop for stop in stops if stop.startswith("</")]
        last = max(closing, key=lambda stop: text.rfind(_opening(stop)), default="")
        if last and _opening(last) in text:
            return text + last
    return text


def _opening(closing: str) -> str:
    return closing.replace("</", "<", 1)


def _estimate(body: Mapping[str, Any], limit_field: str) -> float:
    """Tokens that a request may use: about four characters each, and the whole response."""
    if "prompt" in body:
        return float(len(body["prompt"]) + body[limit_field])
    return sum(len(m["content"]) for m in body["messages"]) / 4 + float(body[limit_field])


def _is_overload(error: Exception) -> bool:
    return getattr(error, "status_code", None) in (429, 503)


def _chat_of(settings: EndpointSettings) -> ChatFormat | None:
    if settings.api == "chat":
        return None
    from transformers import AutoTokenizer

    return ChatFormat(AutoTokenizer.from_pretrained(settings.tokenizer))


def _cache_of(settings: EndpointSettings) -> AnswerCache | None:
    if settings.cache is None:
        return None
    if settings.cache == "auto":
        from paw_gym.cache import cache_dir

        return AnswerCache(cache_dir() / "endpoint" / "answers.sqlite")
    return AnswerCache(Path(settings.cache))


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
        """Ends the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5.0)
