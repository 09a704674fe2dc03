"""The one store of sessions: whose they are, limits, expiry, and what is given back at the end."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from env_servers.problems import ProblemError
from env_servers.sessions import Client, Session, SessionStore, UnknownSessionError


@dataclass(eq=False, kw_only=True)
class Room(Session):
    in_use: bool = False
    ended: int = 0

    @property
    def busy(self) -> bool:
        return self.in_use

    def end(self) -> None:
        self.ended += 1


class OtherRoom(Room):
    pass


def test_sessions_are_limited_and_their_owners() -> None:
    store = SessionStore(10, limit=3, limit_per_client=2)
    mine, other, third = (Client(bytes([n]) * 32, f"peer {n}") for n in range(3))
    first, second = store.add(Room(client=mine)), store.add(Room(client=mine))
    with pytest.raises(ProblemError, match="close some"):
        store.add(Room(client=Client(b"x" * 32, mine.peer)))  # another secret is no way round
    theirs = store.add(OtherRoom(client=other))
    with pytest.raises(ProblemError, match="All 3"):
        store.add(Room(client=third))
    assert store.get(first.id, mine, Room) is first
    for session_id, client, kind in (
        (first.id, other, Room),
        (first.id, Client(b"", mine.peer), Room),
        (first.id, mine, OtherRoom),
        ("nobody", mine, Room),
    ):
        with pytest.raises(UnknownSessionError):
            store.get(session_id, client, kind)
    for ended in (second, second, theirs):
        store.remove(ended)
    assert second.ended == 1 and len(store) == 1
    store.add(Room(client=mine))
    with pytest.raises(ProblemError, match="close some"):
        store.add(Room(client=mine))


def test_unused_sessions_end_and_those_in_use_do_not() -> None:
    now = [0.0]
    store = SessionStore(10, clock=lambda: now[0])
    client = Client(b"", "one")
    used, unused, busy = (store.add(Room(client=client)) for _ in range(3))
    busy.in_use = True
    now[0] = 6.0
    store.get(used.id, client, Room)  # used: it lives on
    now[0] = 11.0
    assert len(store) == 2 and unused.ended == 1
    with pytest.raises(UnknownSessionError):
        store.get(unused.id, client, Room)
    assert store.get(busy.id, client, Room) is busy
    busy.in_use = False
    now[0] = 30.0
    assert list(store) == [used, busy] and len(store) == 0
    assert [room.ended for room in (used, unused, busy)] == [1, 1, 1]


def test_a_session_ends_when_its_time_is_over_whoever_asks_next() -> None:
    now = [0.0]
    store = SessionStore(1, limit=1, limit_per_client=1, clock=lambda: now[0])
    client = Client(b"", "one")
    first = store.add(Session(client=client))
    assert first.busy is False
    with pytest.raises(ProblemError) as refused:
        store.add(Session(client=client))
    assert refused.value.status == 429 and refused.value.more["retry_after"] == 5
    now[0] = 1.0
    second = store.add(Session(client=client))
    now[0] = 2.0
    with pytest.raises(UnknownSessionError) as unknown:
        store.get(second.id, client, Session)
    assert unknown.value.status == 404
