from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

Reply = tuple[int, Any]


@contextmanager
def serve(answer: Callable[[str, str, Any], Reply]) -> Iterator[str]:
    """An address whose answers ``answer(method, path, payload)`` gives: a status, and JSON or bytes.

    A status of 0 closes the connection without a word; one below 0 says nothing for so many seconds.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._handle("GET")

        def do_POST(self) -> None:
            self._handle("POST")

        def _handle(self, method: str) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, content = answer(method, self.path, json.loads(text) if text else None)
            if status <= 0:
                time.sleep(-status)
                self.close_connection = True
                return
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


Serving = Callable[[Callable[[str, str, Any], Reply]], AbstractContextManager[str]]


@pytest.fixture
def serving() -> Serving:
    """Starts a small server that misbehaves as told (see ``serve``)."""
    return serve


@pytest.fixture(scope="session")
def aligned(shared_data: Path) -> Path:
    """The folder of benchmarks whose corpus holds all supporting passages."""
    folder = shared_data / "qa"
    if not (folder / "aligned_hotpotqa" / "corpus.jsonl").is_file():
        pytest.skip(f"no aligned corpora in {folder} (set PAW_SHARED_DATA)")
    return folder


@pytest.fixture
def small_corpus(tmp_path: Path) -> Path:
    """Four passages in the wiki-18 form."""
    passages = [
        (
            "a",
            '"Lake Orvin"\nLake Orvin is a lake in the north of Tavra. It is fed by the river Sel.',
        ),
        ("b", '"Sel"\nThe Sel is a river. It rises in the hills of Tavra.'),
        ("c", '"Mira Dovan"\nMira Dovan was a painter. She painted Lake Orvin many times.'),
        ("d", "A line without a title."),
    ]
    path = tmp_path / "corpus.jsonl"
    lines = [json.dumps({"id": i, "contents": contents}) for i, contents in passages]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
