"""Environments that run elsewhere, or in other processes: the client of ``paw serve gateway``."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

__all__ = ["RemoteError", "ServerUnavailableError", "SessionLostError", "make_remote"]

REMOTE_ID = "paw_gym/Remote-v0"


def make_remote(url: str, id: str, **kwargs: Any) -> Any:
    """An environment that a gateway runs, as a Gymnasium environment like any other.

    ``EnvPool`` asks many of them in one request. ``gymnasium.make("paw_gym/Remote-v0", url=...,
    remote_id=...)`` is the same, for recipes and for ``paw check``.

    Args:
        url: the gateway's address, such as ``http://127.0.0.1:8000``.
        id: an id that is registered there.
        kwargs: settings of the environment, as far as the gateway allows; ``token``, ``timeout``
            and ``render_mode`` are this side's.

    Raises:
        ServerUnavailableError: no gateway answers, or it wants a token.
        ValueError: the gateway does not offer the environment or a setting; states what it does offer.
    """
    from paw_gym.registration import make_text_env

    return make_text_env(REMOTE_ID, url=url, remote_id=id, **kwargs)


class RemoteError(RuntimeError):
    """The gateway or the environment refused; the message is theirs."""


class SessionLostError(RemoteError):
    """The environment is gone: it failed, its session expired, or the gateway began anew. ``reset()`` begins
    a new episode, with a new session if it takes one."""


class UnknownSessionError(SessionLostError):
    """The gateway does not know the session."""


class OutOfStepError(SessionLostError):
    """The gateway is not where the client's episode is, as when a worker died of another environment."""


class ServerUnavailableError(ConnectionError):
    """The gateway cannot be reached, or does not let this client in; the message states what to do."""


# --- the state of NumPy's PCG64 generator, so that client and server sample from one stream ------------

_FORM = re.compile(r"[0-9a-f]{73}")


def generator_text(generator: np.random.Generator) -> str | None:
    """The state in 73 hexadecimal digits; ``None`` for a generator that is not PCG64."""
    state = generator.bit_generator.state
    if state["bit_generator"] != "PCG64":
        return None
    inner = state["state"]
    return f"{inner['state']:032x}{inner['inc']:032x}{state['has_uint32']:x}{state['uinteger']:08x}"


def set_generator(generator: np.random.Generator, text: str) -> None:
    """Puts a generator into the state that ``generator_text`` gave.

    Raises:
        ValueError: not such a text, or not a PCG64 generator.
    """
    if not _FORM.fullmatch(text):
        raise ValueError(f"A generator's state is 73 hexadecimal digits, got {text!r:.100}.")
    state: dict[str, Any] = {
        "bit_generator": "PCG64",
        "state": {"state": int(text[:32], 16), "inc": int(text[32:64], 16)},
        "has_uint32": int(text[64], 16),
        "uinteger": int(text[65:], 16),
    }
    generator.bit_generator.state = state
