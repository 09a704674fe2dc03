"""The gateway, whatever the protocol: its limits, sessions on workers, and what becomes of calls."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from env_servers.gateway import calls as asked
from env_servers.gateway.settings import Offer
from env_servers.gateway.worker import LOST, OK, REFUSED
from env_servers.gateway.workers import (
    EnvironmentDiedError,
    Fleet,
    LocalFleet,
    LocalWorker,
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
_JOURNAL_BYTES = 4_000_000
"""an episode with more than that is not played again"""
_QUESTION_BYTES = 200
"""of a journal's question, about: they may be asked without end, and change nothing that ends"""
_DROP_SECONDS = 30.0

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


class Result(NamedTuple):
    """The result of a call."""

    status: int
    body: bytes
    """JSON"""


def refusal(status: int, detail: str, **more: Any) -> Result:
    return Result(status, ProblemError(status, detail, **more).content())


class Gateway:
    """Answers calls.

    Args:
        sessions: where sessions are kept, if other routes keep theirs there too; ``None``: a
            store of its own, with these limits.
        fleet: where environments run; ``None``: in processes of their own, with these limits.
    """

    def __init__(
        self,
        offer: Offer,
        limits: Limits,
        modules: Sequence[str] = (),
        sessions: SessionStore | None = None,
        fleet: Fleet | LocalFleet | None = None,
    ) -> None:
        self.offer, self.limits = offer, limits
        if sessions is None:  # an empty store is falsy
            sessions = SessionStore(
                limits.session_seconds, limits.sessions, limits.sessions_per_client
            )
        self.sessions = sessions
        self.fleet = fleet or Fleet(limits.workers, modules, limits.memory_mb)
        self.pending = 0
        """calls that are being answered"""
        self.replayed = 0
        """sessions that were brought back after their worker died"""
        self._pending_of: Counter[str] = Counter()
        self._descriptions: OrderedDict[str, bytes] = OrderedDict()
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.fleet.start()
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep())

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        for session in self.sessions:
            self.sessions.remove(session)
        await self.fleet.close()

    async def _sweep(self) -> None:
        pause = min(15.0, self.limits.session_seconds / 4)
        while True:
            await asyncio.sleep(pause)
            self.sessions.expire()

    # --- admission -----------------------------------------------------------------------------------

    async def answer(self, client: Client, calls: Sequence[Any]) -> list[Result]:
        """The results of the calls, in their order; executed at the same time, or refused as a whole."""
        self._admit(client, calls)
        count = len(calls)
        self.pending += count
        self._pending_of[client.peer] += count
        try:
            return list(await asyncio.gather(*(self._one(client, call) for call in calls)))
        finally:
            self.pending -= count
            self._pending_of[client.peer] -= count
            if not self._pending_of[client.peer]:
                del self._pending_of[client.peer]

    def _admit(self, client: Client, calls: Sequence[Any]) -> None:
        limits = self.limits
        named = [call.session for call in calls if hasattr(call, "session")]
        if len(set(named)) != len(named):
            raise ProblemError(REFUSED, "A request has at most one call for a session.")
        if self._pending_of[client.peer] + len(calls) > limits.pending_per_client:
            words = "This client has too many calls waiting: send fewer at once."
            raise ProblemError(TOO_MANY, words, retry_after=1)
        if self.pending + len(calls) > limits.pending:
            raise ProblemError(BUSY, "Too many calls are waiting: try again.", retry_after=1)

    async def _one(self, client: Client, call: Any) -> Result:
        try:
            return await self._dispatch(client, call)
        except ProblemError as error:
            return Result(error.status, error.content())

    async def _dispatch(self, client: Client, call: Any) -> Result:
        if isinstance(call, asked.Describe | asked.Tasks | asked.TaskOf):
            return await self._about(call)
        if isinstance(call, asked.Open):
            return await self._open(client, call)
        session = self.sessions.get(call.session, client, EnvSession)
        async with session.lock:
            self.sessions.get(call.session, client, EnvSession)  # it may have been closed meanwhile
            method: Callable[[EnvSession, Any], Awaitable[Result]] = getattr(self, f"_{call.op}")
            return await method(session, call)

    # --- without a session ---------------------------------------------------------------------------

    async def _about(self, call: Any) -> Result:
        kwargs = self.offer.settings(call.env_id, call.kwargs)
        body = {**call.model_dump(), "kwargs": kwargs}
        key = json.dumps(body, sort_keys=True)
        if key in self._descriptions:
            self._descriptions.move_to_end(key)
            return Result(OK, self._descriptions[key])
        for _ in range(_ATTEMPTS):
            try:
                worker = await self.fleet.place()
                result = Result(*await worker.call(body, self.limits.start_seconds))
            except WorkerGoneError:
                continue
            except EnvironmentDiedError as error:
                return refusal(LOST, f"The environment failed: {error}.")
            if result.status == OK and call.op == "describe":
                self._descriptions[key] = result.body
                while len(self._descriptions) > _DESCRIPTIONS:
                    self._descriptions.popitem(last=False)
            return result
        raise ProblemError(BUSY, "Workers keep dying: try again later.", retry_after=5)

    async def _open(self, client: Client, call: asked.Open) -> Result:
        described = await self._about(
            asked.Describe(op="describe", env_id=call.env_id, kwargs=call.kwargs)
        )
        if described.status != OK:
            return described
        kwargs = self.offer.settings(call.env_id, call.kwargs)
        session = self.sessions.add(EnvSession(client=client, env_id=call.env_id, kwargs=kwargs))
        fingerprint = json.loads(described.body)["fingerprint"]
        answer = {"session": session.id, "fingerprint": fingerprint}
        return Result(OK, json.dumps(answer).encode())

    # --- of a session --------------------------------------------------------------------------------

    async def _close(self, session: EnvSession, call: asked.Close) -> Result:
        self.sessions.remove(session)
        return Result(OK, b"{}")

    async def _reset(self, session: EnvSession, call: asked.Reset) -> Result:
        entry = call.model_dump(exclude_none=True, exclude={"op", "session"})
        if call.seed is None and call.rng is None:
            entry["seed"] = secrets.randbits(63)  # known, so that it can be played again
        result = await self._execute(session, {"op": "reset", **entry}, replay=False)
        if result.status == OK:
            session.begin([entry], result.body)
        return result

    async def _step(self, session: EnvSession, call: asked.Step) -> Result:
        missing = _no_episode(session)
        if missing is not None:
            return missing
        entry = call.model_dump(exclude_none=True, exclude={"op", "session", "at"})
        if call.at is not None and call.at != session.steps:
            if call.at == session.steps - 1 and session.taken == entry:
                return Result(OK, session.last)  # sent again, because the answer did not arrive
            return refusal(
                CONFLICT,
                f"This action is for an episode of {call.at} steps; {session.steps} were taken.",
            )
        result = await self._execute(session, {"op": "step", **entry})
        if result.status == OK:
            session.note(entry, result.body)
        return result

    async def _ask(self, session: EnvSession, call: asked.Ask) -> Result:
        missing = _no_episode(session)
        if missing is not None:
            return missing
        entry = call.model_dump(exclude_defaults=True, exclude={"op", "session"})
        result = await self._execute(session, {"op": "ask", **entry})
        if session.journal is not None and _leaves_something(entry, result):
            session.note_question(entry)
        return result

    async def _restore(self, session: EnvSession, call: asked.Restore) -> Result:
        journal = [
            call.reset.model_dump(exclude_none=True),
            *(step.model_dump(exclude_none=True) for step in call.steps),
        ]
        if call.reset.seed is None and call.reset.rng is None:
            words = "To be restored, an episode needs its seed."
            return refusal(REFUSED, words, exception="ValueError")
        body = {"op": "replay", "journal": journal}
        result = await self._execute(session, body, replay=False)
        if result.status == OK:
            session.begin(journal, result.body)
        else:
            session.fail(session.lost or "it could not be restored")
        return result

    # --- on a worker ---------------------------------------------------------------------------------

    async def _execute(
        self, session: EnvSession, body: dict[str, Any], replay: bool = True
    ) -> Result:
        """Asks the session's environment, which is made (and brought to its state) if it is gone."""
        seconds = self.limits.start_seconds if body["op"] == "replay" else self.limits.step_seconds
        for _ in range(_ATTEMPTS):
            try:
                refused = await self._ensure_placed(session, replay)
                if refused is not None:
                    return refused
                assert session.worker is not None
                body["session"] = session.id
                result = Result(*await session.worker.call(body, seconds))
            except WorkerGoneError:
                session.unplace()
                continue
            except EnvironmentDiedError as error:
                session.unplace()
                return self._fail(session, str(error))
            if result.status == LOST:  # the environment raised; its worker has dropped it
                session.unplace()
                return self._fail(session, json.loads(result.body)["detail"])
            return result
        raise ProblemError(BUSY, "Workers keep dying: try again later.", retry_after=5)

    async def _ensure_placed(self, session: EnvSession, replay: bool) -> Result | None:
        if session.worker is not None and not session.worker.gone:
            return None
        session.unplace()
        worker = await self.fleet.place()
        session.place(worker)
        body = {
            "op": "make",
            "session": session.id,
            "env_id": session.env_id,
            "kwargs": session.kwargs,
        }
        result = Result(*await worker.call(body, self.limits.start_seconds))
        if result.status != OK:
            session.unplace()
            return result
        return await self._bring_back(session) if replay and session.journal else None

    async def _bring_back(self, session: EnvSession) -> Result | None:
        """Plays the session's episode again in its new environment; the result must be the same."""
        assert session.worker is not None
        if not session.can_be_replayed:
            session.end()
            return self._fail(session, "its worker died, and the episode is too long to restore")
        body = {"op": "replay", "session": session.id, "journal": session.journal}
        result = Result(*await session.worker.call(body, self.limits.start_seconds))
        if result.status != OK or result.body != session.last:
            session.end()
            return self._fail(
                session, "its worker died, and played again the episode went another way"
            )
        self.replayed += 1
        return None

    def _fail(self, session: EnvSession, reason: str) -> Result:
        session.fail(reason)
        event = {"event": "environment lost", "env_id": session.env_id, "reason": reason[:200]}
        log.warning(json.dumps(event))
        return refusal(LOST, _lost(reason))


def _no_episode(session: EnvSession) -> Result | None:
    if session.lost is not None:
        return refusal(LOST, _lost(session.lost))
    if session.journal is None:
        return refusal(CONFLICT, "No episode was started: call reset() first.")
    return None


def _leaves_something(question: dict[str, Any], result: Result) -> bool:
    """Says if the episode depends on a question that was asked, through an expert or the generator."""
    if question["what"] in ("expert", "advice") or "rng" in question:
        return True
    return result.status == OK and "rng" in json.loads(result.body)


def _lost(reason: str) -> str:
    return f"The environment failed: {reason}. Call reset() to begin a new episode."
