"""Which vLLM engine runs which episode: the least loaded, and one that has read the group's prompt already.

An episode stays on one engine from its first turn to its last, so that the engine's prefix cache holds
its dialogue. Episodes of a group share their first prompt: they are kept together as far as that leaves no
engine with less to do than another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class EpisodeQueue:
    """The episodes of a rollout, and how many of them each engine is running.

    Args:
        groups: rollout group of each episode, in order.
        engines: how many there are.
        resident: episodes that an engine runs at a time at most; ``None``: no limit.
    """

    def __init__(self, groups: Sequence[int], engines: int, resident: int | None = None) -> None:
        self.groups = list(groups)
        self.running = [0] * engines
        """episodes of each engine that have not ended"""
        self._limit = resident
        self._waiting = deque(range(len(groups)))
        self._read: list[set[int]] = [set() for _ in range(engines)]

    def start(self) -> list[tuple[int, int]]:
        """(episode, engine) of all that begin at once; call it first.

        Engines get equal numbers, in one piece each, so that a group is on as few engines as possible.
        """
        engines = len(self.running)
        share, more = divmod(len(self.groups), engines)
        sent = []
        for engine in range(engines):
            size = share + (engine < more)
            if self._limit is not None:
                size = min(size, self._limit)
            sent += [self._send(self._waiting[0], engine) for _ in range(size)]
        return sent

    def ended(self, engine: int) -> list[tuple[int, int]]:
        """(episode, engine) of what begins now that an episode of an engine has ended."""
        self.running[engine] -= 1
        if not self._waiting:
            return []
        least = min(range(len(self.running)), key=self.running.__getitem__)
        known = (e for e in self._waiting if self.groups[e] in self._read[least])
        return [self._send(next(known, self._waiting[0]), least)]

    def _send(self, episode: int, engine: int) -> tuple[int, int]:
        self._waiting.remove(episode)
        self.running[engine] += 1
        self._read[engine].add(self.groups[episode])
        return episode, engine
