"""Sessions: whose they are, what was played in them, when they are forgotten."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from env_servers.gateway.process import Worker

_JOURNAL_BYTES = 4_000_000
"""an episode with more than that is not played again"""


class TooManySessionsError(Exception):
    """There are too many sessions; the message says whose."""


class UnknownSessionError(KeyError):
    """The client has no such session: closed, expired, another's, or the server began anew."""


@dataclass(frozen=True)
class Client:
    """Who asks."""

    owner: bytes
    """hash of the token and the client's key: only who shows both again gets at a session"""
    peer: str
    """what limits are counted by, which a client cannot choose: the token and the address"""


@dataclass
class Session:
    """One environment of one client."""

    id: str
    client: Client
    env_id: str
    kwargs: dict[str, Any]
    used: float
    """when it was used last, in seconds of the store's clock"""
    worker: Worker | None = None
    """where its environment is; ``None``: nowhere yet, or its worker died"""
    journal: list[dict[str, Any]] | None = None
    """the reset and the steps since, which make the same state again; ``None``: no episode, or one
    that is too long"""
    last: bytes = b""
    """answer of the journal's last call"""
    lost: str | None = None
    """what became of the environment, when it failed; a reset makes another"""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _size: int = 0

    @property
    def steps(self) -> int:
        """Actions taken in this episode."""
        return len(self.journal) - 1 if self.journal else 0

    def begin(self, journal: list[dict[str, Any]], answer: bytes) -> None:
        """Notes an episode that was started, or taken over."""
        self._size = sum(len(entry.get("action", "")) for entry in journal)
        self.journal, self.last, self.lost = journal, answer, None

    def note(self, entry: dict[str, Any], answer: bytes) -> None:
        """Notes a step."""
        assert self.journal is not None
        self._size += len(entry["action"])
        self.journal.append(entry)
        self.last = answer

    def fail(self, reason: str) -> None:
        """Notes that the environment is gone."""
        self.journal, self.last, self.lost = None, b"", reason

    @property
    def can_be_replayed(self) -> bool:
        """Whether its journal is kept short enough."""
        return self._size <= _JOURNAL_BYTES


class SessionStore:
    """All sessions of a gateway.

    Args:
        lifetime: seconds after which a session that nobody uses is forgotten.
        limit: sessions at a time.
        limit_per_client: sessions at a time of one peer.
        clock: tells the time in seconds.
    """

    def __init__(
        self,
        lifetime: float,
        limit: int,
        limit_per_client: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lifetime, self._limit, self._limit_per_client = lifetime, limit, limit_per_client
        self._clock = clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        """least recently used first"""
        self._per_peer: dict[str, int] = {}
        self.opened = 0
        """sessions so far"""

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def open(self, client: Client, env_id: str, kwargs: dict[str, Any]) -> Session:
        """A new session.

        Raises:
            TooManySessionsError: no more for now.
        """
        if len(self._sessions) >= self._limit:
            raise TooManySessionsError(f"All {self._limit} sessions of this gateway are in use.")
        if self._per_peer.get(client.peer, 0) >= self._limit_per_client:
            raise TooManySessionsError(
                f"This client has {self._limit_per_client} sessions already: close some first."
            )
        session = Session(secrets.token_urlsafe(16), client, env_id, kwargs, self._clock())
        self._sessions[session.id] = session
        self._per_peer[client.peer] = self._per_peer.get(client.peer, 0) + 1
        self.opened += 1
        return session

    def get(self, session_id: str, client: Client) -> Session:
        """The client's session of that id; using it keeps it alive.

        Raises:
            UnknownSessionError: there is none, or it is another's: the same answer for both.
        """
        session = self._sessions.get(session_id)
        if session is None or not hmac.compare_digest(session.client.owner, client.owner):
            raise UnknownSessionError(session_id)
        session.used = self._clock()
        self._sessions.move_to_end(session_id)
        return session

    def remove(self, session: Session) -> None:
        """Forgets a session; one that is forgotten already is fine."""
        if self._sessions.pop(session.id, None) is None:
            return
        left = self._per_peer[session.client.peer] - 1
        if left:
            self._per_peer[session.client.peer] = left
        else:
            del self._per_peer[session.client.peer]

    def expired(self) -> list[Session]:
        """The sessions that nobody has used for too long and nobody is using now."""
        oldest = self._clock() - self._lifetime
        found = []
        for session in self._sessions.values():
            if session.used > oldest:
                break
            if not session.lock.locked():
                found.append(session)
        return found
