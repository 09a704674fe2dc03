"""Sessions of every server: whose they are, how many there may be, when they are forgotten."""

from __future__ import annotations

import hmac
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, TypeVar

from env_servers.problems import ProblemError


class UnknownSessionError(ProblemError):
    """The client has no such session: closed, expired, another's, or the server began anew."""

    def __init__(self) -> None:
        words = "There is no such session: it was closed, it expired, or the server began anew."
        super().__init__(404, words)


@dataclass(frozen=True)
class Client:
    """The sender of a request."""

    owner: bytes
    """hash of what the client showed: only who shows it again gets at a session. Empty for one that
    shows nothing: its sessions are found by their names alone"""
    peer: str
    """what limits are counted by, which a client cannot choose: its address, and its token if any"""


@dataclass(eq=False, kw_only=True)
class Session:
    """The state that a server keeps between the requests of one client; each server adds its own."""

    client: Client
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    used: float = field(init=False)
    """when it was used last, in seconds of the store's clock"""
    lock: Any = None
    """held by the request that is using it, if one may take long"""

    @property
    def busy(self) -> bool:
        """True while a request is using it: then it does not expire."""
        return self.lock is not None and bool(self.lock.locked())

    def end(self) -> None:
        """Gives back what it holds; called once, when it was closed or has expired."""
        return


S = TypeVar("S", bound=Session)


class SessionStore:
    """All sessions of a server.

    Args:
        lifetime: seconds after which a session that nobody uses is forgotten.
    """

    def __init__(
        self,
        lifetime: float = 3600.0,
        limit: int = 4096,
        limit_per_client: int = 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lifetime, self.limit, self.limit_per_client = lifetime, limit, limit_per_client
        self._clock = clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        """least recently used first"""
        self._per_peer: Counter[str] = Counter()

    def __len__(self) -> int:
        self.expire()
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def add(self, session: S) -> S:
        """Takes in a new session."""
        self.expire()
        peer = session.client.peer
        if len(self._sessions) >= self.limit:
            words = f"All {self.limit} sessions of this server are in use."
            raise ProblemError(429, words, retry_after=5)
        if self._per_peer[peer] >= self.limit_per_client:
            words = f"This client has {self.limit_per_client} sessions already: close some first."
            raise ProblemError(429, words, retry_after=5)
        session.used = self._clock()
        self._sessions[session.id] = session
        self._per_peer[peer] += 1
        return session

    def get(self, session_id: str, client: Client, kind: type[S]) -> S:
        """The client's session of that id; using it keeps it alive.

        Raises:
            UnknownSessionError: there is none, or it is another's: the same answer for both.
        """
        self.expire()
        session = self._sessions.get(session_id)
        if not isinstance(session, kind) or not hmac.compare_digest(
            session.client.owner, client.owner
        ):
            raise UnknownSessionError
        session.used = self._clock()
        self._sessions.move_to_end(session_id)
        return session

    def remove(self, session: Session) -> None:
        """Ends a session; one that has ended already is fine."""
        if self._sessions.pop(session.id, None) is None:
            return
        peer = session.client.peer
        self._per_peer[peer] -= 1
        if not self._per_peer[peer]:
            del self._per_peer[peer]
        session.end()

    def expire(self) -> None:
        """Ends the sessions that nobody has used for too long and nobody is using now."""
        oldest = self._clock() - self.lifetime
        unused = takewhile(lambda session: session.used <= oldest, self._sessions.values())
        for session in [session for session in unused if not session.busy]:
            self.remove(session)
