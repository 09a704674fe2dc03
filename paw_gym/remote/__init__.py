"""Environments that run elsewhere, or in other processes: the client of ``paw serve gateway``."""

from __future__ import annotations

from typing import Any

from paw_gym.remote.protocol import RemoteError, ServerUnavailableError, SessionLostError

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
