"""Checks a certificate: its file and signature, its numbers, and a replay of its episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from paw_gym.constructors import registered_id
from paw_gym.registration import text_env_ids
from paw_gym.wrappers import AgentInterface
from paw_train.evaluation.certificates.claims import (
    Claims,
    as_json,
    disagreements,
    listed,
    measured,
    unfounded,
)
from paw_train.evaluation.certificates.file import Certificate, read_certificate
from paw_train.evaluation.certificates.harmless import (
    is_place,
    require_harmless,
    require_played_here,
)
from paw_train.evaluation.certificates.panel_names import require_of_panel
from paw_train.evaluation.certificates.replay import replay
from paw_train.evaluation.certificates.setting_up import (
    in_panel_order,
    make_env,
    panel_of,
    with_places,
)
from paw_train.evaluation.fingerprint import (
    behaviour_hash,
    environment_settings,
    is_deterministic,
)
from paw_train.evaluation.panel_titles import fixed_panel, panel_title
from paw_train.evaluation.panels import Panel
from paw_train.evaluation.runner import environment_seeds
from paw_train.settings import EnvSettings

_MEASURED = ("behaviour", "versions")
"""fields of ``environment`` that do not follow from the settings: compared by replay, and stated"""


@dataclass
class Verdict:
    """What a check of a certificate found."""

    claims: Claims
    signer: str | None
    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether nothing speaks against the certificate."""
        return not self.failed


def check(
    path: Path,
    sample: int | None = None,
    seed: int = 0,
    signer: str | None = None,
    given: Mapping[str, Any] | None = None,
    module: str | None = None,
) -> Verdict:
    """Checks a certificate against the environment as it is installed here.

    Args:
        path: the file.
        sample: episodes to replay, sampled by ``seed``; ``None``: all. Those whose record is not what its
            digest says are replayed besides.
        seed: of that sample.
        signer: the public key that must have signed; ``None``: any.
        given: arguments of the environment that locate data here.
        module: imported first, for an environment that it registers.

    Raises:
        ValueError: the file is no certificate, or data that it needs is not here.
    """
    certificate = read_certificate(path)
    claims = Claims.read(certificate.claims, "claims")
    require_harmless(claims.env, claims.split, given or {})
    if module is not None:
        registered_id(f"{module}:{claims.env.id}")
    elif claims.env.id not in text_env_ids():
        raise ValueError(
            f"The episodes are of {claims.env.id}, which is not registered here. Give the module that "
            "registers it: --import MODULE."
        )
    require_played_here(claims.env.id)
    env = with_places(claims.env, claims.places, given or {})
    verdict = Verdict(claims, certificate.signer)
    _check_file(certificate, signer, verdict)
    agent = make_env(env, claims.split)
    try:
        if not is_deterministic(agent.text_env):
            # it might ask a server at each reset: there is nothing to compare
            verdict.failed.append(
                f"{claims.env.id} is not deterministic as it was used: nothing can be replayed."
            )
            return verdict
        _check_environment(claims, env, agent, verdict)
        panel = _check_panel(certificate, claims, env, agent, verdict)
        _check_numbers(certificate, claims, panel, agent, verdict)
        _check_behaviour(claims, panel, agent, verdict)
        _check_episodes(certificate, claims, agent, sample, seed, verdict)
    finally:
        agent.close()
    return verdict


def _check_file(certificate: Certificate, signer: str | None, verdict: Verdict) -> None:
    verdict.failed.extend(certificate.problems)
    if not certificate.problems:
        verdict.passed.append("The file is as it was written (SHA-256).")
    if signer is not None and certificate.signer != signer:
        verdict.failed.append(
            f"The certificate was signed by {certificate.signer or 'nobody'}, not by {signer}."
        )
    if certificate.signer is None:
        verdict.passed.append("It is not signed: replay is all that speaks for it.")
        return
    holds = certificate.signature_holds
    if holds is None and signer is not None:
        raise ImportError(
            "Checking a signature needs the package 'cryptography'; install it with pip install "
            '".[certify]" in your clone of PaW-Gym.'
        )
    if holds is None:
        verdict.passed.append("NOT CHECKED: the signature (the package 'cryptography' is missing).")
    elif holds:
        verdict.passed.append(f"Signed by {certificate.signer}.")
    else:
        verdict.failed.append(f"The signature is not that of {certificate.signer}.")


