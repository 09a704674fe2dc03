"""The offer of a gateway and the clients it admits, from options of ``paw serve gateway``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from env_servers.problems import ProblemError
from paw_gym.internals.naming import did_you_mean

SAFE_KWARGS = frozenset(
    {"dataset", "difficulty", "grammar", "max_steps", "reward", "show_attributes", "split", "top_k",
     "variation"}
)  # fmt: skip
"""settings that name no file or host and cost the server little, whatever their value"""
NEVER_SERVED = frozenset({"paw_gym/Remote-v0"})
"""it would make the gateway a client of any host"""
MAX_STEPS = 10_000
"""the longest episode that a client may ask for"""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
"""strings that a client may give: no path leads out of a folder by one of them"""
_LARGEST = 1_000_000


def _not_offered(detail: str) -> ProblemError:
    return ProblemError(422, detail, exception="ValueError")


@dataclass(frozen=True)
class Offer:
    """The environments that clients may ask for, and their settings."""

    env_ids: frozenset[str]
    kwargs: frozenset[str] = SAFE_KWARGS
    """names of the settings that a client may choose"""
    fixed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """by environment, settings that the server chooses (the folder of its data)"""

    def __post_init__(self) -> None:
        for env_id in NEVER_SERVED & {*self.env_ids, *self.fixed}:
            raise ValueError(f"{env_id} cannot be served: give that gateway's address instead.")
        for env_id in self.fixed.keys() - self.env_ids:
            raise ValueError(f"{env_id} is not served. {did_you_mean(env_id, self.env_ids)}")

    def settings(self, env_id: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments to make an environment with."""
        if env_id not in self.env_ids:
            hint = did_you_mean(env_id, self.env_ids)
            raise _not_offered(f"This gateway serves no environment {env_id!r}. {hint}")
        fixed = self.fixed.get(env_id, {})
        for name, value in kwargs.items():
            if name in fixed or name not in self.kwargs:
                chosen = sorted(self.kwargs - set(fixed))
                raise _not_offered(
                    f"{name} is the server's to choose. A client may give: {', '.join(chosen)}."
                )
            _check(name, value)
        return {**kwargs, **fixed}


def _check(name: str, value: Any) -> None:
    if isinstance(value, str) and not _NAME.fullmatch(value):
        raise _not_offered(f"{name}={value!r:.80}: a client gives a plain name, not a path.")
    if isinstance(value, int | float) and not abs(value) <= _LARGEST:
        raise _not_offered(f"{name}={value}: at most {_LARGEST:,}.")
    if name == "max_steps" and (type(value) is not int or value > MAX_STEPS):
        raise _not_offered(f"max_steps={value!r}: an integer up to {MAX_STEPS:,}.")


def offer_of(
    envs: Sequence[str],
    allowed: Sequence[str],
    fixed: Sequence[str],
    full_id: Callable[[str], str],
    parse: Callable[[Sequence[str]], dict[str, Any]],
) -> Offer:
    """The offer of a gateway.

    Args:
        envs: names of environments; none: all that are registered.
        allowed: settings that clients may choose besides the safe ones.
        fixed: ``ENV:KEY=VALUE``, settings that the server chooses.
    """
    from paw_gym.registration import text_env_ids

    ids = frozenset(map(full_id, envs)) or frozenset(text_env_ids()) - NEVER_SERVED
    settings: dict[str, dict[str, Any]] = {}
    for one in fixed:
        name, colon, pair = one.partition(":")
        if not colon or "=" not in pair:
            raise ValueError(f"Expected ENV:KEY=VALUE, got {one!r} (ALFWorld:data_dir=/data).")
        settings.setdefault(full_id(name), {}).update(parse([pair]))
    return Offer(ids, SAFE_KWARGS | set(allowed), settings)


def tokens_of(token: str | None, path: Path | None) -> list[str]:
    """The tokens that let clients in: the one given, and those of a file, one per line."""
    tokens = [] if token is None else [token]
    if path is not None:
        lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
        listed = [line for line in lines if line and not line.startswith("#")]
        if not listed:
            raise ValueError(f"{path} holds no token: write one a line.")
        tokens += listed
    return tokens
