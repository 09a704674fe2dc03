"""A session of the gateway: one environment of one client, and what recreates its episode."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from env_servers.sessions import Session

if TYPE_CHECKING:
    from env_servers.gateway.workers import LocalWorker, Worker

_JOURNAL_BYTES = 4_000_000
"""an episode with more than that is not played again"""
_QUESTION_BYTES = 200
"""of a journal's question, about: they may be asked without end, and change nothing that ends"""
_DROP_SECONDS = 30.0


@dataclass(eq=False, kw_only=True)
class EnvSession(Session):
    """One environment of one client."""

    env_id: str
    kwargs: dict[str, Any]
    worker: Worker | LocalWorker | None = None
    """where its environment is; ``None``: nowhere yet, or its worker died"""
    journal: list[dict[str, Any]] | None = None
    """the reset, the steps since and the questions that left something behind, which make the same state
    again; ``None``: no episode"""
    taken: dict[str, Any] = field(default_factory=dict)
    """the journal's last reset or step"""
    last: bytes = b""
    """its answer"""
    steps: int = 0
    """actions taken in this episode"""
    lost: str | None = None
    """what became of the environment, when it failed; a reset makes another"""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _size: int = 0

    @property
    def busy(self) -> bool:
        return self.lock.locked()

    def begin(self, journal: list[dict[str, Any]], answer: bytes) -> None:
        """Notes an episode that was started, or taken over."""
        self._size = sum(len(entry.get("action", "")) for entry in journal)
        self.journal, self.last, self.lost = journal, answer, None
        self.taken, self.steps = journal[-1], len(journal) - 1

    def note(self, entry: dict[str, Any], answer: bytes) -> None:
        assert self.journal is not None
        self._size += len(entry["action"])
        self.journal.append(entry)
        self.taken, self.last, self.steps = entry, answer, self.steps + 1

    def note_question(self, entry: dict[str, Any]) -> None:
        """Notes a question, as long as the episode is one that is played again."""
        assert self.journal is not None
        self._size += len(entry.get("text", "")) + _QUESTION_BYTES
        if self.can_be_replayed:
            self.journal.append(entry)

    def fail(self, reason: str) -> None:
        self.journal, self.last, self.lost = None, b"", reason
        self.taken, self.steps = {}, 0

    @property
    def can_be_replayed(self) -> bool:
        return self._size <= _JOURNAL_BYTES

    def place(self, worker: Worker | LocalWorker) -> None:
        worker.sessions += 1
        self.worker = worker

    def unplace(self) -> None:
        if self.worker is not None:
            self.worker.sessions -= 1
            self.worker = None

    def end(self) -> None:
        worker = self.worker
        self.unplace()
        if worker is not None and not worker.gone:
            body = {"op": "drop", "session": self.id}
            worker.call(body, _DROP_SECONDS).add_done_callback(_ignore)


def _ignore(future: asyncio.Future[Any]) -> None:
    """Nobody waits for this answer; its failure is reported elsewhere."""
    if not future.cancelled():
        future.exception()