def _task_ids(certificate: Certificate) -> tuple[str, ...]:
    if not certificate.episodes:
        raise ValueError("The certificate holds no episode.")
    first = certificate.episodes[0].run
    return tuple(e.task_id for e in certificate.episodes if e.run == first)


def _check_environment(
    claims: Claims, env: EnvSettings, agent: AgentInterface, verdict: Verdict
) -> None:
    """Whether the environment is claimed as what the replay runs in."""
    here = as_json(environment_settings(env, claims.split or "", agent))
    claimed = {k: v for k, v in claims.environment.items() if k not in _MEASURED}
    given = claimed.pop("arguments", None)
    arguments = here.pop("arguments")
    given = given if isinstance(given, dict) else {}
    # the reader's own places are called otherwise; a default that is not claimed is a newer version's
    own = {k for k in arguments if is_place(k, env.kwargs.get(k))}
    defaults = {k for k in arguments if k not in given and k not in env.kwargs}
    compared = {k: v for k, v in arguments.items() if k not in own | defaults}
    wrong = [
        *disagreements(claimed, here, "Environment", "is here"),
        *unfounded(claimed, here, "Environment"),
        *disagreements(given, compared, "Environment, arguments", "is here"),
        *unfounded(given, arguments, "Environment, arguments"),
    ]
    verdict.failed.extend(wrong)
    if not wrong:
        verdict.passed.append("The environment's id, split, arguments and tasks are as claimed.")


def _check_panel(
    certificate: Certificate,
    claims: Claims,
    env: EnvSettings,
    agent: AgentInterface,
    verdict: Verdict,
) -> Panel:
    """The panel as it is here."""
    claimed, ids = claims.panel, _task_ids(certificate)
    fallback = Panel(claimed.name, ids, claimed.hash)
    try:
        _require_own_name(claims, env, ids if claimed.seed is None else agent.tasks.ids)
        panel = panel_of(agent.tasks, claimed.name, claimed.size, claimed.seed, ids)
        ordered = in_panel_order(certificate.episodes, panel.task_ids)
    except ValueError as error:
        verdict.failed.append(f"Panel {claimed.name!r}: {error}")
        return fallback
    _compare_panel(claims, panel, ordered == certificate.episodes, verdict)
    _check_seeds(certificate, claims, panel, verdict)
    return panel


def _compare_panel(claims: Claims, panel: Panel, in_order: bool, verdict: Verdict) -> None:
    claimed = claims.panel
    if panel.hash != claimed.hash:
        verdict.failed.append(
            f"Panel {claimed.name!r}: its hash is claimed as {claimed.hash[:12]}, and is "
            f"{panel.hash[:12]} here."
        )
    elif not in_order:
        verdict.failed.append(f"Panel {claimed.name!r}: the episodes are not in the panel's order.")
    else:
        sample = "" if claimed.seed is None else f", by seed {claimed.seed}"
        verdict.passed.append(
            f"The tasks are those of {claimed.name} ({claimed.hash[:12]}{sample})."
        )
    if claimed.seed is None:
        verdict.passed.append(
            "NOT CHECKED: how the tasks were chosen; they are no sample by a seed."
        )


