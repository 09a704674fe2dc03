"""A folder holds one evaluation: the same one is shown or continued, another one is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paw_train.evaluation.runner import Plan, Prepared, described

LOG = "unfinished.jsonl"
"""episodes of an evaluation that is not complete yet"""
_NAMED = 4
"""differences that a refusal names"""
_WITHOUT_EFFECT = tuple(f"rollout.{name}" for name in ("groups", "group_size", "prefill_tokens"))


def finished_result(
    folder: Path, key: str, plan: Plan, prepared: Prepared, model: str, weights: str | None
) -> dict[str, Any] | None:
    """The result in a folder if it is this evaluation's, and complete; ``None``: episodes are missing.

    Args:
        folder: where the evaluation is to be written.
        key: names the evaluation (``runner.evaluation_key``).
        plan: the evaluation.
        prepared: with which agent.
        model: its name.
        weights: the hash of its weights.

    Raises:
        ValueError: the folder holds another evaluation; names what differs.
    """
    advice = "Give another folder (--out DIR), or replace what is there (--fresh)."
    there = _read(folder / "result.json")
    if there is None:
        if _log_key(folder / LOG) not in (None, key):
            raise ValueError(
                f"{folder} holds episodes of an unfinished evaluation with other settings. {advice}"
            )
        return None
    wanted = _described(plan, prepared, model, weights)
    if there.get("evaluation") != key:
        raise ValueError(
            f"{folder} holds an evaluation with other settings: {_differences(there, wanted)}. {advice}"
        )
    seeds = [run["seed"] for run in there["runs"]]
    if seeds != list(plan.seeds):
        raise ValueError(
            f"{folder} holds an evaluation with other settings: --seeds {len(seeds)}, now "
            f"{len(plan.seeds)}. {advice}"
        )
    return there if there["complete"] else None


def clear(folder: Path) -> None:
    """Removes an evaluation's files from a folder."""
    for name in ("result.json", "episodes.jsonl", LOG):
        (folder / name).unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, or use --fresh.") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path} is no result of `paw eval`: give another folder (--out DIR).")
    return data


def _log_key(path: Path) -> str | None:
    """The evaluation that a log belongs to; ``None``: there is no log, or nothing in it."""
    if not path.exists():
        return None
    with path.open(encoding="utf-8", errors="replace") as file:
        try:
            head = json.loads(file.readline())
        except json.JSONDecodeError:
            return None
        held: str | None = head.get("evaluation") if isinstance(head, dict) else None
        return held if file.readline() else None


def _described(plan: Plan, prepared: Prepared, model: str, weights: str | None) -> dict[str, Any]:
    """An evaluation's settings, under the names that its result has."""
    return {
        "model": model,
        "model_hash": weights,
        "agent": plan.agent,
        "agent_settings": prepared.agent.settings.model_dump(),
        "action_format": plan.action_format,
        "system": plan.system,
        "panel": plan.panel.name,
        "panel_hash": plan.panel.hash,
        "settings": described(plan),
        "prompt_hash": prepared.prompt_hash,
    }


def _differences(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    new = _flat(json.loads(json.dumps(wanted, default=str)))
    old = _flat({key: there.get(key) for key in wanted})
    names = [
        name
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name) and name not in _WITHOUT_EFFECT
    ]
    if not names:
        return "another version of paw-gym"
    named = [f"{name} {old.get(name)!r}, now {new.get(name)!r}" for name in names[:_NAMED]]
    more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return "; ".join(named) + more


def _flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested settings by dotted name, as a user writes them."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        group = {"settings": "", "agent_settings": "agent."}.get(key, f"{key}.")
        if isinstance(value, Mapping):
            found |= _flat(value, above + group)
        else:
            found[above + key] = value
    return found
