"""The gateway, whatever the protocol: its limits, sessions on workers, and what becomes of calls."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from env_servers.gateway import calls as asked
from env_servers.gateway.settings import Offer
from env_servers.gateway.worker import LOST, REFUSED
from env_servers.gateway.workers import (
    EnvironmentDiedError,
    Fleet,
    LocalFleet,
    Worker,
    WorkerGoneError,
)
from env_servers.problems import ProblemError
from env_servers.sessions import Client, Session, SessionStore

CONFLICT, TOO_MANY, BUSY = 409, 429, 503
_ATTEMPTS = 5
"""how often a call is tried whose worker dies of another's"""
_DESCRIPTIONS = 256
"""kept"""
_LONGEST = 500_000
"""characters of an action"""
_DROP_SECONDS = 30.0

_NO_EPISODE = "No episode is played here, or its worker died: call reset() first, or restore it."

Place = Callable[[], Awaitable[Worker | LocalFleet]]
log = logging.getLogger("env_servers")


@dataclass(frozen=True)
class Limits:
    """Upper limits of a gateway."""

    workers: int = 2
    """processes that run environments"""
    sessions: int = 4096
    """sessions at a time"""
    sessions_per_client: int = 1024
    """sessions at a time of one client (token and address)"""
    session_seconds: float = 1800.0
    """an unused session is forgotten after so long"""
    step_seconds: float = 30.0
    """a call that takes longer costs its environment"""
    start_seconds: float = 300.0
    """the same if data is loaded or an episode is played again"""
    pending: int = 8192
    """calls that may wait"""
    pending_per_client: int = 2048
    """calls of one client that may wait"""
    memory_mb: int = 0
    """address space of a worker; 0: no limit"""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 0 or (value == 0 and name != "memory_mb"):
                raise ValueError(f"{name} must be positive, got {value}.")


@dataclass(eq=False, kw_only=True)
class EnvSession(Session):
    """One environment of one client."""

    env_id: str
    kwargs: dict[str, Any]
    worker: Worker | LocalFleet | None = None
    """where its environment is; ``None``: nowhere yet, or it failed"""
    steps: int | None = None
    """actions taken in this episode; ``None``: there is no episode"""
    taken: asked.Step | None = None
    """the last action"""
    last: bytes = b""
    """its answer"""
    lost: str | None = None
    """what became of the environment, when it failed; a reset makes another"""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def end(self) -> None:
        worker, self.worker = self.worker, None
        if worker is not None and not worker.gone:
            worker.sessions -= 1
            dropped = worker.call({"op": "drop", "session": self.id}, _DROP_SECONDS)
            # nobody waits for the answer; its failure is reported elsewhere
            dropped.add_done_callback(lambda future: future.cancelled() or future.exception())


