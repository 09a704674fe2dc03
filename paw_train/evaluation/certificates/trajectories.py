"""Trajectories that another trainer recorded, as JSONL; ``docs/certificates.md`` documents the form.

The first line describes the evaluation, each of the others is one episode. Rewards are the environment's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from paw_gym.constructors import has_splits
from paw_train.evaluation.certificates.episodes import CertifiedEpisode
from paw_train.evaluation.certificates.evidence import Evidence
from paw_train.evaluation.panels import PanelSpec, panel_spec
from paw_train.settings import EnvSettings
from paw_train.settings.base import Group

FORMAT = "paw-trajectories/1"


class Description(Group):
    """The first line of a file of trajectories."""

    format: str
    """``paw-trajectories/1``"""
    panel: str | None = None
    """a named panel, all of whose tasks the file must hold; null: the tasks of the file"""
    env_id: str | None = None
    """registered id of the environment, without a panel"""
    split: str | None = None
    """split of the tasks, without a panel"""
    env_kwargs: dict[str, Any] = {}
    """further arguments of the environment, such as ``data_dir`` or ``max_steps``"""
    trainer: str = ""
    """what recorded the file"""
    model: str = ""
    """name of the model"""
    agent: str = ""
    """how the model was used"""
    prompt_template: str = ""
    """the prompt, or what identifies it"""
    settings: dict[str, JsonValue] = {}
    """anything else that is to be stated"""


_EPISODE = ("task_id", "seed", "observation", "steps", "success", "score", "run")
_STEP = ("action", "observation", "reward")


def trajectory_evidence(path: Path) -> Evidence:
    """The evidence in a file of trajectories.

    Raises:
        ValueError: a line is not of the form; names the line and the field.
    """
    raw = path.read_bytes().splitlines()
    lines = [_object(line, f"{path}, line {n}") for n, line in enumerate(raw, 1) if line.strip()]
    if not lines or lines[0].get("format") != FORMAT:
        raise ValueError(
            f'{path} is no file of trajectories: its first line has no "format": "{FORMAT}". A result of '
            "`paw eval` is given by its folder."
        )
    described = Description.read(lines[0], f"{path}, line 1")
    episodes = [_episode(data, f"{path}, line {n}") for n, data in enumerate(lines[1:], 2)]
    if not episodes:
        raise ValueError(f"{path} holds no episode: there is nothing to certify.")
    spec = panel_spec(described.panel) if described.panel else None
    return Evidence(
        env=_environment(described, spec, path),
        split=_split(described, spec, path),
        panel=described.panel,
        panel_size=spec.size if spec else None,
        panel_seed=spec.seed if spec else None,
        panel_hash=None,
        planned_seeds=False,
        episodes=tuple(episodes),
        stated=_stated(described),
        reported={},
    )


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON ({error}).") from None
    if not isinstance(data, dict):
        raise ValueError(f"{where}: expected an object, got {type(data).__name__}.")
    return data


def _episode(data: Mapping[str, Any], where: str) -> CertifiedEpisode:
    _require_known(data, _EPISODE, where)
    steps = data.get("steps")
    if isinstance(steps, list):
        for number, step in enumerate(steps):
            if isinstance(step, dict):
                _require_known(step, _STEP, f"{where}, step {number}")
    outcome = {name: data[name] for name in ("success", "score") if name in data}
    plain = {name: value for name, value in data.items() if name not in outcome}
    if isinstance(steps, list) and steps and isinstance(steps[-1], dict):
        plain["steps"] = [*steps[:-1], {**steps[-1], **outcome}]
    return CertifiedEpisode.from_dict(plain, where)


def _require_known(data: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    if unknown := sorted(set(data) - set(known)):
        raise ValueError(f"{where}: unknown field {unknown[0]!r}; there are {', '.join(known)}.")


def _environment(described: Description, spec: PanelSpec | None, path: Path) -> EnvSettings:
    if spec is None and described.env_id is None:
        raise ValueError(f"{path}, line 1: give a 'panel' or an 'env_id'.")
    if spec is not None and (described.env_id or described.split):
        raise ValueError(f"{path}, line 1: a 'panel' has an 'env_id' and a 'split' of its own.")
    env_id = spec.env_id if spec else described.env_id
    kwargs = {**(spec.kwargs if spec else {}), **described.env_kwargs}
    plain = {"reward": "environment", "invalid_penalty": 0.0}
    return EnvSettings.read({"id": env_id, "kwargs": kwargs, **plain}, "env")


def _split(described: Description, spec: PanelSpec | None, path: Path) -> str | None:
    if spec is not None:
        return spec.split
    splits = has_splits(str(described.env_id))
    if splits and described.split is None:
        raise ValueError(f"{path}, line 1: {described.env_id} has splits; give a 'split'.")
    return described.split if splits else None


def _stated(described: Description) -> dict[str, Any]:
    names = ("trainer", "model", "agent", "prompt_template", "settings")
    return {name: getattr(described, name) for name in names}
