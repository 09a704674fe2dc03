"""What the three servers promise in their OpenAPI documents, and the one shape of their errors."""

from __future__ import annotations

import json
from http import HTTPStatus
from pathlib import Path

import pytest
from servers import in_thread

pytest.importorskip("fastapi", reason="fastapi is not installed: pip install '.[server]'")

from click.testing import CliRunner
from starlette.testclient import TestClient

import env_servers.gateway
import env_servers.retrieval
import env_servers.webshop
from env_servers.gate import Gate
from paw_gym.internals.http import HttpError, JsonClient
from paw_gym.retrieval import make_retriever

TOKEN = "a-token-of-the-tests"
ADDRESS = "http://127.0.0.1"
JSON = {"Content-Type": "application/json"}
SERVERS = ("gateway", "retriever", "webshop")
PASSAGES = [(f"p{i}", f'"Title {i}"\nword{i} text') for i in range(50)]


def made(server: str, token: str | None = TOKEN) -> Gate:
    if server == "gateway":
        offer = env_servers.gateway.Offer(frozenset({"paw_gym/SearchQA-v0"}))
        limits = env_servers.gateway.Limits(workers=1)
        tokens = [] if token is None else [token]
        return env_servers.gateway.create_app(offer, limits, tokens=tokens)
    if server == "retriever":
        return env_servers.retrieval.create_app(
            make_retriever("bm25", corpus=PASSAGES), token=token
        )
    return env_servers.webshop.create_app(token=token)


@pytest.mark.slow
@pytest.mark.parametrize("server", SERVERS)
def test_a_server_does_what_its_document_says(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All checks of Schemathesis, with a fixed seed: boundary values, random requests, and sequences."""
    cli = pytest.importorskip("schemathesis.cli", reason="pip install '.[dev]'")
    settings = Path(__file__).resolve().with_name("schemathesis.toml")
    monkeypatch.chdir(tmp_path)  # it keeps what failed, and would begin with that the next time
    with in_thread(made(server)) as url:
        ran = CliRunner().invoke(
            cli.schemathesis,
            ["--config-file", str(settings), "run", f"{url}/openapi.json", "--checks", "all",
             "--header", f"Authorization: Bearer {TOKEN}", "--seed", "1", "--max-examples", "5",
             "--generation-database", "none", "--no-color"],
        )  # fmt: skip
    assert ran.exit_code == 0, ran.output[-5000:]
    assert "Coverage" in ran.output and "Fuzzing" in ran.output


BODIES = {
    "gateway": ("/v1/calls", b'{"calls": [{"op": "no such"}]}'),
    "retriever": ("/retrieve", b'{"queries": 3}'),
    "webshop": ("/v1/calls", b'{"calls": 3}'),
}


@pytest.mark.parametrize("server", SERVERS)
def test_every_error_is_problem_details(server: str) -> None:
    path, malformed = BODIES[server]
    key = {"X-PaW-Client": "a key of the tests"}
    shown = {"Authorization": f"Bearer {TOKEN}"}
    web = TestClient(made(server), ADDRESS, headers={**JSON, **shown, **key})
    huge = b"x" * ((16 << 20) + 1)
    for status, answer in (
        (401, web.post(path, content=malformed, headers={"Authorization": "Bearer wrong"})),
        (404, web.get("/no/such/place")),
        (405, web.put(path)),
        (413, web.post(path, content=huge)),
        (422, web.post(path, content=malformed)),
        (422, web.post(path, content=b"{")),
        (422, web.post(path, content=b"[" * 100_000)),
    ):
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        content = answer.json()
        assert content["type"] == "about:blank" and content["status"] == status
        assert content["title"] == HTTPStatus(status).phrase
        assert content["detail"].endswith(".") or status == 422
        assert content["instance"] == ("/no/such/place" if status == 404 else path)
    mistakes = web.post(path, content=malformed).json()["errors"]
    assert mistakes[0]["pointer"].split("/")[1] in ("calls", "queries")
    assert "POST" in web.put(path).headers["allow"]


def test_what_fails_inside_is_no_page_of_text(monkeypatch: pytest.MonkeyPatch) -> None:
    app = made("retriever", None)
    with TestClient(app, ADDRESS, raise_server_exceptions=False) as web:
        monkeypatch.setattr("env_servers.retrieval.app._check", lambda *arguments: 1 / 0)
        answer = web.post("/retrieve", json={"queries": ["a"]})
    assert answer.status_code == 500 and answer.json()["detail"].startswith("The server failed")
    assert "ZeroDivision" not in answer.text


def test_clients_repeat_what_the_server_says() -> None:
    with in_thread(made("retriever")) as url:
        client = JsonClient(url, TOKEN)
        with pytest.raises(HttpError, match="top_k is 1 to 100, got 0") as refused:
            client.ask("POST", "/v1/search", {"queries": ["a"], "top_k": 0})
        assert refused.value.status == 422
        with pytest.raises(HttpError, match=r"status 404: There is nothing at this path\."):
            client.ask("GET", "/no/such/place")
        with pytest.raises(HttpError, match="A token is needed"):
            JsonClient(url).ask("GET", "/v1/info")


def test_whole_numbers_may_be_written_as_json_lets_them() -> None:
    with TestClient(made("retriever", None), ADDRESS, headers=JSON) as web:
        body = b'{"queries": ["text"], "topk": 2.0}'
        assert len(web.post("/retrieve", content=body).json()["result"][0]) == 2
        assert web.post("/retrieve", content=body.replace(b"2.0", b'"2"')).status_code == 422
        assert web.post("/retrieve", content=body.replace(b"2.0", b"2.5")).status_code == 422


def test_the_document_needs_the_token_and_says_so() -> None:
    web = TestClient(made("gateway"), ADDRESS)
    assert web.get("/openapi.json").status_code == 401
    with_token = web.get("/openapi.json", headers={"Authorization": f"Bearer {TOKEN}"}).json()
    assert with_token["paths"]["/v1/calls"]["post"]["security"] == [{"bearer": []}, {"basic": []}]
    without = json.loads(TestClient(made("gateway", None), ADDRESS).get("/openapi.json").text)
    assert without["paths"]["/v1/calls"]["post"]["security"] == [{"client": []}]
    assert "401" not in without["paths"]["/health"]["get"]["responses"]
