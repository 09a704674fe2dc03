"""Any registered environment for clients elsewhere. ``create_app`` makes the server; ``paw serve
gateway`` starts it; ``paw_gym.make_remote`` is the client.

Environments run in worker processes. One that dies or hangs takes its session along; clients of the
other sessions of its worker have them played again elsewhere.
"""

from __future__ import annotations

from env_servers.gateway.app import create_app
from env_servers.gateway.gateway import Limits
from env_servers.gateway.settings import Offer

__all__ = ["Limits", "Offer", "create_app"]
