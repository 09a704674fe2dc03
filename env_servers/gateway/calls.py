"""The calls of clients. A request holds a list of them, for different sessions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from env_servers.application import Many, Whole

Name = Annotated[str, Field(min_length=1, max_length=200)]
SessionId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Generator = Annotated[str, Field(pattern=r"^[0-9a-f]{73}$")]
Value = Annotated[str, Field(max_length=2_000)] | bool | int | float | None
Kwargs = Annotated[dict[Name, Value], Field(max_length=32)]
Options = Annotated[dict[Name, Value], Field(max_length=16)]
Seed = Annotated[Whole, Field(ge=0, lt=2**128)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class OfEnvironment(_Strict):
    """A call for an environment, with the settings that a client may choose."""

    env_id: Name
    kwargs: Kwargs = Field(default_factory=dict)


class About(OfEnvironment):
    """Asks for the description of an environment, for ids of its tasks, or for one task."""

    op: Literal["describe", "tasks", "task"]
    offset: Whole = Field(default=0, ge=0, lt=2**31)
    limit: Whole = Field(default=10_000, ge=1, le=10_000)
    """of the ids, which come a piece at a time"""
    task_id: str = Field(default="", max_length=2_000)


class Open(OfEnvironment):
    """A session with an environment."""

    op: Literal["open"]


class OfSession(_Strict):
    """A call for a session."""

    session: SessionId


class Close(OfSession):
    """The session is not needed any more."""

    op: Literal["close"]


class Start(_Strict):
    """The beginning of an episode."""

    seed: Seed | None = None
    rng: Generator | None = None
    """the state of the generator, if there is no seed"""
    options: Options | None = None
    progress: float | None = Field(default=None, ge=0, le=1)
    """share of training that is done"""


class Reset(Start, OfSession):
    """Starts an episode."""

    op: Literal["reset"]


class Action(_Strict):
    """An action."""

    action: str
    """at most 500,000 characters"""
    rng: Generator | None = None
    """the state of the generator, if the client has sampled from it"""


class Step(Action, OfSession):
    """Takes an action."""

    op: Literal["step"]
    at: Whole | None = Field(default=None, ge=0, lt=2**31)
    """how many actions were taken before it: so that one sent twice is taken once"""


class Ask(OfSession):
    """Asks a question that changes nothing: which actions there are, whether ``text`` is one of them, ..."""

    op: Literal["ask"]
    what: Literal["actions", "admissible", "shown", "solution", "expert", "advice"]
    text: str = ""
    number: Whole = Field(default=0, ge=0, lt=2**31)
    rng: Generator | None = None


class Restore(OfSession):
    """Takes over an episode by playing it again."""

    op: Literal["restore"]
    reset: Start
    steps: Many[Action]
    """those that were taken"""


Call = Annotated[About | Open | Close | Reset | Step | Ask | Restore, Field(discriminator="op")]


class Request(_Strict):
    """The body of ``POST /v1/calls``."""

    calls: Many[Call] = Field(max_length=1024)


class OneResult(BaseModel):
    """The result of a call."""

    status: int
    answer: dict[str, Any]
    """problem details if the status is 400 or above"""


class Results(BaseModel):
    """The results of the calls, in their order."""

    results: list[OneResult]