class Gateway:
    """Answers calls, for environments that run in the fleet."""

    def __init__(
        self, offer: Offer, limits: Limits, sessions: SessionStore, fleet: Fleet | LocalFleet
    ) -> None:
        self.offer, self.limits, self.sessions, self.fleet = offer, limits, sessions, fleet
        self._pending: Counter[str] = Counter()
        self._descriptions: dict[str, bytes] = {}

    @property
    def pending(self) -> int:
        """Calls that are being answered."""
        return self._pending.total()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs the workers, and forgets sessions, inside the block."""
        jobs = [asyncio.create_task(job) for job in (self.fleet.run(), self._sweep())]
        try:
            yield
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(15.0, self.limits.session_seconds / 4))
            self.sessions.expire()

    async def answer(self, client: Client, calls: Sequence[Any]) -> list[bytes | ProblemError]:
        """The results of the calls, in their order; executed at the same time, or refused as a whole.

        A result is the JSON of an answer, or what went wrong.
        """
        limits, named = self.limits, [call.session for call in calls if hasattr(call, "session")]
        if len(set(named)) != len(named):
            raise ProblemError(REFUSED, "A request has at most one call for a session.")
        if self._pending[client.peer] + len(calls) > limits.pending_per_client:
            words = "This client has too many calls waiting: send fewer at once."
            raise ProblemError(TOO_MANY, words, retry_after=1)
        if self.pending + len(calls) > limits.pending:
            raise ProblemError(BUSY, "Too many calls are waiting: try again.", retry_after=1)
        these = Counter({client.peer: len(calls)})
        self._pending += these
        try:
            return list(await asyncio.gather(*(self._one(client, call) for call in calls)))
        finally:
            self._pending -= these

    async def _one(self, client: Client, call: Any) -> bytes | ProblemError:
        try:
            if isinstance(call, asked.About):
                return await self._about(call)
            if isinstance(call, asked.Open):
                return await self._open(client, call)
            session = self.sessions.get(call.session, client, EnvSession)
            async with session.lock:
                self.sessions.get(call.session, client, EnvSession)  # it may have been closed
                return await self._of_session(session, call)
        except ProblemError as error:
            return error

    async def _about(self, call: asked.About) -> bytes:
        kwargs = self.offer.settings(call.env_id, call.kwargs)
        body = {**call.model_dump(), "kwargs": kwargs}
        key = json.dumps(body, sort_keys=True)
        if key in self._descriptions:
            return self._descriptions[key]
        try:
            answer = await self._ask(self.fleet.place, body, self.limits.start_seconds)
        except EnvironmentDiedError as error:
            raise ProblemError(LOST, f"The environment failed: {error}.") from error
        if call.op == "describe":
            if len(self._descriptions) >= _DESCRIPTIONS:
                self._descriptions.clear()
            self._descriptions[key] = answer
        return answer

    async def _open(self, client: Client, call: asked.Open) -> bytes:
        described = await self._about(
            asked.About(op="describe", env_id=call.env_id, kwargs=call.kwargs)
        )
        kwargs = self.offer.settings(call.env_id, call.kwargs)
        session = self.sessions.add(EnvSession(client=client, env_id=call.env_id, kwargs=kwargs))
        fingerprint = json.loads(described)["fingerprint"]
        return json.dumps({"session": session.id, "fingerprint": fingerprint}).encode()

    async def _of_session(self, session: EnvSession, call: Any) -> bytes:
        if isinstance(call, asked.Close):
            self.sessions.remove(session)
            return b"{}"
        body = call.model_dump(exclude_none=True)
        if isinstance(call, asked.Reset):
            answer = await self._execute(session, body)
            session.steps, session.taken, session.lost = 0, None, None
            return answer
        if isinstance(call, asked.Restore):
            if call.reset.seed is None and call.reset.rng is None:
                words = "To be restored, an episode needs its seed."
                raise ProblemError(REFUSED, words, exception="ValueError")
            session.steps = None
            answer = await self._execute(session, body)
            session.steps, session.taken, session.lost = len(call.steps), None, None
            return answer
        if session.lost is not None:
            raise ProblemError(LOST, session.lost)
        if session.steps is None:
            raise ProblemError(CONFLICT, _NO_EPISODE)
        if isinstance(call, asked.Ask):
            return await self._execute(session, body)
        if len(call.action) > _LONGEST:
            raise ProblemError(REFUSED, f"An action has at most {_LONGEST:,} characters.")
        if call.at is not None and call.at != session.steps:
            if call == session.taken:
                return session.last  # sent again, because the answer did not arrive
            words = f"This action is for an episode of {call.at} steps; {session.steps} were taken."
            raise ProblemError(CONFLICT, words)
        answer = await self._execute(session, body)
        session.steps, session.taken, session.last = session.steps + 1, call, answer
        return answer

    async def _execute(self, session: EnvSession, body: dict[str, Any]) -> bytes:
        """Asks the session's environment, which an episode that begins makes if there is none."""
        limits = self.limits
        seconds = limits.start_seconds if body["op"] == "restore" else limits.step_seconds

        async def place() -> Worker | LocalFleet:
            if session.worker is None or session.worker.gone:
                if body["op"] not in ("reset", "restore"):
                    raise ProblemError(CONFLICT, _NO_EPISODE)
                session.worker = await self.fleet.place()
                session.worker.sessions += 1
                made = {"session": session.id, "env_id": session.env_id, "kwargs": session.kwargs}
                try:
                    await session.worker.call({"op": "make", **made}, limits.start_seconds)
                except ProblemError:
                    session.end()
                    raise
            return session.worker

        try:
            return await self._ask(place, body, seconds)
        except EnvironmentDiedError as error:
            session.end()
            words = f"The environment failed: {error}. Call reset() to begin a new episode."
            session.steps, session.lost = None, words
            event = {"event": "environment lost", "env_id": session.env_id}
            log.warning(json.dumps({**event, "reason": str(error)[:200]}))
            raise ProblemError(LOST, session.lost) from error

    async def _ask(self, place: Place, body: dict[str, Any], seconds: float) -> bytes:
        for _ in range(_ATTEMPTS):
            try:
                worker = await place()
                return await worker.call(body, seconds)
            except WorkerGoneError:
                continue
        raise ProblemError(BUSY, "Workers keep dying: try again later.", retry_after=5)
