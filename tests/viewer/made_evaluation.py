"""A made-up evaluation: an agent that plays a growing dialogue, with its requests as they were sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paw_gym.transition import Episode, Transition, write_jsonl
from paw_train.evaluation.statistics import wilson_interval

EXAMPLE = "A solved example: open the fridge, take the egg."
REFLECTION = "I should have looked into the drawer first."


def write_evaluation(folder: Path) -> Path:
    """Four tasks of two types: solved, failed, cut off, and one that an error ended."""
    folder.mkdir(parents=True)
    kinds = ["cool", "cool", "clean", "clean"]
    episodes = [_episode(i, kind) for i, kind in enumerate(kinds)]
    episodes[3].error = "EndpointError: 500 Internal Server Error"
    write_jsonl(folder / "episodes.jsonl", episodes)
    result = {
        "panel": "alfworld/valid_seen", "panel_hash": "ab12", "env_id": "paw_gym/ALFWorld-v0",
        "agent": "reflexion", "model": "openai:small-model", **_rate(1, 3), "tasks": 4,
        "by_type": {"cool": _rate(1, 2), "clean": _rate(0, 1)}, "complete": False,
        "settings": {"env": {"id": "paw_gym/ALFWorld-v0"}, "seed": 7}, "mean_steps": 2.0,
        "invalid_rate": 0.125, "truncated_rate": 0.25, "errors": 1, "unplayed": 0,
        "first_error": "EndpointError: 500 Internal Server Error", "seconds": 12.5, "cost": 0.0421,
        "score": {"mean": 0.5, "ci95": [0.2, 0.8]}, "model_calls": 8,
        "tokens": {"prompt": 12000, "completion": 800},
        "agent_settings": {"trials": 3, "examples": 2}, "sampling": {"temperature": 0.0},
        "endpoint": {"url": "http://127.0.0.1/v1"}, "something_new": "kept",
    }  # fmt: skip
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def _rate(wins: int, n: int) -> dict[str, Any]:
    return {"n": n, "success_rate": wins / n, "ci95": list(wilson_interval(wins, n))}


def _episode(number: int, kind: str) -> Episode:
    task, solved = f"valid_seen/{kind}/{number}", number == 0
    episode = Episode(
        "paw_gym/ALFWorld-v0", task, f"{task}#0", kind, f"{kind} some egg", number, "conversation"
    )
    first = f"{EXAMPLE}\nNotes: {REFLECTION}\nYour task: {kind} some egg"
    dialogue = [{"role": "user", "content": first}]
    written = 0
    for step in range(2):
        last = step == 1
        thought = "<think>I look.</think><action>look</action>"
        agent: dict[str, Any] = {
            "finish_reason": "length" if number == 2 and last else "stop",
            "calls": [
                {"same": written, "messages": dialogue[written:], "text": thought,
                 "finish_reason": "stop", "tokens": [100 + step, 9]}
            ],
        }  # fmt: skip
        written = len(dialogue)
        seen = f"You see nothing special ({step})."
        if last:
            agent |= {"trial": 2, "reflections": [REFLECTION], "spent": {"calls": 2,
                      "prompt_tokens": 201, "completion_tokens": 18, "counted": True}}  # fmt: skip
        won, over = solved and last, last and not solved
        turn = Transition(
            episode.env_id, task, episode.episode_id, step, "You are in a kitchen.", first, thought,
            "look", float(won), seen, won, over, number != 1, {"agent": agent, "success": won},
        )  # fmt: skip
        episode.transitions.append(turn)
        dialogue += [{"role": "assistant", "content": thought}, {"role": "user", "content": seen}]
    return episode
