"""BM25: the terms, the formula, the index, and Lucene's ranking."""

from __future__ import annotations

import io
import json
import math
import pickle
import re
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paw_gym.internals.constructors import need
from paw_gym.retrieval import BM25Retriever, Corpus, IndexMismatchError, lucene, make_retriever
from paw_gym.retrieval.analysis import _CLASS_WORD, _CLASSES, _LOWER, analyze, stem, words
from paw_gym.retrieval.bm25 import BM25Scorer
from paw_gym.retrieval.bm25_index import build_index, decoded_lengths, encode_lengths
from paw_gym.retrieval.index_files import DamagedIndexError

# what DefaultEnglishAnalyzer of Anserini 1.7.1 gives
ANSERINI = [
    (
        "The quick-brown fox's jumps; wolf:hound U.S.A. 3.14 1,000 a_b __ _x x_ O'Neil don’t",
        "quick brown fox jump wolf:hound u.s.a 3.14 1,000 a_b _x x_ o'neil don’t",
    ),
    (
        "foo@bar.com C++ café naïve Straße 東京タワー ひら 한국어 абв 100m a1b2 1:2 a.b.c 12.a ½ Ⅳ ² 🙂",
        "foo bar.com c café naïv straße 東 京 タワー ひ ら 한국어 абв 100m a1b2 1 2 a.b.c 12 ⅳ 🙂",
    ),
    (
        "Fitzgerald's possibly analogy analogies nobly probability ties is as us İstanbul",
        "fitzgerald possibl analog analog nobli probabl ti us istanbul",
    ),
    ("", ""),
    ("the of and", ""),
]


@pytest.mark.parametrize(("text", "terms"), ANSERINI)
def test_terms_are_those_of_anserini(text: str, terms: str) -> None:
    assert analyze(text) == terms.split()


def test_stems_of_porters_paper() -> None:
    pairs = (
        "caresses caress|ponies poni|cats cat|feed feed|agreed agre|plastered plaster|bled bled|"
        "motoring motor|sing sing|conflated conflat|troubled troubl|sized size|hopping hop|"
        "tanned tan|falling fall|hissing hiss|fizzed fizz|failing fail|filing file|happy happi|"
        "sky sky|relational relat|conditional condit|rational ration|valenci valenc|"
        "digitizer digit|radicalli radic|differentli differ|vileli vile|analogousli analog|"
        "vietnamization vietnam|predication predic|operator oper|feudalism feudal|"
        "decisiveness decis|hopefulness hope|callousness callous|formaliti formal|"
        "sensitiviti sensit|sensibiliti sensibl|triplicate triplic|formative form|formalize formal|"
        "electriciti electr|electrical electr|hopeful hope|goodness good|revival reviv|"
        "allowance allow|inference infer|airliner airlin|gyroscopic gyroscop|adjustable adjust|"
        "defensible defens|irritant irrit|replacement replac|adjustment adjust|dependent depend|"
        "adoption adopt|homologou homolog|communism commun|activate activ|angulariti angular|"
        "homologous homolog|effective effect|bowdlerize bowdler|probate probat|rate rate|"
        "cease ceas|controll control|roll roll"
    )
    for pair in pairs.split("|"):
        word, expected = pair.split()
        assert stem(word) == expected, word


@given(st.text(alphabet="aZ19_.:,;' -\"", max_size=30))
def test_the_fast_path_for_ascii_gives_the_same_words(text: str) -> None:
    lower = text.translate(_LOWER)
    slow = [lower[m.start() : m.end()] for m in _CLASS_WORD.finditer(lower.translate(_CLASSES))]
    assert words(text) == slow


def test_lengths_are_coded_as_lucene_does() -> None:
    codes = decoded_lengths()
    assert codes[:42].tolist() == [*range(41), 42]
    assert codes[255] == 2013265944  # SmallFloat.byte4ToInt(255)
    assert np.all(np.diff(codes) > 0)
    coded = codes[encode_lengths(np.array([0, 39, 41, 43, 100, 10**9]))]
    assert coded.tolist() == [0, 39, 40, 42, 96, 939524120]


