from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from paw_gym.retrieval import Corpus, CorpusError, Passage, corpus


def test_passages_are_read_in_place(small_corpus: Path) -> None:
    passages = Corpus.open(small_corpus)
    assert len(passages) == 4
    assert [p.id for p in passages] == ["a", "b", "c", "d"]
    assert (passages[1].title, passages[-1].title) == ("Sel", "")
    assert passages[2].text.startswith("Mira Dovan was")
    assert passages[3].text == "A line without a title."
    assert [p.id for p in passages[1:3]] == ["b", "c"]
    assert pickle.loads(pickle.dumps(passages))[0] == passages[0]
    with pytest.raises(IndexError):
        passages[4]


def test_other_forms_of_a_passage() -> None:
    forms = [
        {"id": 7, "title": "Sel", "text": "A river."},
        ("8", "Nothing else."),
        Passage("9", '"Orvin"\nA lake.'),
        {"id": "10", "text": "No title."},
    ]
    passages = list(Corpus.open(forms))
    assert passages[0] == Passage("7", '"Sel"\nA river.')
    assert [p.title for p in passages] == ["Sel", "", "Orvin", ""]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{not json", "not valid JSON"),
        ('{"contents": "x"}', "'id' is missing"),
        ('{"id": "x"}', "'contents' .* is missing"),
        ('{"id": "x", "contents": "  "}', "'contents' .* is missing, empty"),
        ('{"id": ["x"], "contents": "y"}', "neither a string nor a whole number"),
        ('{"id": true, "contents": "y"}', "neither a string nor a whole number"),
        ('{"id": "x", "title": ["A"], "text": "y"}', "title is neither a string nor"),
        ('{"id": "x", "title": NaN, "text": "y"}', "title is neither a string nor"),
        ("[1, 2, 3]", "a passage is an object"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_a_malformed_line_is_named(small_corpus: Path, line: str, says: str) -> None:
    lines = small_corpus.read_text(encoding="utf-8").splitlines()
    small_corpus.write_text("\n".join([*lines[:2], line, "", *lines[2:]]), encoding="utf-8")
    with pytest.raises(CorpusError, match=f"line 3: .*{says}"):
        Corpus.open(small_corpus)


def test_a_scan_is_remembered_until_the_file_changes(
    small_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAW_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(corpus, "_CACHED_FROM", 0)
    first = Corpus.open(small_corpus)
    with monkeypatch.context() as patch:
        patch.setattr(corpus, "_scan", lambda path: pytest.fail("scanned again"))
        again = Corpus.open(small_corpus)
    assert list(again) == list(first) and again.fingerprint == first.fingerprint
    small_corpus.write_text(small_corpus.read_text().replace("hills", "woods"))
    os.utime(small_corpus, ns=(1, 1))
    changed = Corpus.open(small_corpus)
    assert "woods" in changed[1].contents
    assert changed.fingerprint != first.fingerprint


def test_a_file_that_changes_while_it_is_open_is_not_read_on(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": "1", "contents": "bees make honey"}\n')
    passages, copied = Corpus.open(path), pickle.dumps(Corpus.open(path))
    assert passages[0].contents == "bees make honey"
    path.write_text('{"id": "1", "contents": "cars make noise"}\n')  # as long as before
    os.utime(path, ns=(1, 1))
    with pytest.raises(CorpusError, match="was changed while it was in use"):
        passages[0]
    with pytest.raises(CorpusError, match="was changed"):
        pickle.loads(copied)[0]
    assert Corpus.open(path)[0].contents == "cars make noise"
