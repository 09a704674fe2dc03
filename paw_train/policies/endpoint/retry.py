"""When to ask a server again, how long to wait, and how fast to ask at all."""

from __future__ import annotations

import asyncio
import email.utils
import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from paw_gym.replies import MalformedAnswer
from paw_train.settings.endpoint import EndpointSettings

_PASSING = frozenset({408, 409, 425, 429})
_OF_THE_RUN = frozenset({401, 402, 403, 404, 407})
LONGEST_ASKED = 600.0
"""seconds; a server that asks for a longer pause (an account's day is over) ends the run as a budget does"""


class EndpointError(ValueError):
    """The endpoint cannot serve this run at all: wrong key, model or address, or an empty account."""


def is_passing(error: Exception) -> bool:
    """Whether the same request may succeed later."""
    import openai

    if isinstance(error, openai.APIStatusError):
        if _code(error) == "insufficient_quota":
            return False
        return error.status_code in _PASSING or error.status_code >= 500
    kinds = (openai.APIConnectionError, openai.APIResponseValidationError, json.JSONDecodeError)
    return isinstance(error, (*kinds, MalformedAnswer))


def concerns_the_run(error: Exception) -> bool:
    """Whether every other request would fail as this one did."""
    import openai

    if not isinstance(error, openai.APIStatusError):
        return False
    return error.status_code in _OF_THE_RUN or _code(error) == "insufficient_quota"


def _code(error: Any) -> str | None:
    code = getattr(error, "code", None)
    return code if isinstance(code, str) else None


def asked_wait(error: Exception, now: float) -> float | None:
    """Seconds that the server asks to wait (``Retry-After``: seconds or a date), or ``None``."""
    headers: Mapping[str, str] = getattr(getattr(error, "response", None), "headers", None) or {}
    text = headers.get("retry-after-ms")
    if text is not None and _number(text) is not None:
        return max(0.0, (_number(text) or 0.0) / 1000)
    text = headers.get("retry-after")
    if text is None:
        return None
    seconds = _number(text)
    if seconds is not None:
        return max(0.0, seconds)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now)
    except ValueError:
        return None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


class Backoff:
    """Waits between the tries of requests: exponential with full jitter, or as long as the server asks.

    Full jitter (a uniform number below the exponential bound) keeps requests that failed together
    from coming back together (M. Brooker, "Exponential Backoff and Jitter", AWS 2015).
    """

    def __init__(self, settings: EndpointSettings, seed: int = 0) -> None:
        self.settings = settings
        self._random = random.Random(seed)

    def wait(self, failures: int, error: Exception) -> float:
        """Seconds to wait after this many failures of a request."""
        s = self.settings
        bound = min(s.longest_wait, s.first_wait * 2.0 ** (failures - 1))
        asked = asked_wait(error, time.time())
        own = self._random.uniform(0.0, bound)
        # requests with the same waiting time would return at the same moment: jitter separates them
        return own if asked is None else asked + self._random.uniform(0.0, min(bound, 1.0))


class Pace:
    """Spaces something out to at most so much a minute.

    Args:
        per_minute: the limit; ``None``: none.
        clock: seconds, growing.
    """

    def __init__(
        self, per_minute: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds_each = 60.0 / per_minute if per_minute else 0.0
        self._clock = clock
        self._free = clock()

    def reserve(self, amount: float) -> float:
        """Takes an amount and returns the seconds to wait before using it."""
        now = self._clock()
        self._free = max(self._free, now)
        wait = self._free - now
        self._free += amount * self._seconds_each
        return wait

    def correct(self, amount: float) -> None:
        """More (or, negative, less) was used than was taken."""
        self._free += amount * self._seconds_each

    def pause(self, seconds: float) -> None:
        """Nothing more for so long: the server asked for it."""
        self._free = max(self._free, self._clock() + seconds)


class Gate:
    """Lets requests through: so many at a time, so many and so many tokens a minute."""

    def __init__(self, settings: EndpointSettings) -> None:
        self._places = asyncio.Semaphore(settings.concurrency)
        self._requests = Pace(settings.requests_per_minute)
        self._tokens = Pace(settings.tokens_per_minute)

    async def enter(
        self, tokens: float, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        """Waits for a place and for the limits; ``tokens`` is an estimate of what will be used."""
        await self._places.acquire()
        try:
            await sleep(max(self._requests.reserve(1), self._tokens.reserve(tokens)))
        except BaseException:
            self._places.release()
            raise

    def leave(self, more_tokens: float = 0.0) -> None:
        """Frees the place; ``more_tokens``: used minus estimated."""
        self._tokens.correct(more_tokens)
        self._places.release()

    def pause(self, seconds: float) -> None:
        """Holds back requests that have not started."""
        self._requests.pause(seconds)