def _require_own_name(claims: Claims, env: EnvSettings, ids: Sequence[str]) -> None:
    claimed = claims.panel
    if claimed.seed is None and claimed.size is not None:
        raise ValueError(f"{claimed.size} tasks are claimed as a sample, without its seed.")
    base = fixed_panel(claimed.name)
    require_of_panel(base, env, claimed.seed)
    name = panel_title(base, env, claims.split, claimed.size, claimed.seed, ids)
    if name != claimed.name:
        raise ValueError(f"the environment and the tasks are those of {name}.")


def _check_seeds(certificate: Certificate, claims: Claims, panel: Panel, verdict: Verdict) -> None:
    if not claims.planned_seeds:
        verdict.passed.append("NOT CHECKED: how the environment's seeds were chosen.")
        return
    planned = {e.run: environment_seeds(panel, e.run) for e in certificate.episodes}
    wrong = [e for e in certificate.episodes if planned[e.run].get(e.task_id) != e.seed]
    verdict.failed.extend(
        f"Episode {e.name}: the environment's seed differs: claimed {e.seed}, the panel gives "
        f"{planned[e.run].get(e.task_id)}."
        for e in wrong
    )
    if not wrong:
        verdict.passed.append("The environment's seeds are those of the panel.")


def _check_numbers(
    certificate: Certificate,
    claims: Claims,
    panel: Panel,
    agent: AgentInterface,
    verdict: Verdict,
) -> None:
    """Whether success, score and intervals follow from the recorded episodes."""
    groups = agent.text_env.type_groups
    found = as_json(measured(certificate.episodes, panel, claims.env.id, groups))
    wrong = disagreements(claims.result, found, "Result") + unfounded(
        claims.result, found, "Result"
    )
    verdict.failed.extend(wrong)
    if not wrong:
        verdict.passed.append("Success, score and intervals follow from the episodes.")


def _check_behaviour(claims: Claims, panel: Panel, agent: AgentInterface, verdict: Verdict) -> None:
    claimed = claims.environment.get("behaviour")
    here = frozenset(agent.tasks.ids)
    known = tuple(i for i in panel.task_ids if i in here)
    found = behaviour_hash(agent.text_env, known) if known else None
    if found == claimed and found is not None:
        verdict.passed.append(f"The environment answers as it did (behaviour {found[:12]}).")
    else:
        verdict.failed.append(
            f"{claims.env.id} answers otherwise than where the result was measured: behaviour "
            f"{str(claimed)[:12]} there (versions {claims.environment.get('versions')}), "
            f"{str(found)[:12]} here."
        )


def _check_episodes(
    certificate: Certificate,
    claims: Claims,
    agent: AgentInterface,
    sample: int | None,
    seed: int,
    verdict: Verdict,
) -> None:
    """Digests of all episodes, and a replay of the sample."""
    episodes = certificate.episodes
    if len(claims.digests) != len(episodes):
        verdict.failed.append(
            f"{len(claims.digests)} episodes are claimed, {len(episodes)} are recorded."
        )
    pairs = enumerate(zip(episodes, claims.digests, strict=False))
    changed = {n for n, (episode, digest) in pairs if episode.digest != digest}
    verdict.failed.extend(
        f"Episode {episodes[n].name}: its record is not what its digest was made of."
        for n in sorted(changed)
    )
    verdict.failed.extend(
        f"Episode {e.name}: claims were taken out of its record."
        for e in episodes
        if not e.complete
    )
    count = len(episodes) if sample is None else min(sample, len(episodes))
    chosen = {int(n) for n in np.random.default_rng(seed).permutation(len(episodes))[:count]}
    steps, differences = 0, []
    for number in sorted(chosen | changed):
        difference = replay(agent, episodes[number])[1]
        steps += len(episodes[number].steps)
        if difference is not None:
            differences.append(str(difference))
    if differences:
        verdict.failed.append(listed(differences))
    else:
        which = "all" if count == len(episodes) else f"{count} sampled (seed {seed})"
        verdict.passed.append(
            f"Replayed {which} of {len(episodes)} episodes, {steps} steps: observations, rewards and scores "
            "are what was claimed."
        )
