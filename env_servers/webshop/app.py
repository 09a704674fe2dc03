"""The WebShop server: the site and environments of its shop in one application."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import paw_gym
from env_servers.application import Page, new_app
from env_servers.gate import Gate
from env_servers.gateway.app import BODIES, MAX_BODY, add_routes
from env_servers.gateway.gateway import Gateway, Limits
from env_servers.gateway.settings import Offer
from env_servers.gateway.workers import LocalFleet
from env_servers.sessions import SessionStore
from env_servers.webshop.site import Site, Store, site_routes
from paw_gym.envs.webshop.env import CLIENT_SETTINGS, SHOP_ID, ShopSettings

_SITE_PATHS = ("/shop", "/favicon")


def create_app(
    settings: ShopSettings | None = None,
    *,
    sessions: SessionStore | None = None,
    token: str | None = None,
    hosts: Sequence[str] = (),
) -> Gate:
    """The server as an ASGI application.

    Args:
        settings: what the shop is made of; ``None``: the generated products.
        sessions: where sessions are kept; ``None``: a store with the default limits.
        token: what clients must show; ``None``: nothing.
        hosts: names by which the server is reached, besides this machine's own.
    """
    # an empty store is falsy
    store = Store(settings or ShopSettings(), SessionStore() if sessions is None else sessions)
    site = Site(store)

    def page_for(path: str) -> Page | None:
        return site.problem if path == "/" or path.startswith(_SITE_PATHS) else None

    app = new_app("WebShop", has_token=token is not None, bodies=BODIES, page_for=page_for)
    app.include_router(site_routes(site))
    add_routes(app, _gateway(store))

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """The shop's state."""
        products, held = len(store.shop.catalogue), len(store.sessions)
        found = {"version": paw_gym.__version__, "products": products, "sessions": held}
        return {"status": "ok", **found}

    return Gate(app, token, max_body=MAX_BODY, hosts=hosts, forms=("/shop",))


def _gateway(store: Store) -> Gateway:
    """The gateway for ``WebShop-v0(server=URL)`` and for programs without an environment, in this process.

    They share the shop's data and its limits of sessions with the site. There are no separate workers: an
    action takes less time than the way to another process and back (docs/servers.md has the figures).
    """
    offer = Offer(
        frozenset({SHOP_ID}), frozenset(CLIENT_SETTINGS), {SHOP_ID: asdict(store.settings)}
    )
    return Gateway(offer, Limits(), sessions=store.sessions, fleet=LocalFleet())
