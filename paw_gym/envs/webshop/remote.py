"""WebShop on a server: ``WebShop-v0`` with ``server=URL``, as a client of ``paw serve webshop``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paw_gym.remote.env import RemoteEnv
from paw_gym.remote.errors import ServerUnavailableError, SessionLostError

__all__ = ["ServerUnavailableError", "SessionLostError", "remote_shop"]

SHOP_ID = "paw_gym/WebShop-v0"
CLIENT_SETTINGS = ("split", "max_steps")
"""what a client chooses; what the shop is made of is the server's choice"""


def remote_shop(
    server: str, token: str | None, render_mode: str | None, settings: Mapping[str, Any]
) -> RemoteEnv:
    """The environment of a shop that is served elsewhere, by the gateway's protocol.

    Args:
        server: the address of ``paw serve webshop``, or of a gateway that offers the shop.
        token: bearer token, where the server asks for one.
        render_mode: as for every text environment.
        settings: those of ``WebShopEnv`` that were given.

    Raises:
        ValueError: a setting that is the server's to choose.
        ServerUnavailableError: no server answers, or it wants a token.
    """
    for name in settings:
        if name not in CLIENT_SETTINGS:
            raise ValueError(
                f"{name} is the server's to choose: give it to `paw serve webshop`, "
                "or leave server out."
            )
    return RemoteEnv(server, SHOP_ID, token, render_mode=render_mode, **settings)
