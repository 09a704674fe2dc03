"""The JSON API of the shop, for programs that shop without an environment."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from env_servers.application import Text, Whole, read, refuses, takes
from env_servers.problems import ProblemError
from env_servers.webshop.store import Store, Visitor
from paw_gym.envs.webshop.actions import parse_action
from paw_gym.envs.webshop.outcome import outcome_of
from paw_gym.envs.webshop.shop import Visit
from paw_gym.envs.webshop.tasks import SPLITS

SessionId = Annotated[str, Path(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]
Split = Annotated[str, Path(max_length=40, json_schema_extra={"enum": list(SPLITS)})]
_Plain = ConfigDict(extra="forbid", strict=True)


class ShopTask(BaseModel):
    """Which task to shop for."""

    model_config = _Plain
    split: str = Field(default="train", max_length=40, json_schema_extra={"enum": list(SPLITS)})
    task_id: str = Field(max_length=200)


class ShopAction(BaseModel):
    """An action."""

    model_config = _Plain
    action: Text


class VisitState(BaseModel):
    """A visit to go back to."""

    model_config = _Plain
    page: str = Field(pattern="^(search|results|item|sub|done)$")
    query: Text
    number: Whole = Field(ge=-1_000_000, le=1_000_000)
    product: Whole = Field(ge=-1, lt=2**31)
    options: list[Annotated[list[str], Field(min_length=2, max_length=2)]] = Field(max_length=100)
    sub_page: str = Field(max_length=40)


class Restored(BaseModel):
    """A task and the visit to go back to."""

    model_config = _Plain
    split: str = Field(default="train", max_length=40, json_schema_extra={"enum": list(SPLITS)})
    task_id: str = Field(max_length=200)
    visit: VisitState


class View(BaseModel):
    """What a shopper sees, and what the last action was worth."""

    session: str
    task_id: str
    task_type: str
    instruction: str
    fingerprint: str
    visit: dict[str, Any]
    observation: str
    reward: float
    terminated: bool
    success: bool
    score: float | None
    action_is_valid: bool
    admissible_actions: list[str]
    reward_parts: dict[str, Any] | None


_A_TASK = {"split": "$request.path.split", "task_id": "$response.body#/ids/0"}
_TASK_LINKS = {
    "task": {"operationId": "task", "parameters": _A_TASK},
    "open_session": {"operationId": "open_session", "requestBody": _A_TASK},
}
"""where the ids of tasks go"""
BODIES = (ShopTask, ShopAction, Restored)
_LINKED = ("show_session", "close_session", "start", "step", "restore")


def api_routes(store: Store) -> APIRouter:
    """The routes below ``/api``."""
    router = APIRouter(prefix="/api", generate_unique_id_function=lambda route: route.name)
    own = "/sessions/{session_id}"

    @router.get(
        "/tasks/{split}",
        responses={200: {"links": _TASK_LINKS}, **refuses(404)},
    )
    async def tasks(split: Split) -> dict[str, Any]:
        """The ids of a split's tasks."""
        found = store.tasks(split)
        return {"split": split, "fingerprint": found.fingerprint, "ids": list(found.ids)}

    @router.get("/tasks/{split}/{task_id:path}", responses=refuses(404))
    async def task(split: Split, task_id: Annotated[str, Path(max_length=200)]) -> dict[str, Any]:
        """One task."""
        found = store.task(split, task_id)
        return {"id": found.id, "type": found.type, "instruction": found.instruction}

    @router.post(
        "/sessions",
        status_code=201,
        response_model=View,
        responses={201: {"links": _links()}, **refuses(404, 429)},
        openapi_extra=takes(ShopTask),
    )
    async def open_session(request: Request) -> dict[str, Any]:
        """Opens a session."""
        new = await read(ShopTask, request)
        task = store.task(new.split, new.task_id)
        return _view(store, store.open(task, new.split, request), True)

    @router.get(own, response_model=View, responses=refuses(404))
    async def show_session(session_id: SessionId, request: Request) -> dict[str, Any]:
        """What the session shows."""
        return _view(store, store.visitor(session_id, request), True)

    @router.delete(own, status_code=204, responses=refuses(404))
    async def close_session(session_id: SessionId, request: Request) -> Response:
        """Closes the session."""
        store.sessions.remove(store.visitor(session_id, request))
        return Response(status_code=204)

    @router.post(
        f"{own}/start",
        response_model=View,
        responses=refuses(404),
        openapi_extra=takes(ShopTask),
    )
    async def start(session_id: SessionId, request: Request) -> dict[str, Any]:
        """Begins anew, with any task."""
        new = await read(ShopTask, request)
        session = store.visitor(session_id, request)
        session.task = store.task(new.split, new.task_id, unknown=422)
        session.split, session.visit = new.split, Visit()
        return _view(store, session, True)

    @router.post(
        f"{own}/step",
        response_model=View,
        responses=refuses(404, 409),
        openapi_extra=takes(ShopAction),
    )
    async def step(session_id: SessionId, request: Request) -> dict[str, Any]:
        """Takes an action."""
        taken = await read(ShopAction, request)
        session = store.visitor(session_id, request)
        if session.visit.page == "done":
            raise ProblemError(409, "The purchase is made: start anew.")
        moved = store.shop.act(session.visit, session.page(store.shop), parse_action(taken.action))
        if moved is not None:
            session.visit = moved
        return _view(store, session, moved is not None)

    @router.put(
        f"{own}/visit",
        response_model=View,
        responses=refuses(404),
        openapi_extra=takes(Restored),
    )
    async def restore(session_id: SessionId, request: Request) -> dict[str, Any]:
        """Goes back to a task and a visit."""
        restored = await read(Restored, request)
        session = store.visitor(session_id, request)
        task = store.task(restored.split, restored.task_id, unknown=422)
        visit = Visit.from_json(restored.visit.model_dump())
        if visit.page in ("item", "sub", "done") and not (
            0 <= visit.product < len(store.shop.catalogue)
        ):
            raise ProblemError(422, "The visit names a product that there is not.")
        session.task, session.split, session.visit = task, restored.split, visit
        return _view(store, session, True)

    return router


def _links() -> dict[str, Any]:
    """Where the id of a new session goes."""
    parameters = {"session_id": "$response.body#/session"}
    return {name: {"operationId": name, "parameters": parameters} for name in _LINKED}


def _view(store: Store, session: Visitor, valid: bool) -> dict[str, Any]:
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
