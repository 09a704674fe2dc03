"""The gateway: speed compared with environments in this process, and what it survives.

    python benchmarks/gateway.py                                  # 128 remote ALFWorld environments
    python benchmarks/gateway.py --env paw_gym/ScienceWorld-v0 --envs 16    # a Java machine in each worker
    python benchmarks/gateway.py --sessions 1000 --clients 50     # kills of clients and of workers
    python benchmarks/gateway.py --fuzz 10000                     # malformed requests

Speed: pools over the same tasks and seeds take turns, round by round, in this process and through
a gateway, and must record the same. Kills: each client also plays its sessions locally, so an answer
from another's session would differ; now and then it asks for sessions of others; its connection is cut
at random, it forgets what it had, and it returns as a new client. Workers are killed meanwhile.
The same functions at a small size are tests (tests/gateway).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from processes import Service, memory_mb

TASKS = 40
"""different tasks that the clients of the storm play"""


def gateway(*arguments: str) -> Service:
    """`paw serve gateway` in a process of its own, once its workers can work."""
    return Service("serve", "gateway", *arguments, is_ready=lambda health: health["workers"])


def health(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/health") as answer:
        return json.load(answer)  # type: ignore[no-any-return]


def workers_of(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def machine() -> str:
    return f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


# --- speed -------------------------------------------------------------------------------------------


def play_round(pool: Any, steps: int, seed: int) -> tuple[float, int, str]:
    """Seconds for the steps, their number, and the episodes as text."""
    active, count = pool.reset(), 0
    rngs = [random.Random(seed + slot.index) for slot in active]
    # a world that lists its actions only when asked is asked once
    first = [s.info["admissible_actions"] or pool.env_of(s).text_env.list_actions() for s in active]
    start = time.perf_counter()
    for _ in range(steps):
        responses = [
            pool.env_of(s).response_for(
                rngs[s.index].choice(s.info["admissible_actions"] or first[s.index])
            )
            for s in active
        ]
        count += len(responses)
        active = pool.step(responses)
    seconds = time.perf_counter() - start
    return seconds, count, json.dumps([episode.to_dict() for episode in pool.episodes])


def speed(arguments: argparse.Namespace) -> None:
    """Steps a second: in this process, and through a gateway."""
    from paw_gym import EnvPool

    with gateway("--workers", str(arguments.workers)) as server:
        groups, size = max(1, arguments.envs // 8), min(8, arguments.envs)
        here = EnvPool(arguments.env, groups, size, seed=1)
        at = {"url": server.url, "remote_id": arguments.env}
        there = EnvPool("paw_gym/Remote-v0", groups, size, seed=1, **at)
        rates: dict[str, list[float]] = {"in this process": [], "remote": []}
        for number in range(arguments.rounds + 1):
            results = set()
            for name, pool in zip(rates, (here, there), strict=True):
                seconds, count, episodes = play_round(pool, arguments.steps, number * 1000)
                results.add(episodes)
                if number:  # the first round compiles the games
                    rates[name].append(count / seconds)
            assert len(results) == 1, "the episodes differ"
        there.close()
        print(
            f"{groups * size} environments {arguments.env}, {arguments.workers} workers, "
            f"{arguments.rounds} rounds of {arguments.steps} steps; {machine()}; episodes equal"
        )
        for name, values in rates.items():
            middle = statistics.median(values)
            ratio = middle / statistics.median(rates["in this process"])
            extremes = f"{min(values):,.0f} to {max(values):,.0f}"
            print(f"{name}: {middle:,.0f} steps a second ({extremes}), {ratio:.2f} of in-process")


# --- the storm ---------------------------------------------------------------------------------------


class TornError(Exception):
    """The client's connection was cut."""


