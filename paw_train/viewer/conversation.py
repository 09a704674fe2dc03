"""An episode as a page shows it: its turns, and the requests to the model exactly as they were sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paw_gym.transition import Episode, Transition
from paw_train.reporting.pages import blocks, changes

_OF_TURNS = {"calls", "finish_reason", "problem", "reasoning", "thought"}
"""notes on one turn"""


def conversation(episode: Episode, tokens: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The turns of an episode, each a dictionary of JSON values."""
    steps = tokens.get("steps") if tokens else None
    recorded = {
        step.get("step"): step
        for step in (steps if isinstance(steps, list) else [])
        if isinstance(step, dict)
    }
    turns = []
    earlier = ""
    for t in episode.transitions:
        turns.append(_turn(t, earlier, recorded.get(t.step)))
        # in a dialogue a prompt is one message, and repeats the result of the action
        earlier = t.next_observation if episode.context_mode == "conversation" else t.prompt
    return turns


def _turn(t: Transition, earlier: str, step: Mapping[str, Any] | None) -> dict[str, Any]:
    info = t.info if isinstance(t.info, dict) else {}
    agent = info["agent"] if isinstance(info.get("agent"), dict) else {}
    listed = (step or {}).get("admissible") or info.get("admissible_actions")
    return {
        "step": t.step,
        "prompt": changes(earlier, t.prompt),
        "response": blocks(t.response),
        "action": t.action,
        "valid": t.action_is_valid,
        "problem": info.get("problem") or agent.get("problem"),
        "finish_reason": agent.get("finish_reason"),
        "reasoning": agent.get("reasoning"),
        "calls": calls(agent.get("calls")),
        "reward": t.reward,
        "ended": "terminated" if t.terminated else "truncated" if t.truncated else None,
        "observation": t.next_observation,
        "admissible": listed if isinstance(listed, list) else None,
        "tokens": None if step is None else dict(step),
    }


def calls(recorded: Any) -> list[dict[str, Any]]:
    """The requests that were made for a turn, as ``paw eval`` records them.

    ``messages`` are those after the first ``same`` of the previous request; they and ``text`` are as
    sent and received. Anything else is left out.
    """
    found = []
    for call in recorded if isinstance(recorded, list) else []:
        messages = call.get("messages") if isinstance(call, dict) else None
        if not isinstance(messages, list):
            continue
        same = call.get("same")
        kept = [message for message in messages if isinstance(message, dict)]
        usable = isinstance(same, int) and same >= 0
        found.append({**call, "same": same if usable else 0, "messages": kept})
    return found


def notes(episode: Episode) -> dict[str, Any]:
    """The agent's notes on the whole episode: reflections, trial, votes, tokens spent."""
    found: dict[str, Any] = {}
    for t in episode.transitions:
        agent = t.info.get("agent") if isinstance(t.info, dict) else None
        if isinstance(agent, dict):
            found |= {key: value for key, value in agent.items() if key not in _OF_TURNS}
    return found
