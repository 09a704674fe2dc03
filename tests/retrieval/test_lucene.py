from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from paw_gym.retrieval import IndexMismatchError, make_retriever
from paw_gym.retrieval.base import need

LUCENE = all(find_spec(name) for name in ("pyserini", "jnius"))
needs_lucene = pytest.mark.skipif(
    not LUCENE, reason="pyserini is not installed: pip install '.[lucene]'"
)


@needs_lucene
@pytest.mark.parametrize("name", ["aligned_hotpotqa", "aligned_musique"])
def test_bm25_ranks_like_lucene(aligned: Path, name: str) -> None:
    corpus = aligned / name / "corpus.jsonl"
    lucene, ours = make_retriever("lucene", corpus=corpus), make_retriever("bm25", corpus=corpus)
    lines = (aligned / name / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    queries = [json.loads(line)["question"] for line in lines]
    shared = total = 0
    for theirs, mine in zip(lucene.search(queries, 10), ours.search(queries, 10), strict=True):
        shared += len({hit.id for hit in theirs} & {hit.id for hit in mine})
        total += len(theirs)
        scores = {hit.id: hit.score for hit in theirs}
        for hit in mine:
            assert scores.get(hit.id, hit.score) == pytest.approx(hit.score, abs=1e-4)
    assert shared / total >= 0.99


@needs_lucene
def test_an_index_of_another_corpus_is_refused(small_corpus: Path, tmp_path: Path) -> None:
    make_retriever("lucene", corpus=small_corpus, index=tmp_path / "i")
    again = make_retriever("lucene", corpus=small_corpus, index=tmp_path / "i")
    assert again.search(["painter"], 1)[0][0].id == "c"
    small_corpus.write_text(small_corpus.read_text().replace("hills", "woods"))
    with pytest.raises(IndexMismatchError, match="another corpus"):
        make_retriever("lucene", corpus=small_corpus, index=tmp_path / "i")


def test_a_folder_that_is_no_index_is_refused(small_corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "i").mkdir()
    with pytest.raises(IndexMismatchError, match="not an index that this program built"):
        make_retriever("lucene", corpus=small_corpus, index=tmp_path / "i")


@pytest.mark.skipif(LUCENE, reason="pyserini is installed")
def test_what_is_missing_is_told(small_corpus: Path) -> None:
    with pytest.raises(ImportError, match=re.escape("pip install '.[lucene]'")):
        make_retriever("lucene", corpus=small_corpus)


def test_a_missing_package_names_its_extra() -> None:
    with pytest.raises(ImportError, match=re.escape("pip install '.[dense]'")):
        need("no_such_module", "dense", "This")


@needs_lucene
def test_any_query_is_answered(small_corpus: Path) -> None:
    """Lucene itself refuses more than 1,024 different terms, and Java half a surrogate pair."""
    lucene = make_retriever("lucene", corpus=small_corpus)
    terms = " ".join(f"nowhere{number}" for number in range(2000))
    alone = lucene.search(["hills"])[0]
    for query in (f"{terms} hills", "\ud83d hills"):
        assert [hit.id for hit in lucene.search([query])[0]] == [hit.id for hit in alone]
