"""The requests to a model and its answers, from recorded episodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from paw_gym.transition import Episode


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request to the model and its answer."""

    step: int
    """of the transition that it was made for"""
    messages: list[dict[str, Any]]
    """the whole request's, exactly as sent"""
    text: str
    """of the answer, as received"""
    finish_reason: str | None = None
    reasoning: str | None = None
    """the thought, where the server gave it apart from the text"""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    refusal: str | None = None
    tokens: tuple[int, int] | None = None
    """of the request and of the answer"""


def exchanges(episode: Episode) -> list[Exchange]:
    """Every request that was made for an episode, in order; none where they were not recorded.

    For an agent with several trials at a task, these are the requests of the trial that counts and of the
    reflections before it.
    """
    found: list[Exchange] = []
    before: list[dict[str, Any]] = []
    for transition in episode.transitions:
        for call in transition.info.get("agent", {}).get("calls", []):
            before = [*before[: call["same"]], *call["messages"]]
            tokens = call.get("tokens")
            found.append(
                Exchange(
                    transition.step,
                    before,
                    call["text"],
                    call.get("finish_reason"),
                    call.get("reasoning"),
                    list(call.get("tool_calls", [])),
                    call.get("refusal"),
                    (tokens[0], tokens[1]) if tokens else None,
                )
            )
    return found
