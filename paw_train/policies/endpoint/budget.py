"""The budgets of a run at an endpoint: money, tokens, requests and time, none of them exceeded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from paw_train.settings.endpoint import EndpointSettings


class BudgetReached(Exception):
    """A budget leaves no room for a further request. The run stops; the same command goes on."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The most that a request under way may take."""

    tokens: float
    cost: float


class Budget:
    """Lets a request through only if all that it may take still fits.

    A request that fits once others under way have taken less than they might waits for them.

    Args:
        settings: the limits and prices.
        clock: seconds, growing.
    """

    def __init__(
        self, settings: EndpointSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings, self._clock = settings, clock
        minutes = settings.budget_minutes
        self._deadline = None if minutes is None else clock() + 60.0 * minutes
        self._requests = 0
        self._tokens = 0.0
        self._cost = 0.0
        self._running = 0
        self._claimed = Claim(0.0, 0.0)
        self._freed = asyncio.Condition()

    def continue_from(self, earlier: Budget) -> None:
        """Counts what an earlier model of the same command has used."""
        self._deadline, self._requests = earlier._deadline, earlier._requests
        self._tokens, self._cost = earlier._tokens, earlier._cost

    async def enter(self, prompt_tokens: float, completion_tokens: float) -> Claim:
        """Waits until a request fits, and reserves the most that it may take.

        Raises:
            BudgetReached: it does not fit, even if the requests under way take nothing.
        """
        cost = self._settings.cost(prompt_tokens, completion_tokens)
        claim = Claim(prompt_tokens + completion_tokens, cost)
        async with self._freed:
            while (reached := self._reached(claim)) is not None:
                if not self._running or self._reached(claim, alone=True) is not None:
                    raise BudgetReached(f"{reached} leaves no room for a further request.")
                await self._freed.wait()
            self._requests += 1
            self._running += 1
            self._claimed = self._plus(self._claimed, claim, 1)
        return claim

    async def in_time(self, wait: float) -> None:
        """Waits so many seconds.

        Raises:
            BudgetReached: at once, if the time runs out before.
        """
        if wait and self._deadline is not None and self._clock() + wait >= self._deadline:
            raise BudgetReached(f"{self._of_time()} leaves no room for a wait of {wait:,.1f} s.")
        await asyncio.sleep(wait)

    def _of_time(self) -> str:
        return f"endpoint.budget_minutes={self._settings.budget_minutes:g}"

    async def leave(
        self,
        claim: Claim,
        prompt_tokens: float,
        completion_tokens: float,
        cached_tokens: float = 0.0,
    ) -> None:
        """Replaces a claim by what was used."""
        async with self._freed:
            self._running -= 1
            self._claimed = self._plus(self._claimed, claim, -1)
            self._tokens += prompt_tokens + completion_tokens
            self._cost += self._settings.cost(prompt_tokens, completion_tokens, cached_tokens)
            self._freed.notify_all()

    @staticmethod
    def _plus(total: Claim, claim: Claim, sign: int) -> Claim:
        return Claim(total.tokens + sign * claim.tokens, total.cost + sign * claim.cost)

    def _reached(self, claim: Claim, alone: bool = False) -> str | None:
        """The setting that a request would exceed; ``alone``: with nothing else under way."""
        s = self._settings
        others = Claim(0.0, 0.0) if alone else self._claimed
        uses: tuple[tuple[str, float | None, float], ...] = (
            ("budget_requests", s.budget_requests, self._requests + 1),
            ("budget_tokens", s.budget_tokens, self._tokens + others.tokens + claim.tokens),
            ("budget_cost", s.budget_cost, self._cost + others.cost + claim.cost),
        )
        for name, limit, use in uses:
            if limit is not None and use > limit:
                return f"endpoint.{name}={limit:g}"
        if self._deadline is not None and self._clock() >= self._deadline:
            return self._of_time()
        return None
