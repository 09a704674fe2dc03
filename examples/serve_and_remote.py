"""A gateway serves environments, and a client plays one as if it were local (extra: server).

python examples/serve_and_remote.py
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import gymnasium as gym

from paw_gym import make_remote

ENV = "paw_gym/ALFWorld-v0"


@contextmanager
def gateway(token: str) -> Iterator[str]:
    """`paw serve gateway` on a free port of this machine, until the block ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "paw_train.cli", "serve", "gateway", "--port", str(port)]
    environment = {**os.environ, "PAW_SERVE_TOKEN": token}  # other users can see a command line
    server = subprocess.Popen(
        [*command, "--workers", "1"], env=environment, stderr=subprocess.DEVNULL
    )
    try:
        while not _answers(f"http://127.0.0.1:{port}/health"):
            if server.poll() is not None:
                raise RuntimeError(f"The gateway exited with status {server.returncode}.")
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError:
        return False
    return True


def main() -> None:
    """Plays the same game locally and through the gateway, step by step."""
    token = secrets.token_urlsafe()
    with gateway(token) as url:
        there = make_remote(url, ENV, token=token, split="valid_seen")
        here = gym.make(ENV, split="valid_seen")
        observation, info = there.reset(seed=3)
        assert (observation, info) == here.reset(seed=3)
        print(info["instruction"])
        for action in here.unwrapped.reference_solution():
            step = there.step(action)
            assert step == here.step(action)
            print(f"> {action}\n{step[0]}")
        print(f"success {step[4]['success']}: every step was the same locally and remotely")
        there.close()


if __name__ == "__main__":
    main()
