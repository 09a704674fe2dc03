"""The path of a request: the endpoint's address, a proxy on the way, waits between tries, and limits."""

from __future__ import annotations

import asyncio
import email.utils
import importlib
import ipaddress
import random
import re
import time
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from paw_train.settings.endpoint import EndpointSettings

FIRST_WAIT = 0.5
"""most seconds before the first retry; twice as many before each later one, up to sixty times as many"""
CONNECT_SECONDS = 15.0
"""for a connection; a host that accepts none is down, and one that takes long to answer is not"""
LONGEST_ASKED = 600.0
"""seconds; a server that asks for a longer pause (a daily quota is used up) ends the run as a budget does"""
_PATHS = re.compile(r"/(chat/)?completions/?$")


class EndpointError(ValueError):
    """The endpoint cannot serve this run at all: wrong key, model or address, or an empty account."""


@dataclass(frozen=True, slots=True)
class Route:
    """The way to an endpoint."""

    base: str
    """the address, to which paths such as ``/chat/completions`` are appended"""
    query: tuple[tuple[str, str], ...]
    """appended to each path (``api-version`` of Azure)"""
    shown: str
    """the address for messages and results: without a password and without the query"""
    proxy: str | None = None
    """the proxy's address; ``None``: the server is asked directly"""
    proxy_name: str | None = None
    """the proxy for messages, with the environment variable that names it"""
    host: str = ""
    """the server's, as ``NO_PROXY`` would name it"""

    def client(self) -> Any:
        from openai import DefaultAsyncHttpxClient
        from openai._constants import DEFAULT_CONNECTION_LIMITS

        httpx = http_library()
        try:
            transport = httpx.AsyncHTTPTransport(proxy=self.proxy, limits=DEFAULT_CONNECTION_LIMITS)
        except (ValueError, ImportError, httpx.InvalidURL) as error:
            raise EndpointError(
                f"{self.shown} cannot be asked by {self.proxy_name}: {error} "
                f"NO_PROXY={self.host} asks it directly."
            ) from error
        # an explicit transport: otherwise httpx reads the proxies itself, and fails on entries of NO_PROXY
        return DefaultAsyncHttpxClient(transport=transport, params=self.query)


def http_library() -> Any:
    """The module with which the installed OpenAI client makes requests: httpx, or since 3.0 httpx2."""
    from openai import DefaultAsyncHttpxClient

    bases = (base for base in DefaultAsyncHttpxClient.__mro__ if base.__name__ == "AsyncClient")
    return importlib.import_module(next(bases).__module__.partition(".")[0])


def route_to(url: str) -> Route:
    httpx = http_library()
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError("a scheme or a host is missing")
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL) as error:
        raise EndpointError(
            f"endpoint.url={url!r} is not an address ({error}): expected http://HOST:PORT/v1 or "
            "https://HOST/v1."
        ) from error
    bare = parts._replace(path=_PATHS.sub("", parts.path).rstrip("/"), query="", fragment="")
    proxy, variable = _proxy(parts)
    name = f"the proxy {_without_password(proxy)} ({variable})" if proxy else None
    base, query = bare.geturl(), tuple(parse_qsl(parts.query, keep_blank_values=True))
    return Route(base, query, _without_password(base), proxy, name, parts.hostname or "")


def _without_password(url: str) -> str:
    return re.sub(r"//[^/]*@", "//", url)


def _proxy(parts: SplitResult) -> tuple[str | None, str]:
    """The proxy that the environment names for an address, if it is to be used, and its variable."""
    proxies = urllib.request.getproxies()
    key = parts.scheme if parts.scheme in proxies else "all"
    proxy = proxies.get(key)
    if not proxy or _direct(parts, proxies.get("no", "")):
        return None, ""
    return (proxy if "://" in proxy else f"http://{proxy}"), f"{key}_proxy"


