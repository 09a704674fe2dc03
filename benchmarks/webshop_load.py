"""The WebShop server under load: many sessions at once, latencies, memory.

    python benchmarks/webshop_load.py [--sessions 256] [--seconds 120] [--think 1.0]

Each session is a client with a connection of its own: it opens a session, plays random admissible
actions and searches until the purchase, and begins anew. ``--think`` is the mean pause between two
actions of a client, as of a policy that is asked for the next one; 0 measures the highest throughput.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time
from typing import Any

from processes import Service, memory_mb

_TEXT = "red blue soft travel mug lamp tea socks cotton pack organic steel light sweater candle"
WORDS = _TEXT.split()


class Client:
    """A shopper with a kept connection."""

    def __init__(self, port: int, seed: int, think: float) -> None:
        self.port, self.rng, self.think = port, random.Random(seed), think
        self.key = f"client {seed} of the benchmark"
        self.times: list[tuple[float, float]] = []
        self.errors: list[str] = []

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        data = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"X-PaW-Client: {self.key}\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        start = time.perf_counter()
        self.writer.write(head.encode() + data)
        await self.writer.drain()
        status = int((await self.reader.readline()).split()[1])
        length = 0
        while (line := await self.reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode().partition(":")
            if name.lower() == "content-length":
                length = int(value)
        content = await self.reader.readexactly(length)
        self.times.append((start, time.perf_counter() - start))
        if status >= 400:
            self.errors.append(f"{status} {content[:200]!r}")
        return json.loads(content) if content else None

    async def run(self, until: float) -> None:
        try:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
            opened = await self.call("POST", "/v1/sessions", {"env_id": "paw_gym/WebShop-v0"})
            session = f"/v1/sessions/{opened['session']}"
            shown = {"terminated": True}
            while time.perf_counter() < until:
                if self.think:
                    await asyncio.sleep(self.rng.uniform(0, 2 * self.think))
                if shown["terminated"] or shown["truncated"]:
                    start = {"seed": self.rng.getrandbits(32)}
                    shown = await self.call("POST", f"{session}/reset", start)
                action = self.rng.choice(shown["info"]["admissible_actions"])
                if action == "search[...]":
                    action = f"search[{' '.join(self.rng.sample(WORDS, 3))}]"
                shown = await self.call("POST", f"{session}/step", {"action": action})
            await self.call("DELETE", session)
            self.writer.close()
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            self.errors.append(repr(error))


async def load(arguments: argparse.Namespace, port: int, pid: int) -> None:
    begin = time.perf_counter()
    until = begin + arguments.seconds
    clients = [Client(port, n, arguments.think) for n in range(arguments.sessions)]
    memory: list[tuple[float, float]] = []

    async def watch() -> None:
        while time.perf_counter() < until:
            memory.append((time.perf_counter() - begin, memory_mb(pid)))
            await asyncio.sleep(arguments.seconds / 24)

    await asyncio.gather(watch(), *(client.run(until) for client in clients))
    times = sorted(seconds for client in clients for _, seconds in client.times)
    errors = [error for client in clients for error in client.errors]
    warm = [mb for at, mb in memory if at > arguments.seconds / 4]
    print(
        f"{arguments.sessions} sessions, {arguments.seconds:.0f} s, pause {arguments.think} s; load "
        f"average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores (client included)"
    )
    print(
        f"{len(times):,} requests, {len(times) / arguments.seconds:,.0f} a second, {len(errors)} errors"
    )
    for share in (0.5, 0.9, 0.99):
        print(f"p{share * 100:.0f}: {times[int(share * (len(times) - 1))] * 1000:.1f} ms")
    print(f"memory of the server: {warm[0]:.1f} MB after a quarter, {warm[-1]:.1f} MB at the end")
    for error in errors[:5]:
        print(error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--think", type=float, default=1.0)
    arguments = parser.parse_args()
    with Service("serve", "webshop") as server:
        asyncio.run(load(arguments, server.port, server.pid))


if __name__ == "__main__":
    main()