def plain_bm25(texts: list[str], query: str, k1: float, b: float) -> list[float]:
    """BM25 from its formula; it shares the analyzer and the length code alone."""
    documents = [Counter(analyze(text)) for text in texts]
    average = sum(sum(d.values()) for d in documents) / len(texts)
    scores = []
    for document in documents:
        length = max(x for x in decoded_lengths().tolist() if x <= sum(document.values()))
        score = 0.0
        for term in analyze(query):
            df = sum(term in other for other in documents)
            if document[term]:
                idf = math.log(1 + (len(texts) - df + 0.5) / (df + 0.5))
                tf = document[term]
                score += idf * tf / (tf + k1 * (1 - b + b * length / average))
        scores.append(score)
    return scores


WORDS = st.lists(st.sampled_from(["red", "green", "blue", "lake", "mount", "the"]), max_size=60)


@given(
    st.lists(WORDS.map(" ".join), min_size=1, max_size=12),
    WORDS.map(" ".join),
    st.sampled_from([(0.9, 0.4), (1.2, 0.75), (0.0, 0.0), (2.0, 1.0)]),
)
def test_scores_are_those_of_the_formula(
    texts: list[str], query: str, settings: tuple[float, float]
) -> None:
    texts = [text or "empty" for text in texts]
    k1, b = settings
    retriever = BM25Retriever([(str(i), text) for i, text in enumerate(texts)], k1=k1, b=b)
    expected = plain_bm25(texts, query, k1, b)
    hits = retriever.search([query], top_k=len(texts))[0]
    assert len(hits) == sum(score > 0 for score in expected)
    for hit in hits:
        assert hit.score == pytest.approx(expected[int(hit.id)], rel=1e-5)
    keys = [(-hit.score, int(hit.id)) for hit in hits]
    assert keys == sorted(keys)


def test_compiled_loops_rank_like_numpy() -> None:
    pytest.importorskip("numba", reason="numba is not installed: pip install '.[retrieval]'")
    rng = np.random.default_rng(3)
    size, vocabulary = 70_000, 300  # more than two blocks of passages
    lengths = rng.integers(1, 6, size)
    picks = np.minimum(rng.zipf(1.4, int(lengths.sum())) - 1, vocabulary - 1)
    ends = np.cumsum(lengths)
    index = build_index(
        Corpus.open(
            (str(e), " ".join(f"w{w}" for w in picks[e - n : e]))
            for e, n in zip(ends, lengths, strict=True)
        )
    )
    plain, fast = BM25Scorer(index, compiled=False), BM25Scorer(index, compiled=True)
    for turn in range(40):
        query = [f"w{w}" for w in rng.integers(0, vocabulary, rng.integers(1, 8))]
        if turn % 2:  # frequent terms, some twice, beside rare ones
            query += [f"w{w}" for w in rng.integers(0, 8, 4)]
        for top_k in (1, 10, 500):
            left, right = plain.rank(query, top_k), fast.rank(query, top_k)
            assert left[0].tolist() == right[0].tolist()
            assert left[1].tolist() == right[1].tolist()
    assert len(fast.rank(["unknown"], 5)[0]) == 0


