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


@dataclass(frozen=True, slots=True)
class Scores:
    """All scores of one answer, after normalisation."""

    exact_match: bool = False
    """it equals a golden answer"""
    f1: float = 0.0
    """the best harmonic mean of precision and recall of words over the golden answers, in [0, 1]"""
    contains: bool = False
    """a golden answer occurs in it; one of which nothing is left ("The") only in an empty answer"""


def score(prediction: str, golden_answers: Iterable[str]) -> Scores:
    """Scores an answer; a single text is one golden answer, not one for each letter."""
    listed = [golden_answers] if isinstance(golden_answers, str) else golden_answers
    said, golden = normalize(prediction), [normalize(answer) for answer in listed]
    return Scores(
        said in golden,
        max((_f1(said.split(), answer.split()) for answer in golden), default=0.0),
        any(answer in said if answer else not said for answer in golden),
    )


def _f1(said: list[str], golden: list[str]) -> float:
    if not said or not golden:
        return float(said == golden)
    shared = sum((Counter(said) & Counter(golden)).values())
    if shared == 0:
        return 0.0
    precision, recall = shared / len(said), shared / len(golden)
    return 2 * precision * recall / (precision + recall)
