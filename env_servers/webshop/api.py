"""The JSON API: what ``gymnasium.make("paw_gym/WebShop-v0", server=URL)`` speaks."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from fastapi.exceptions import HTTPException
from pydantic import BaseModel, ConfigDict, Field

from env_servers.webshop.sessions import Session, SessionLimitError, UnknownSessionError
from env_servers.webshop.store import Store
from paw_gym.envs.webshop.actions import parse_action
from paw_gym.envs.webshop.outcome import outcome_of
from paw_gym.envs.webshop.shop import Visit

SessionId = Annotated[str, Path(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]
_Plain = ConfigDict(extra="forbid", strict=True)


class NewSession(BaseModel):
    """Which task to shop for."""

    model_config = _Plain
    split: str = Field(default="train", max_length=40)
    task_id: str = Field(max_length=200)


class Step(BaseModel):
    """An action."""

    model_config = _Plain
    action: str = Field(max_length=500_000)


class VisitState(BaseModel):
    """A visit to go back to."""

    model_config = _Plain
    page: str = Field(pattern="^(search|results|item|sub|done)$")
    query: str = Field(max_length=500_000)
    number: int = Field(ge=-1_000_000, le=1_000_000)
    product: int = Field(ge=-1, lt=2**31)
    options: list[Annotated[list[str], Field(min_length=2, max_length=2)]] = Field(max_length=100)
    sub_page: str = Field(max_length=40)


class Restored(BaseModel):
    """A task and the visit to go back to."""

    model_config = _Plain
    split: str = Field(default="train", max_length=40)
    task_id: str = Field(max_length=200)
    visit: VisitState


def api_routes(store: Store) -> APIRouter:
    """The routes below ``/api``."""
    router = APIRouter(prefix="/api")

    @router.get("/tasks/{split}")
    async def tasks(split: Annotated[str, Path(max_length=40)]) -> dict[str, Any]:
        found = store.tasks(split)
        return {"split": split, "fingerprint": found.fingerprint, "ids": list(found.ids)}

    @router.get("/tasks/{split}/{task_id:path}")
    async def task(
        split: Annotated[str, Path(max_length=40)], task_id: Annotated[str, Path(max_length=200)]
    ) -> dict[str, Any]:
        found = store.task(split, task_id)
        return {"id": found.id, "type": found.type, "instruction": found.instruction}

    @router.post("/sessions", status_code=201)
    async def open_session(new: NewSession, request: Request) -> dict[str, Any]:
        return _view(store, _open(store, new.split, new.task_id, request), True)

    @router.get("/sessions/{session_id}")
    async def show_session(session_id: SessionId) -> dict[str, Any]:
        return _view(store, _session(store, session_id), True)

    @router.delete("/sessions/{session_id}", status_code=204)
    async def close_session(session_id: SessionId) -> Response:
        store.sessions.close(session_id)
        return Response(status_code=204)

    @router.post("/sessions/{session_id}/start")
    async def start(session_id: SessionId, new: NewSession) -> dict[str, Any]:
        session = _session(store, session_id)
        session.task = store.task(new.split, new.task_id)
        session.split, session.visit = new.split, Visit()
        return _view(store, session, True)

    @router.post("/sessions/{session_id}/step")
    async def step(session_id: SessionId, taken: Step) -> dict[str, Any]:
        session = _session(store, session_id)
        if session.visit.page == "done":
            raise HTTPException(409, "The purchase is made: start anew.")
        moved = store.shop.act(session.visit, session.page(store.shop), parse_action(taken.action))
        if moved is not None:
            session.visit = moved
        return _view(store, session, moved is not None)

    @router.put("/sessions/{session_id}/visit")
    async def restore(session_id: SessionId, restored: Restored) -> dict[str, Any]:
        session = _session(store, session_id)
        task = store.task(restored.split, restored.task_id)
        visit = Visit.from_json(restored.visit.model_dump())
        if visit.page in ("item", "sub", "done") and not (
            0 <= visit.product < len(store.shop.catalogue)
        ):
            raise HTTPException(422, "The visit names a product that there is not.")
        session.task, session.split, session.visit = task, restored.split, visit
        return _view(store, session, True)

    @router.get("/sessions/{session_id}/solution")
    async def solution(session_id: SessionId) -> dict[str, Any]:
        from paw_gym.envs.webshop.expert import solve

        return {"actions": solve(store.shop, _session(store, session_id).task.data)}

    return router


def _session(store: Store, session_id: str) -> Session:
    try:
        return store.sessions.get(session_id)
    except UnknownSessionError:
        raise HTTPException(
            404, "There is no such session: it was closed or expired, or the server began anew."
        ) from None


def _open(store: Store, split: str, task_id: str, request: Request) -> Session:
    task = store.task(split, task_id)
    client = request.client.host if request.client else "unknown"
    try:
        return store.sessions.open(task, split, client)
    except SessionLimitError as error:
        raise HTTPException(429, str(error)) from None


def _view(store: Store, session: Session, valid: bool) -> dict[str, Any]:
    page = session.page(store.shop)
    outcome = outcome_of(page, valid)
    return {
        "session": session.id,
        "task_id": session.task.id,
        "task_type": session.task.type,
        "instruction": session.task.instruction,
        "fingerprint": store.tasks(session.split).fingerprint,
        "visit": session.visit.to_json(),
        "observation": outcome.observation,
        "reward": outcome.reward,
        "terminated": outcome.terminated,
        "success": outcome.success,
        "score": outcome.score,
        "action_is_valid": outcome.action_is_valid,
        "admissible_actions": list(outcome.admissible_actions or ()),
        "reward_parts": outcome.info["reward_parts"],
    }
