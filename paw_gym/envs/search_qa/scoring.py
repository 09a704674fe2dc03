"""Scores of a short answer: exact match and F1 as SQuAD defines them, and containment.

Rajpurkar et al. 2016 (SQuAD 1.1) for the normalisation, exact match and F1; the treatment of empty
answers is that of SQuAD 2.0. The seven benchmarks of this environment are all scored this way.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(text: str) -> str:
    """Lower case, without ASCII punctuation, English articles, and superfluous white space.

    >>> normalize("The  Who's *An*swer!")
    'whos answer'
    """
    text = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def _normalized(golden_answers: Iterable[str]) -> list[str]:
    """A single text is one answer, not one for each letter."""
    listed = [golden_answers] if isinstance(golden_answers, str) else golden_answers
    return [normalize(answer) for answer in listed]


def exact_match(prediction: str, golden_answers: Iterable[str]) -> bool:
    """True if the prediction equals one of the golden answers after normalisation."""
    return normalize(prediction) in _normalized(golden_answers)


def f1(prediction: str, golden_answers: Iterable[str]) -> float:
    """The best harmonic mean of precision and recall of words over the golden answers, in [0, 1]."""
    said = normalize(prediction).split()
    return max((_f1(said, answer.split()) for answer in _normalized(golden_answers)), default=0.0)


def _f1(said: list[str], golden: list[str]) -> float:
    if not said or not golden:
        return float(said == golden)
    shared = sum((Counter(said) & Counter(golden)).values())
    if shared == 0:
        return 0.0
    precision, recall = shared / len(said), shared / len(golden)
    return 2 * precision * recall / (precision + recall)


def contains(prediction: str, golden_answers: Iterable[str]) -> bool:
    """True if a golden answer occurs in the prediction after normalisation.

    A golden answer of which nothing is left ("The") occurs only in an empty prediction.
    """
    said = normalize(prediction)
    golden = _normalized(golden_answers)
    return any(answer in said if answer else not said for answer in golden)


@dataclass(frozen=True, slots=True)
class Scores:
    """All scores of one answer."""

    exact_match: bool = False
    f1: float = 0.0
    contains: bool = False


def score(prediction: str, golden_answers: Iterable[str]) -> Scores:
    golden = golden_answers if isinstance(golden_answers, str) else list(golden_answers)
    return Scores(
        exact_match(prediction, golden), f1(prediction, golden), contains(prediction, golden)
    )
