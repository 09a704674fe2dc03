from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paw_gym.envs.search_qa.scoring import normalize, score

# (prediction, golden answers, exact match, F1, contained): by hand from the definition of SQuAD
CASES = [
    ("the Beatles", ["Beatles"], True, 1.0, True),
    ("The The", ["the"], True, 1.0, False),  # articles alone: nothing is left on either side
    ("an apple a day", ["apple day"], True, 1.0, True),
    ("thermal", ["mal"], False, 0.0, True),  # an article inside a word stays
    ("U.S.A.", ["USA"], True, 1.0, True),
    ("twenty-one", ["twentyone"], True, 1.0, True),
    ("twenty-one", ["twenty one"], False, 0.0, False),
    ("don’t", ["dont"], False, 0.0, False),  # only ASCII punctuation goes
    ("  two\t\nspaces ", ["two spaces"], True, 1.0, True),
    ("café", ["cafe"], False, 0.0, False),
    ("ÉCOLE", ["école"], True, 1.0, True),
    ("İzmir", ["i̇zmir"], True, 1.0, True),
    ("New York City", ["New York", "NYC"], False, 0.8, True),
    ("york new", ["new york"], False, 1.0, False),
    ("new new york", ["new york"], False, 0.8, True),
    ("in 1999", ["1999", "the year 1999"], False, 2 / 3, True),
    ("", ["Paris"], False, 0.0, False),
    ("Paris", [""], False, 0.0, False),
    ("", [""], True, 1.0, True),
    ("...", ["!"], True, 1.0, False),
    ("the", ["Paris", "a"], True, 1.0, False),
    ("anything", [], False, 0.0, False),
]


@pytest.mark.parametrize(("said", "golden", "em", "overlap", "inside"), CASES)
def test_adversarial_cases(
    said: str, golden: list[str], em: bool, overlap: float, inside: bool
) -> None:
    scores = score(said, golden)
    assert scores.exact_match is em
    assert scores.f1 == pytest.approx(overlap)
    if normalize(said):
        assert scores.contains is inside


@given(st.text(max_size=40), st.lists(st.text(max_size=40), max_size=4))
def test_properties_of_the_scores(said: str, golden: list[str]) -> None:
    scores = score(said, golden)
    assert 0.0 <= scores.f1 <= 1.0
    assert not scores.exact_match or (scores.f1 == 1.0 and scores.contains)
    assert normalize(normalize(said)) == normalize(said) or "'" in said or '"' in said
    assert score(said, [*golden, said]).exact_match
    assert scores.f1 == max((score(said, [g]).f1 for g in golden), default=0.0)
    for one in golden:
        assert score(said, [one]).f1 == pytest.approx(score(one, [said]).f1)


def test_one_text_is_one_answer() -> None:
    assert score("Paris", "Paris") == score("Paris", ["Paris"])
    assert score("p", "Paris") == score("p", ["Paris"])
