"""A vLLM engine and a pool of environment workers in simulated time, for ``cluster_simulation.py``.

An engine is a processor that its sequences share: with b of them running, each gains one token every
``decode + decode_a_sequence * b`` seconds (continuous batching). Reading new context holds up all of them.
Both are advanced exactly from event to event; there is no time step.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Costs:
    """Seconds of everything that takes time; those of the file ``cluster_costs.json`` by default."""

    decode: float
    """of a decoding step, whatever is in the batch: reading the weights"""
    decode_a_sequence: float
    """of a decoding step, for each sequence in the batch"""
    prefill: float
    """of a token of new context"""
    turn: float
    """of a turn in the environment, prompts and parsing included"""
    train: float
    """of a token on one GPU: scores, forward and backward pass"""
    update: float
    """of an update, whatever its size: the optimiser's step, and weights sent to the engines"""

    def __post_init__(self) -> None:
        wrong = [name for name, value in vars(self).items() if value < 0]
        if wrong:
            raise ValueError(f"Costs are seconds, 0 or more; negative: {', '.join(wrong)}.")

    def step(self, sequences: int) -> float:
        """Seconds in which each of so many running sequences gains a token."""
        return self.decode + self.decode_a_sequence * sequences


@dataclass
class Engine:
    """One engine. ``advance`` to a moment before anything is changed at it."""

    costs: Costs
    now: float = 0.0
    busy: float = 0.0
    """seconds in which it had something to do"""
    served: float = 0.0
    """tokens that it has generated"""
    stalled: float = 0.0
    """seconds of reading context that are still to be done"""
    resident: set[int] = field(default_factory=set)
    """episodes that were sent to it and have not ended"""
    groups: set[int] = field(default_factory=set)
    """whose first prompt it has read"""
    _progress: float = 0.0
    """tokens that a sequence has gained which was there from the beginning"""
    _running: list[tuple[float, int]] = field(default_factory=list)
    """(progress at which it has all its tokens, episode), a heap"""

    def start(self, episode: int, context: float, tokens: float) -> None:
        """Begins a response.

        Args:
            episode: number.
            context: tokens to read first.
            tokens: of the response.
        """
        self.stalled += context * self.costs.prefill
        heapq.heappush(self._running, (self._progress + tokens, episode))

    def next_end(self) -> float | None:
        """When the next response is complete, if nothing changes before."""
        if not self._running:
            return None
        left = max(0.0, self._running[0][0] - self._progress)
        return self.now + self.stalled + left * self.costs.step(len(self._running))

    def advance(self, to: float) -> None:
        """Lets time pass, up to ``next_end`` at most."""
        passed, self.now = to - self.now, to
        if not self._running:
            return
        self.busy += passed
        reading = min(passed, self.stalled)
        self.stalled -= reading
        gained = (passed - reading) / self.costs.step(len(self._running))
        self._progress += gained
        self.served += gained * len(self._running)

    def take_ended(self) -> int:
        """The episode whose response is complete."""
        self._progress = max(self._progress, self._running[0][0])
        return heapq.heappop(self._running)[1]


class Workers:
    """Processes that step environments, first come, first served.

    Args:
        count: of them; ``None``: as many as are asked for.
    """

    def __init__(self, count: int | None) -> None:
        self.count = count
        self.busy = 0.0
        """seconds of all workers together"""
        self._waiting: deque[tuple[int, float]] = deque()
        self._ends: list[tuple[float, int, int]] = []
        self._number = itertools.count()

    def step(self, episode: int, now: float, seconds: float) -> None:
        """Steps an episode's environment once a worker is free."""
        self._waiting.append((episode, seconds))
        self._begin(now)

    def next_end(self) -> float | None:
        """When the next step is done."""
        return self._ends[0][0] if self._ends else None

    def take_ended(self) -> int:
        """The episode whose step is done."""
        end, _, episode = heapq.heappop(self._ends)
        self._begin(end)
        return episode

    def _begin(self, now: float) -> None:
        while self._waiting and (self.count is None or len(self._ends) < self.count):
            episode, seconds = self._waiting.popleft()
            self.busy += seconds
            heapq.heappush(self._ends, (now + seconds, next(self._number), episode))
