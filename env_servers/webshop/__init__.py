"""The WebShop site and environments of its shop: ``create_app``; ``paw serve webshop`` starts it."""

from __future__ import annotations

from env_servers.webshop.site import create_app

__all__ = ["create_app"]