def test_shards_workers_and_resume_give_the_same_index(aligned: Path, tmp_path: Path) -> None:
    path, folder = aligned / "aligned_hotpotqa" / "corpus.jsonl", tmp_path / "i"
    corpus = Corpus.open(path)
    whole = build_index(corpus)
    built = build_index(corpus, tmp_path / "w", shard_size=500, workers=2)

    def stop_at_half(what: str, done: int, total: int | None) -> None:
        if done >= 500:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        build_index(corpus, folder, shard_size=300, progress=stop_at_half)
    with pytest.raises(FileNotFoundError, match="no finished index"):
        make_retriever("bm25", corpus=path, index=folder)
    (shard, *_) = shutil.copytree(folder, tmp_path / "cut").rglob("passages.npy")
    shard.write_bytes(shard.read_bytes()[:-9])
    with pytest.raises(DamagedIndexError, match=shard.name):
        build_index(corpus, tmp_path / "cut", shard_size=300)
    began_at: list[int] = []
    build_index(corpus, folder, 300, progress=lambda what, done, total: began_at.append(done))
    assert began_at[0] == 600  # two shards were there
    stored = make_retriever("bm25", corpus=path, index=folder)
    assert isinstance(stored, BM25Retriever)
    names = ("terms", "starts", "passages", "counts", "lengths")
    for index in (built, stored.index):
        for name in names:
            assert np.array_equal(getattr(index, name), getattr(whole, name)), name
        assert index.total_terms == whole.total_terms
    assert {p.name for p in folder.iterdir()} == {"index.json", *(f"{name}.npy" for name in names)}


def test_an_index_of_another_corpus_is_refused(small_corpus: Path, tmp_path: Path) -> None:
    build_index(Corpus.open(small_corpus), tmp_path / "i")
    changed = tmp_path / "changed.jsonl"
    changed.write_text(small_corpus.read_text(encoding="utf-8").replace("hills", "woods"))
    with pytest.raises(IndexMismatchError, match="another corpus"):
        make_retriever("bm25", corpus=changed, index=tmp_path / "i")
    with pytest.raises(IndexMismatchError, match="another corpus"):
        build_index(Corpus.open(changed), tmp_path / "i")
    meta = json.loads((tmp_path / "i" / "index.json").read_text())
    (tmp_path / "i" / "index.json").write_text(json.dumps({**meta, "format": "paw-bm25-0"}))
    with pytest.raises(IndexMismatchError, match="form"):
        make_retriever("bm25", corpus=small_corpus, index=tmp_path / "i")


def questions(folder: Path) -> list[str]:
    lines = (folder / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["question"] for line in lines]


def test_threads_and_copies_find_the_same(aligned: Path) -> None:
    folder = aligned / "aligned_hotpotqa"
    retriever = BM25Retriever(folder / "corpus.jsonl")
    queries = questions(folder)[:40]
    alone = [retriever.search([query], 5)[0] for query in queries]
    assert retriever.search(queries, 5) == alone
    assert pickle.loads(pickle.dumps(retriever)).search(queries, 5) == alone
    with ThreadPoolExecutor(4) as threads:
        found = threads.map(lambda query: retriever.search([query], 5)[0], queries * 4)
        assert list(found) == alone * 4


def test_bad_arguments_are_named(small_corpus: Path) -> None:
    retriever = make_retriever("bm25", corpus=small_corpus)
    for name, settings, says in (
        ("bm2", {"corpus": small_corpus}, "bm25"),
        ("bm25", {"korpus": small_corpus}, "no setting 'korpus'. Did you mean 'corpus'"),
        ("bm25", {}, "needs corpus"),
        ("bm25", {"corpus": small_corpus, "b": 2}, "k1"),  # now, not at the first search
    ):
        with pytest.raises(ValueError, match=says):
            make_retriever(name, **settings)
    with pytest.raises(ValueError, match="top_k"):
        retriever.search(["x"], top_k=0)
    with pytest.raises(TypeError, match=r"search\(\['who'\]\)"):  # not a list of letters
        retriever.search("who")
    with pytest.raises(ValueError, match="shard_size"):
        build_index(Corpus.open(small_corpus), shard_size=0)
    assert make_retriever(retriever) is retriever
    assert retriever.search(["", ""], top_k=2) == [[], []] and retriever.search([]) == []


