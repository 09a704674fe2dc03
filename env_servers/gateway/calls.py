"""What a client can ask for. A request holds a list of these calls, for different sessions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

_Plain = ConfigDict(extra="forbid", strict=True)
Scalar = bool | int | float | str | None
Name = Annotated[str, Field(min_length=1, max_length=200)]
SessionId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Generator = Annotated[str, Field(pattern=r"^[0-9a-f]{73}$")]
Text = Annotated[str, Field(max_length=500_000)]
Value = Annotated[str, Field(max_length=2_000)] | bool | int | float | None
Kwargs = Annotated[dict[Name, Value], Field(max_length=32)]
Options = Annotated[dict[Name, Value], Field(max_length=16)]
Seed = Annotated[int, Field(ge=0, lt=2**128)]


class _OfEnvironment(BaseModel):
    model_config = _Plain
    env_id: Name
    kwargs: Kwargs = Field(default_factory=dict)


class Describe(_OfEnvironment):
    """What kind of environment it is."""

    op: Literal["describe"]


class Tasks(_OfEnvironment):
    """The ids of its tasks, a piece at a time."""

    op: Literal["tasks"]
    offset: int = Field(default=0, ge=0, lt=2**31)
    limit: int = Field(default=10_000, ge=1, le=10_000)


class TaskOf(_OfEnvironment):
    """One task."""

    op: Literal["task"]
    task_id: str = Field(max_length=2_000)


class Open(_OfEnvironment):
    """A session with an environment."""

    op: Literal["open"]


class _OfSession(BaseModel):
    model_config = _Plain
    session: SessionId


class Close(_OfSession):
    """The session is not needed any more."""

    op: Literal["close"]


class ResetEntry(BaseModel):
    """How an episode begins."""

    model_config = _Plain
    seed: Seed | None = None
    rng: Generator | None = None
    """the state of the generator, where there is no seed"""
    options: Options | None = None
    progress: float | None = Field(default=None, ge=0, le=1)
    """share of training that is done"""


class StepEntry(BaseModel):
    """An action."""

    model_config = _Plain
    action: Text
    rng: Generator | None = None
    """the state of the generator, where the client has drawn from it"""


class Reset(ResetEntry):
    """Starts an episode."""

    op: Literal["reset"]
    session: SessionId


class Step(StepEntry):
    """Takes an action."""

    op: Literal["step"]
    session: SessionId
    at: int | None = Field(default=None, ge=0, lt=2**31)
    """how many actions were taken before it: so that one sent twice is taken once"""


class Ask(_OfSession):
    """A question that changes nothing: is ``text`` admissible, how does a prompt show it, ..."""

    op: Literal["ask"]
    what: Literal["admissible", "shown", "solution", "expert", "advice"]
    text: Text = ""
    number: int = Field(default=0, ge=0, lt=2**31)
    rng: Generator | None = None


class Restore(_OfSession):
    """Takes over an episode by playing it again."""

    op: Literal["restore"]
    reset: ResetEntry
    steps: list[StepEntry] = Field(max_length=10_000)


Call = Annotated[
    Describe | Tasks | TaskOf | Open | Close | Reset | Step | Ask | Restore,
    Field(discriminator="op"),
]


class Request(BaseModel):
    """The body of ``POST /v1/calls``, and a message of the WebSocket."""

    model_config = _Plain
    calls: list[Call] = Field(max_length=4096)
    id: int | str | None = None
    """given back with the answer; for a WebSocket"""


REQUEST: TypeAdapter[Request] = TypeAdapter(Request)
ONE_CALL: TypeAdapter[Any] = TypeAdapter(Call)