class Wire:
    """A connection with a secret, which can be cut in the middle of a request."""

    def __init__(self, port: int, rng: random.Random) -> None:
        self.port, self.rng = port, rng
        self.key = f"{rng.getrandbits(128):032x}"
        self.tear = 0.0

    async def calls(self, calls: list[dict[str, Any]], key: str | None = None) -> list[Any]:
        data = json.dumps({"calls": calls}).encode()
        head = (
            f"POST /v1/calls HTTP/1.1\r\nHost: localhost\r\nX-PaW-Client: {key or self.key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(head.encode() + data)
            await writer.drain()
            if self.rng.random() < self.tear:
                await asyncio.sleep(self.rng.uniform(0, 0.02))
                writer.transport.abort()
                raise TornError
            status = int((await reader.readline()).split()[1])
            length = 0
            while (line := await reader.readline()) not in (b"\r\n", b""):
                name, _, value = line.decode().partition(":")
                length = int(value) if name.lower() == "content-length" else length
            content = json.loads(await reader.readexactly(length))
        finally:
            writer.close()
        if status in (429, 503):
            await asyncio.sleep(0.5)
            return await self.calls(calls, key)
        assert status == 200, (status, content)
        return content["results"]  # type: ignore[no-any-return]


class Guest:
    """A session as its client sees it, with the same environment beside it in this process."""

    def __init__(self, session: str, env: Any, task_id: str, seed: int) -> None:
        self.session, self.env, self.rng = session, env, random.Random(seed)
        self.task_id, self.seed = task_id, seed
        self.steps, self.over, self.behind = -1, False, False
        self.action = ""
        self.taken: list[dict[str, str]] = []
        self.expected: Any = None

    def next_call(self) -> dict[str, Any]:
        start = {"seed": self.seed, "options": {"task_id": self.task_id}}
        if self.steps < 0 or self.over:
            return {"op": "reset", "session": self.session, **start}
        if self.behind:
            steps = {"reset": start, "steps": self.taken}
            return {"op": "restore", "session": self.session, **steps}
        self.action = self.rng.choice(self.env.list_actions())
        return {"op": "step", "session": self.session, "action": self.action, "at": self.steps}

    def compare(self, call: dict[str, Any], answer: dict[str, Any]) -> bool:
        """True if the answer is the same as that of the local environment."""
        names = ["observation", "reward", "terminated", "truncated", "info"]
        if call["op"] == "reset":
            observation, info = self.env.reset(seed=self.seed, options=call["options"])
            self.expected = {"observation": observation, "info": info}
            self.steps, self.over, self.taken = 0, False, []
        elif call["op"] == "step":
            self.expected = dict(zip(names, self.env.step(self.action), strict=True))
            self.steps += 1
            self.over = self.expected["terminated"] or self.expected["truncated"]
            self.taken.append({"action": self.action})
        self.behind = False
        return bool({name: answer[name] for name in self.expected} == self.expected)


class Storm:
    """Clients that play, trespass and are cut off, and a killer of workers.

    Args:
        server: the gateway's port and process id.
        env_id: the environment that is played.
        sessions: how many are opened in total.
        clients: how many clients play at a time.
        seconds: a limit for the whole storm.
        kill_every: seconds between two kills of a worker.
        seed: seeds the clients and the killer.
    """

    def __init__(
        self,
        server: tuple[int, int],
        env_id: str,
        sessions: int,
        clients: int,
        seconds: float,
        kill_every: float,
        seed: int = 0,
    ) -> None:
        from paw_gym.registration import make_text_env

        self.port, self.pid = server
        self.env_id, self.sessions, self.clients = env_id, sessions, clients
        self.until, self.kill_every = time.monotonic() + seconds, kill_every
        self.rng = random.Random(seed)
        self.make = lambda: make_text_env(env_id).unwrapped
        self.tasks = list(self.make().tasks.ids)[:TASKS]
        self.known: list[str] = []
        """every session that was ever opened, by any client"""
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []

    async def run(self) -> None:
        """Runs until as many sessions as asked for have been opened and played."""
        killer = asyncio.create_task(self._kill())
        await asyncio.gather(*(self._client(random.Random(n)) for n in range(self.clients)))
        killer.cancel()

    async def _kill(self) -> None:
        while True:
            await asyncio.sleep(self.kill_every * self.rng.uniform(0.5, 1.5))
            children = workers_of(self.pid)
            ready = await asyncio.to_thread(health, f"http://127.0.0.1:{self.port}")
            if children and ready["workers"] == len(children):  # else nothing would get done
                try:
                    os.kill(self.rng.choice(children), signal.SIGKILL)
                    self.counts["workers killed"] += 1
                except ProcessLookupError:
                    continue

    async def _client(self, rng: random.Random) -> None:
        share = max(1, self.sessions // self.clients // 2)
        while self.counts["opened"] < self.sessions and time.monotonic() < self.until:
            wire = Wire(self.port, rng)
            try:
                await self._life(wire, min(share, self.sessions - self.counts["opened"]))
            except (TornError, ConnectionError, asyncio.IncompleteReadError):
                self.counts["clients torn away"] += 1

    async def _life(self, wire: Wire, count: int) -> None:
        self.counts["opened"] += count
        opened: list[dict[str, Any]] = []
        while len(opened) < count:
            call = {"op": "open", "env_id": self.env_id}
            results = await wire.calls([call] * (count - len(opened)))
            opened += [result for result in results if result["status"] == 200]
        guests = [
            Guest(r["answer"]["session"], self.make(), wire.rng.choice(self.tasks), 7 + n)
            for n, r in enumerate(opened)
        ]
        self.known += [guest.session for guest in guests]
        wire.tear = 0.03
        for turn in range(12):
            await self._turn(wire, guests)
            if turn % 4 == 1:
                await self._trespass(wire, {guest.session for guest in guests})
        closing = [{"op": "close", "session": guest.session} for guest in guests]
        wire.tear = 0.0
        await wire.calls(closing)
        self.counts["closed"] += len(closing)

    async def _turn(self, wire: Wire, guests: list[Guest]) -> None:
        calls = [guest.next_call() for guest in guests]
        for guest, call, result in zip(guests, calls, await wire.calls(calls), strict=True):
            self.counts[f"answers {result['status']}"] += 1
            if result["status"] == 200:
                if not guest.compare(call, result["answer"]):
                    self.problems.append(f"{guest.session}: another answer than here")
                self.counts["restored"] += call["op"] == "restore"
            elif result["status"] == 409:
                guest.behind = True  # its worker died
            elif result["status"] in (410, 429, 503):
                guest.steps = -1  # lost with its worker, or no room: begin anew
            else:
                self.problems.append(f"{call['op']}: {result}")

    async def _trespass(self, wire: Wire, own: set[str]) -> None:
        others = [s for s in wire.rng.sample(self.known, min(8, len(self.known))) if s not in own]
        ops = [
            {"op": "step", "session": s, "action": "look", "at": 0}
            if wire.rng.random() < 0.7
            else {"op": "close", "session": s}
            for s in others
        ]
        for result in await wire.calls(ops) if ops else []:
            self.counts["trespasses"] += 1
            if result["status"] != 404:
                self.problems.append(f"a stranger was answered: {result}")


def storm(arguments: argparse.Namespace) -> None:
    """Many sessions, with kills on both sides; then the end."""
    with gateway("--workers", str(arguments.workers), "--session-minutes", "0.25") as server:
        raging = Storm(
            (server.port, server.pid), "paw_gym/ALFWorld-v0", arguments.sessions,
            arguments.clients, arguments.seconds, arguments.kill_every,
        )  # fmt: skip
        start = time.monotonic()
        asyncio.run(raging.run())
        print(
            f"{raging.counts['opened']} sessions of {arguments.clients} clients in "
            f"{time.monotonic() - start:.0f} s; {machine()}"
        )
        print(", ".join(f"{name}: {count:,}" for name, count in sorted(raging.counts.items())))
        print(f"memory of the server: {memory_mb(server.pid):.0f} MB")
        print(f"wrong answers: {len(raging.problems)} {raging.problems[:3]}")
        left = health(server.url)["sessions"]
        deadline = time.monotonic() + 60
        while health(server.url)["sessions"] and time.monotonic() < deadline:
            time.sleep(0.5)
        held, workers = health(server.url)["sessions"], workers_of(server.pid)
        print(f"sessions that nobody closed: {left}; after their time to live: {held}")
        status = server.stop()
    alive = sum(Path(f"/proc/{pid}").exists() for pid in workers)
    print(f"after SIGTERM: status {status}, {alive} workers left")


# --- malformed requests ------------------------------------------------------------------------------


def strange(rng: random.Random, depth: int = 0) -> Any:
    """Any JSON, including words that mean something to a gateway."""
    kinds = [
        lambda: rng.choice([None, True, False, 0, -1, 2**70, 1e308, -0.5, "", "x", "\x00", "é🙂"]),
        lambda: rng.choice(["open", "step", "reset", "close", "ask", "paw_gym/ALFWorld-v0", "../x"]),
        lambda: "".join(chr(rng.randrange(1, 0x500)) for _ in range(rng.randrange(20))),
        lambda: [strange(rng, depth + 1) for _ in range(rng.randrange(4))],
        lambda: {
            rng.choice(["op", "session", "env_id", "kwargs", "action", "calls", "seed", "x"]):
            strange(rng, depth + 1) for _ in range(rng.randrange(5))
        },
    ]  # fmt: skip
    return rng.choice(kinds[: 3 if depth > 3 else 5])()


def strange_request(rng: random.Random, env_id: str, session: str) -> tuple[str, str, bytes]:
    """Method, path and body of a request that is wrong in some way, or nearly right."""
    call: dict[str, Any] = rng.choice(
        [
            {"op": "open", "env_id": env_id, "kwargs": {}},
            {"op": "describe", "env_id": env_id, "kwargs": {"split": "train"}},
            {"op": "tasks", "env_id": env_id, "offset": 3, "limit": 4},
            {"op": "task", "env_id": env_id, "task_id": "x/1"},
            {"op": "reset", "session": session, "seed": 1, "options": {"task_index": 2}},
            {"op": "step", "session": session, "action": "look", "at": 0},
            {"op": "ask", "session": session, "what": "advice", "number": 3, "text": ""},
            {"op": "restore", "session": session, "reset": {"seed": 3}, "steps": [{"action": "a"}]},
            {"op": "close", "session": "nobody"},
        ]
    ).copy()
    for _ in range(rng.randrange(3)):
        call[rng.choice([*call, "rng", "progress", "more"])] = strange(rng)
    if rng.random() < 0.2:
        call["rng"] = "".join(rng.choice("0123456789abcdef") for _ in range(73))
    body: Any = rng.choice([{"calls": [call]}, {"calls": [call]}, call, strange(rng)])
    data = json.dumps(body, ensure_ascii=rng.random() < 0.8).encode("utf-8", "replace")
    if rng.random() < 0.15:
        place = rng.randrange(len(data) + 1)
        data = data[:place] + rng.randbytes(rng.randrange(6)) + data[place + rng.randrange(3) :]
    path = rng.choice(
        ["/v1/calls"] * 8 + ["/v1/calls/%00", "/v1/..%2f/calls", "/v1", "/health", "/v1/envs"]
    )
    return rng.choice(["POST"] * 9 + ["GET", "DELETE", "PUT"]), path, data


def send(url: str, method: str, path: str, body: bytes, key: str) -> tuple[int, Any]:
    """Status and JSON (or text) of an answer."""
    headers = {"X-PaW-Client": key, "Content-Type": "application/json"}
    request = urllib.request.Request(url + path, body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            status, content = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, content = error.code, error.read()
    try:
        return status, json.loads(content)
    except ValueError:
        return status, content.decode()


def fuzz(url: str, env_id: str, count: int, seed: int = 7) -> tuple[Counter[int], list[str]]:
    """Statuses of strange requests, including inner ones, and the requests that blame the server."""
    rng, key = random.Random(seed), "a key of the fuzzer"
    body = json.dumps({"calls": [{"op": "open", "env_id": env_id}]}).encode()
    [opened] = send(url, "POST", "/v1/calls", body, key)[1]["results"]
    session = opened["answer"]["session"]
    seen: Counter[int] = Counter()
    problems = []
    for _ in range(count):
        method, path, data = strange_request(rng, env_id, session)
        status, content = send(url, method, path, data, key)
        inner = content.get("results", []) if isinstance(content, dict) else []
        statuses = [status, *(result["status"] for result in inner)]
        seen.update(statuses)
        if max(statuses) >= 500:
            problems.append(f"{method} {path} {data!r}: {content}")
    return seen, problems


def fuzzed(arguments: argparse.Namespace) -> None:
    """Malformed requests."""
    with gateway("--workers", str(arguments.workers)) as server:
        start = time.monotonic()
        seen, problems = fuzz(server.url, "paw_gym/ALFWorld-v0", arguments.fuzz)
        print(f"{arguments.fuzz:,} requests in {time.monotonic() - start:.0f} s; {machine()}")
        print(", ".join(f"{status}: {count:,}" for status, count in sorted(seen.items())))
        print(f"5xx: {len(problems)} {problems[:3]}; then: {health(server.url)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--env", default="paw_gym/ALFWorld-v0", help="id of the environment")
    parser.add_argument("--envs", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sessions", type=int, default=0, help="play this many in a storm")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--kill-every", type=float, default=5.0)
    parser.add_argument("--fuzz", type=int, default=0, help="send this many strange requests")
    arguments = parser.parse_args()
    if arguments.sessions:
        storm(arguments)
    elif arguments.fuzz:
        fuzzed(arguments)
    else:
        speed(arguments)


if __name__ == "__main__":
    main()
