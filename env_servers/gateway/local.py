"""Environments in the server's own process: for those that are quick and known not to hang or to die."""

from __future__ import annotations

import asyncio
from typing import Any

from env_servers.gateway.hosted import Host


class LocalWorker:
    """Executes a call at once, in the order they come.

    No other request is answered meanwhile, and nothing stops an environment that takes too long.
    """

    def __init__(self) -> None:
        self._host = Host()
        self.sessions = 0
        self.gone = False

    def call(self, body: dict[str, Any], seconds: float) -> asyncio.Future[tuple[int, bytes]]:
        """The status and the answer of a call, in a future that is done."""
        future = asyncio.get_running_loop().create_future()
        future.set_result(self._host.answer(body))
        return future


class LocalFleet:
    """One worker, which is this process."""

    ready, deaths = 1, 0

    def __init__(self) -> None:
        self._worker = LocalWorker()

    async def start(self) -> None:
        """Nothing is to be started."""

    async def place(self) -> LocalWorker:
        """The worker for one more environment."""
        return self._worker

    async def close(self) -> None:
        """Nothing is to be ended."""
