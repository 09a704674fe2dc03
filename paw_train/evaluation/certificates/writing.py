"""Writes the certificate of a result, after every episode of it was replayed."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from paw_gym import __version__
from paw_gym.constructors import registered_id
from paw_gym.wrappers import AgentInterface
from paw_train.evaluation.certificates import keys
from paw_train.evaluation.certificates.claims import (
    Claims,
    as_json,
    disagreements,
    listed,
    measured,
)
from paw_train.evaluation.certificates.episodes import CertifiedEpisode
from paw_train.evaluation.certificates.evidence import Evidence, result_evidence
from paw_train.evaluation.certificates.file import write_certificate
from paw_train.evaluation.certificates.harmless import require_played_here
from paw_train.evaluation.certificates.panel_names import require_of_panel
from paw_train.evaluation.certificates.replay import replay
from paw_train.evaluation.certificates.setting_up import (
    in_panel_order,
    make_env,
    panel_of,
    without_places,
)
from paw_train.evaluation.certificates.trajectories import trajectory_evidence
from paw_train.evaluation.fingerprint import environment_record, public
from paw_train.evaluation.panel_titles import fixed_panel, panel_title
from paw_train.evaluation.panels import Panel
from paw_train.settings import EnvSettings

_PACKAGES = ("gymnasium", "numpy", "pydantic")


class NotReplayableError(Exception):
    """The recorded actions do not lead to what was recorded; nothing is certified."""


def certify(
    source: Path,
    out: Path | None = None,
    key: Path | None = None,
    signed: bool = True,
    given: Mapping[str, Any] | None = None,
) -> tuple[Path, Claims, keys.Signer | None]:
    """Replays every episode of a result, and writes its certificate.

    Args:
        source: the folder of ``paw eval``, its ``result.json``, or a JSONL file of trajectories.
        out: the file; ``None``: beside the result.
        key: a private key; ``None``: the user's own, created on first use.
        signed: whether to sign.
        given: arguments of the environment that locate data here, other than those recorded.

    Returns:
        (the path, the claims, the key)

    Raises:
        ValueError: there is no certifiable result, or its environment is not deterministic.
        NotReplayableError: an episode or a number is not what was recorded.
    """
    signer = keys.open_key(key)[0] if signed else None
    evidence, path = _evidence(source, out)
    env = evidence.env.replace(kwargs={**evidence.env.kwargs, **(given or {})})
    require_played_here(registered_id(env.id))
    agent = make_env(env, evidence.split)
    try:
        panel, episodes = _on_panel(evidence, env, agent)
        environment = environment_record(
            env, evidence.split or "", panel, lambda: make_env(env, evidence.split)
        )
        if environment["behaviour"] is None:
            raise ValueError(
                f"{agent.env_id} is not deterministic as it was used: its episodes cannot be replayed, so "
                "they cannot be certified."
            )
        episodes = _replayed(agent, episodes)
        result = measured(episodes, panel, agent.env_id, agent.text_env.type_groups)
    finally:
        agent.close()
    _require_agreement(evidence, result)
    claims = _claims(evidence, panel, episodes, environment, result)
    write_certificate(path, claims.model_dump(mode="json"), episodes, signer)
    return path, claims, signer


def _evidence(source: Path, out: Path | None) -> tuple[Evidence, Path]:
    if source.suffix == ".jsonl":
        if not source.is_file():
            raise ValueError(f"There is no file {source}.")
        return trajectory_evidence(source), out or source.with_suffix(".certificate.json")
    folder = source if source.is_dir() else source.parent
    return result_evidence(source), out or folder / "certificate.json"


def _on_panel(
    evidence: Evidence, env: EnvSettings, agent: AgentInterface
) -> tuple[Panel, tuple[CertifiedEpisode, ...]]:
    """The panel, which is made again here, and the episodes in its order."""
    first = evidence.episodes[0].run
    ids = tuple(e.task_id for e in evidence.episodes if e.run == first)
    seed, size = evidence.panel_seed, evidence.panel_size
    base = None if evidence.panel is None else fixed_panel(evidence.panel)
    known = ids if seed is None else agent.tasks.ids
    require_of_panel(base, env, seed)
    name = panel_title(base, env, evidence.split, size, seed, known)
    # other trainers name a panel alone, and what they changed marks it; `paw eval` has marked it already
    if evidence.reported and evidence.panel != name:
        raise NotReplayableError(
            f"The result's panel is recorded as {evidence.panel}, and its settings make {name}."
        )
    panel = panel_of(agent.tasks, name, size, seed, ids)
    episodes = in_panel_order(evidence.episodes, panel.task_ids)
    if evidence.panel_hash not in (None, panel.hash):
        raise NotReplayableError(
            f"The result is on a panel with the hash {str(evidence.panel_hash)[:12]}; the tasks here make "
            f"{panel.hash[:12]}. Other data, or another version of paw-gym?"
        )
    return panel, episodes


def _replayed(
    agent: AgentInterface, episodes: Sequence[CertifiedEpisode]
) -> tuple[CertifiedEpisode, ...]:
    found, differences = [], []
    for episode in episodes:
        again, difference = replay(agent, episode)
        found.append(again)
        if difference is not None:
            differences.append(str(difference))
    if differences:
        raise NotReplayableError(listed(differences))
    return tuple(found)


def _require_agreement(evidence: Evidence, result: Mapping[str, Any]) -> None:
    if evidence.reported:
        # older versions of `paw eval` wrote fewer numbers
        there = {name: value for name, value in result.items() if name in evidence.reported}
        if wrong := disagreements(evidence.reported, as_json(there), "result.json"):
            raise NotReplayableError(listed(wrong))


def _claims(
    evidence: Evidence,
    panel: Panel,
    episodes: Sequence[CertifiedEpisode],
    environment: Mapping[str, Any],
    result: Mapping[str, Any],
) -> Claims:
    env, places = without_places(evidence.env.replace(id=registered_id(evidence.env.id)))
    return Claims.read(
        {
            "panel": {
                "name": panel.name,
                "hash": panel.hash,
                "size": evidence.panel_size,
                "seed": evidence.panel_seed,
            },
            "env": env.model_dump(),
            "places": places,
            "split": evidence.split,
            "environment": as_json(environment),
            "planned_seeds": evidence.planned_seeds,
            "result": as_json(result),
            "digests": [episode.digest for episode in episodes],
            "stated": as_json(public(evidence.stated)),
            "versions": _versions(),
        }
    )


def _versions() -> dict[str, str]:
    found = {"paw-gym": __version__, "python": platform.python_version()}
    return found | {name: metadata.version(name) for name in _PACKAGES}
