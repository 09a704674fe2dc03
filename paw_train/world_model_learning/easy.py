"""Leaves out most transitions that the start policy predicts already, or that have the same observation.

Their predictions are all right, so a group of them has no advantage, and cross-entropy on them teaches
nothing new. A few stay, so that they are not forgotten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from paw_train.settings.world_model_learning import EasyFilterSettings
from paw_train.world_model_learning.examples import Example
from paw_train.world_model_learning.predicting import Guess
from paw_train.world_model_learning.similarity import Similarity


def solved_shares(
    guesses: Sequence[Sequence[Guess]], examples: Sequence[Example], similarity: Similarity
) -> np.ndarray:
    """[N] share of each example's predictions that are right."""
    each = len(guesses[0])
    flat = [guess.text for group in guesses for guess in group]
    truth = [example.text for example in examples for _ in range(each)]
    right: np.ndarray = similarity.right(similarity(flat, truth))
    shares: np.ndarray = right.reshape(len(examples), each).mean(1)
    return shares


def kept(shares: np.ndarray, settings: EasyFilterSettings, rng: np.random.Generator) -> np.ndarray:
    """[N] bool: the hard ones, and each easy one with probability ``settings.keep``.

    Args:
        shares: [N] of ``solved_shares``.
        settings: which ones are easy.
        rng: gives one number for each of the N.
    """
    retained = rng.random(len(shares)) < settings.keep
    result: np.ndarray = (shares < settings.solved) | retained
    return result


def balanced(texts: Sequence[str], max_share: float, rng: np.random.Generator) -> np.ndarray:
    """[N] bool: as many of each text, at random, as keep its share of the kept ones at ``max_share``.

    Where there are too few different texts for that share, as many of each as of the rarest.
    """
    counts = Counter(texts)
    largest = max(counts.values(), default=0)

    def fits(most: int) -> bool:
        kept = [min(count, most) for count in counts.values()]
        return max(kept) <= max_share * sum(kept)

    most = next((c for c in range(largest, 0, -1) if fits(c)), min(counts.values(), default=0))
    result = np.zeros(len(texts), bool)
    left = dict.fromkeys(counts, most)
    for i in rng.permutation(len(texts)):
        if left[texts[i]]:
            left[texts[i]] -= 1
            result[i] = True
    return result
