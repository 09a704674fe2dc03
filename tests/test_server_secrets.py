"""A server's token is in none of what it prints, whatever the request."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOKEN = "hunter2-of-the-server"


def _ask(url: str, token: str | None) -> int:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.slow
@pytest.mark.parametrize(
    "service", [["webshop", "--num-products", "20"], ["gateway", "--workers", "1"]]
)
def test_a_log_holds_no_token(service: list[str], tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason='pip install ".[server]"')
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PAW_SERVE_TOKEN": TOKEN}
    command = [sys.executable, "-m", "paw_train.cli", "serve", *service, "--port", str(port)]
    log = tmp_path / "log"
    with log.open("wb") as out:
        server = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=out, stderr=out)
        try:
            while not _answers(port):
                assert server.poll() is None, log.read_text()
                time.sleep(0.2)
            base = f"http://127.0.0.1:{port}"
            assert _ask(f"{base}/metrics", TOKEN) == 200
            assert _ask(f"{base}/metrics", None) == 401
            assert _ask(f"{base}/metrics", "hunter2-guessed") == 401
            assert _ask(f"{base}/no/such/place", TOKEN) in (404, 405)
        finally:
            server.terminate()
            server.wait()
    said = log.read_bytes()
    assert b"Finished server process" in said, "it does log"
    assert b"hunter2" not in said


def _answers(port: int) -> bool:
    try:
        return _ask(f"http://127.0.0.1:{port}/health", None) == 200
    except OSError:
        return False