@pytest.mark.parametrize("name", ["terms", "starts", "passages", "counts", "lengths"])
def test_an_index_that_was_copied_in_part_is_named(
    name: str, small_corpus: Path, tmp_path: Path
) -> None:
    folder, file = tmp_path / "i", tmp_path / "i" / f"{name}.npy"
    build_index(Corpus.open(small_corpus), folder)
    whole = file.read_bytes()
    for damaged in (whole[:-1], b"", None):
        file.unlink() if damaged is None else file.write_bytes(damaged)
        with pytest.raises(DamagedIndexError, match=rf"{name}\.npy is missing or damaged"):
            make_retriever("bm25", corpus=small_corpus, index=folder)
    np.save(file, np.load(io.BytesIO(whole))[:-1])  # of an index with one entry less
    with pytest.raises(DamagedIndexError, match="entries, expected"):
        make_retriever("bm25", corpus=small_corpus, index=folder)
    (folder / "index.json").write_text('{"format": "other"}')
    with pytest.raises(DamagedIndexError, match=r"index\.json is missing or damaged"):
        make_retriever("bm25", corpus=small_corpus, index=folder)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is always full")
def test_a_full_disk_is_named_and_the_build_goes_on(small_corpus: Path, tmp_path: Path) -> None:
    corpus, folder = Corpus.open(small_corpus), tmp_path / "i"
    folder.mkdir()
    (folder / "passages.npy").symlink_to("/dev/full")
    with pytest.raises(OSError, match=f"No space left at {folder}: free some"):
        build_index(corpus, folder)
    (folder / "passages.npy").unlink()
    assert build_index(corpus, folder).size == len(corpus)


LUCENE = all(find_spec(name) for name in ("pyserini", "jnius"))
needs_lucene = pytest.mark.skipif(
    not LUCENE, reason="pyserini is not installed: pip install '.[lucene]'"
)


@needs_lucene
@pytest.mark.parametrize("name", ["aligned_hotpotqa", "aligned_musique"])
def test_bm25_ranks_like_lucene(aligned: Path, name: str) -> None:
    corpus = aligned / name / "corpus.jsonl"
    lucene, ours = make_retriever("lucene", corpus=corpus), make_retriever("bm25", corpus=corpus)
    queries = questions(aligned / name)
    shared = total = 0
    for theirs, mine in zip(lucene.search(queries, 10), ours.search(queries, 10), strict=True):
        shared += len({hit.id for hit in theirs} & {hit.id for hit in mine})
        total += len(theirs)
        scores = {hit.id: hit.score for hit in theirs}
        for hit in mine:
            assert scores.get(hit.id, hit.score) == pytest.approx(hit.score, abs=1e-4)
    assert shared / total >= 0.99


def test_a_folder_that_is_there_is_filled_kept_or_refused(
    small_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Indexer:
        @staticmethod
        def main(arguments: list[str]) -> None:
            Path(arguments[arguments.index("-index") + 1], "segments").write_text("made")

    monkeypatch.setattr(lucene, "java_class", lambda name: Indexer)
    (tmp_path / "index").mkdir()
    for _ in range(2):  # made, and there already
        lucene.build_lucene_index(Corpus.open(small_corpus), tmp_path / "index")
        assert (tmp_path / "index" / "segments").read_text() == "made"
    with pytest.raises(IndexMismatchError, match="was built with another corpus"):
        lucene.build_lucene_index(Corpus.open([("a", "b")]), tmp_path / "index")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes").write_text("of something else")
    with pytest.raises(IndexMismatchError, match="not an index that this program built"):
        make_retriever("lucene", corpus=small_corpus, index=tmp_path / "other")


@needs_lucene
def test_lucenes_index_is_found_again(small_corpus: Path, tmp_path: Path) -> None:
    for _ in range(2):
        found = make_retriever("lucene", corpus=small_corpus, index=tmp_path / "i")
        assert found.search(["painter"], 1)[0][0].id == "c"


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
