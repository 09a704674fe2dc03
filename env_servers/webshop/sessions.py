"""Sessions of shoppers: made, found, left to expire, limited in number."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from paw_gym.core import Task
from paw_gym.envs.webshop.pages import Page
from paw_gym.envs.webshop.shop import Shop, Visit


class SessionLimitError(Exception):
    """There are too many sessions; the message says whose."""


class UnknownSessionError(KeyError):
    """There is no such session: it was closed, it expired, or the server was started anew."""


@dataclass
class Session:
    """One shopper with one goal."""

    id: str
    task: Task
    split: str
    client: str
    visit: Visit = field(default_factory=Visit)
    used: float = 0.0
    """when it was used last, in seconds of the store's clock"""

    def page(self, shop: Shop) -> Page:
        """The page that is shown."""
        return shop.show(self.visit, self.task.data)


class SessionStore:
    """All sessions of a server.

    Args:
        lifetime: seconds after which a session that nobody uses is forgotten.
        limit: sessions at a time.
        limit_per_client: sessions at a time of one address.
        clock: tells the time in seconds.
    """

    def __init__(
        self,
        lifetime: float = 3600.0,
        limit: int = 4096,
        limit_per_client: int = 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if lifetime <= 0 or limit < 1 or limit_per_client < 1:
            raise ValueError("lifetime and limits of sessions must be positive.")
        self.lifetime, self.limit, self.limit_per_client = lifetime, limit, limit_per_client
        self._clock = clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        """least recently used first"""
        self._per_client: dict[str, int] = {}
        self.opened = 0
        """sessions so far"""

    def __len__(self) -> int:
        self._expire()
        return len(self._sessions)

    def open(self, task: Task, split: str, client: str) -> Session:
        """A new session.

        Raises:
            SessionLimitError: there are too many.
        """
        self._expire()
        if len(self._sessions) >= self.limit:
            raise SessionLimitError(f"All {self.limit} sessions of this server are in use.")
        if self._per_client.get(client, 0) >= self.limit_per_client:
            raise SessionLimitError(
                f"This client has {self.limit_per_client} sessions already: close some first."
            )
        session = Session(secrets.token_urlsafe(16), task, split, client, used=self._clock())
        self._sessions[session.id] = session
        self._per_client[client] = self._per_client.get(client, 0) + 1
        self.opened += 1
        return session

    def get(self, session_id: str) -> Session:
        """The session of an id; using it keeps it alive.

        Raises:
            UnknownSessionError: there is none.
        """
        self._expire()
        session = self._sessions.get(session_id)
        if session is None:
            raise UnknownSessionError(session_id)
        session.used = self._clock()
        self._sessions.move_to_end(session_id)
        return session

    def close(self, session_id: str) -> None:
        """Forgets a session; one that is not there is fine."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            left = self._per_client[session.client] - 1
            if left:
                self._per_client[session.client] = left
            else:
                del self._per_client[session.client]

    def _expire(self) -> None:
        oldest = self._clock() - self.lifetime
        while self._sessions:
            session_id, session = next(iter(self._sessions.items()))
            if session.used > oldest:
                return
            self.close(session_id)
