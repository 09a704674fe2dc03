"""The options of ``paw serve gateway`` as an offer and as tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from env_servers.gateway.settings import NEVER_SERVED, SAFE_KWARGS, Offer


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
        allowed: settings that clients may choose beside the safe ones.
        fixed: ``ENV:KEY=VALUE``, settings that the server chooses.
        full_id: the registered id that a name means.
        parse: reads ``KEY=VALUE`` pairs.

    Raises:
        ValueError: an unknown environment, or a setting that is not of that form.
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
    """The tokens that let clients in: the one given, and those of a file, one a line.

    Raises:
        ValueError: a file without a token.
    """
    tokens = [] if token is None else [token]
    if path is not None:
        lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
        listed = [line for line in lines if line and not line.startswith("#")]
        if not listed:
            raise ValueError(f"{path} holds no token: write one a line.")
        tokens += listed
    return tokens