def _direct(parts: SplitResult, exempt: str) -> bool:
    """True if an address is asked without a proxy: always on loopback, else by ``NO_PROXY``."""
    host = parts.hostname or ""
    if host == "localhost" or urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if address.is_loopback:
        return True
    for entry in exempt.split(","):
        with suppress(ValueError):  # of a name
            if address in ipaddress.ip_network(re.sub(r"[\[\]\s]", "", entry), strict=False):
                return True
    return False


# --- waits --------------------------------------------------------------------------------------------


def asked_wait(error: Exception, now: float) -> float | None:
    """Seconds that the server asks to wait (``Retry-After``: seconds or a date), or ``None``."""
    headers: Mapping[str, str] = getattr(getattr(error, "response", None), "headers", None) or {}
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers.get(name, "")) * unit)
        except ValueError:
            continue
    try:
        date = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    return max(0.0, date.timestamp() - now)


_RANDOM = random.SystemRandom()


def longest_wait() -> float:
    """The bound of the waits that the server does not ask for, in seconds."""
    return 60 * FIRST_WAIT


def retry_wait(failures: int, asked: float | None) -> float:
    """Seconds until a request is tried again: exponential with full jitter, or as long as the server asks.

    Full jitter (a uniform number below the exponential bound) keeps requests that failed together
    from coming back together (M. Brooker, "Exponential Backoff and Jitter", AWS 2015).

    Args:
        failures: of the request so far.
        asked: what the server asks for (``asked_wait``).
    """
    bound = min(longest_wait(), FIRST_WAIT * 2.0 ** (failures - 1))
    if asked is None:
        return _RANDOM.uniform(0.0, bound)
    return asked + _RANDOM.uniform(0.0, min(bound, 1.0))


# --- limits -------------------------------------------------------------------------------------------


class BudgetReached(Exception):
    """A budget leaves no room for a further request. The run stops; the same command goes on."""


class Limits:
    """Lets requests through: so many at a time, none while the server asked for a pause, within a budget.

    A request passes only if the most that it may cost still fits. One that will fit if others under way cost
    less than they might waits for them to end.
    """

    def __init__(self, settings: EndpointSettings) -> None:
        self._settings = settings
        self._places = asyncio.Semaphore(settings.concurrency)
        self._resumed = 0.0
        """end of the pause, in monotonic seconds"""
        self._requests, self._cost = 0, 0.0
        self._claims: list[float] = []
        """the most that each request under way may cost"""
        self._ended = asyncio.Condition()

    def continue_from(self, earlier: Limits) -> None:
        """Counts what an earlier model of the same command has used."""
        self._requests, self._cost = earlier._requests, earlier._cost

    @asynccontextmanager
    async def request(self, most: float) -> AsyncIterator[None]:
        """Waits until a request that costs ``most`` may be sent; raises ``BudgetReached`` if it never may."""
        async with self._places:
            await asyncio.sleep(max(0.0, self._resumed - time.monotonic()))
            async with self._ended:
                while self._reached(most + sum(self._claims)):
                    if reached := self._reached(most):
                        raise BudgetReached(f"{reached} leaves no room for a further request.")
                    await self._ended.wait()
                self._requests += 1
                self._claims.append(most)
            try:
                yield
            finally:
                async with self._ended:
                    self._claims.remove(most)
                    self._ended.notify_all()

    def charge(self, cost: float) -> None:
        """Adds what a request has cost; one that failed is taken to be free."""
        self._cost += cost

    def _reached(self, further: float) -> str | None:
        """The setting that one more request and this cost would exceed."""
        s = self._settings
        uses: tuple[tuple[str, float | None, float], ...] = (
            ("budget_requests", s.budget_requests, self._requests + 1),
            ("budget_cost", s.budget_cost, self._cost + further),
        )
        for name, limit, use in uses:
            if limit is not None and use > limit:
                return f"endpoint.{name}={limit:g}"
        return None

    @property
    def paused(self) -> bool:
        return time.monotonic() < self._resumed

    def pause(self, seconds: float) -> None:
        self._resumed = max(self._resumed, time.monotonic() + seconds)
