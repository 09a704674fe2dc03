"""A token by default: who started a server uses it without one more word, and nobody else does."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from servers import status_of

from paw_gym import make_remote
from paw_gym.internals.files import kept, kept_path, own_token
from paw_gym.remote import ServerUnavailableError, SessionLostError
from paw_gym.retrieval import RetrieverError, make_retriever
from paw_train.cli.serve import settings_of

SHOP = "paw_gym/WebShop-v0"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_clients_of_the_same_user_find_the_token(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PAW_SERVE_TOKEN", raising=False)
    monkeypatch.setenv("PAW_CACHE_DIR", str(tmp_path / "mine"))
    server = serve("webshop", "--num-products", "20", makes_token=True)
    assert status_of(f"{server.url}/openapi.json") == 401
    path = kept_path(server.url)
    assert mode(path) == 0o600 and mode(path.parent) == 0o700
    env = make_remote(server.url, SHOP)
    env.reset(seed=0)
    with monkeypatch.context() as other:
        other.setenv("PAW_CACHE_DIR", str(tmp_path / "theirs"))
        with pytest.raises(ServerUnavailableError, match="token"):
            make_remote(f"{server.url}/", SHOP, timeout=60)
    old = path.read_text()
    _, said = server.stop()
    assert f"{server.url}/?token={old} " in said and f"Authorization: Bearer {old}" in said
    assert not path.exists()
    server.start()  # with another token, which the same client finds
    assert path.read_text() != old
    with pytest.raises(SessionLostError):
        env.step("search[mug]")
    env.reset(seed=0)
    env.close()


def test_a_retriever_is_found_as_well(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAW_CACHE_DIR", str(tmp_path))
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "a", "contents": "a river"}\n')
    server = serve("retriever", "--corpus", str(corpus), makes_token=True)
    assert make_retriever(server.url).search(["river"], 1)[0][0].id == "a"
    with pytest.raises(RetrieverError, match="token"):
        make_retriever(server.url, token="wrong").search(["river"], 1)
    assert status_of(f"{server.url}/v1/info") == 401


def test_a_token_is_for_one_address_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAW_CACHE_DIR", str(tmp_path))
    with kept(kept_path("http://127.0.0.1:8000"), "secret"):
        assert own_token("http://127.0.0.1:8000/v1") == "secret"
        for other in ("http://localhost:8000", "http://127.0.0.1:8001", "http://127.0.0.2:8000"):
            assert own_token(other) is None
    assert own_token("http://127.0.0.1:8000") is None


def test_which_token_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAW_SERVE_TOKEN", raising=False)
    made = [settings_of("0.0.0.0", 0, None, False) for _ in range(2)]
    assert made[0].is_new and made[0].token != made[1].token and len(made[0].token or "") == 32
    chosen = settings_of("127.0.0.1", 0, "mine", False)
    assert chosen.token == "mine" and not chosen.is_new
    monkeypatch.setenv("PAW_SERVE_TOKEN", "of the environment")
    given = settings_of("127.0.0.1", 0, None, False)
    assert given.token == "of the environment" and not given.is_new
    assert settings_of("127.0.0.1", 0, None, True).token is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "service", [["webshop", "--num-products", "20"], ["gateway", "--workers", "1"]]
)
def test_a_log_holds_no_token(serve: Any, service: list[str]) -> None:
    token = "hunter2-of-the-server"
    server = serve(*service, "--verbose", makes_token=True, PAW_SERVE_TOKEN=token)
    right = {"Authorization": f"Bearer {token}"}
    assert status_of(f"{server.url}/openapi.json", **right) == 200
    for wrong in ({}, {"Authorization": "Bearer hunter2-guessed"}):
        assert status_of(f"{server.url}/openapi.json", **wrong) == 401
    assert status_of(f"{server.url}/no/such/place", **right) in (404, 405)
    _, said = server.stop()
    assert "Finished server process" in said and "/no/such/place" in said, "it does log"
    assert "hunter2" not in said
