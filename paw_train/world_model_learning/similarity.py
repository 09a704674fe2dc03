"""How similar two observations are, as RWML rewards it: cosine in a frozen embedding space."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paw_train.evaluation.world_model import Embed


class Similarity:
    """The similarity of predicted and realised observations, and the reward made from it.

    Args:
        embed: texts -> [N, D] vectors of length 1.
        threshold: largest cosine distance at which a prediction is right.
        binary: whether the reward is 1 or 0 by the threshold, or the similarity itself.
    """

    def __init__(self, embed: Embed, threshold: float = 0.2, binary: bool = True) -> None:
        self.embed, self.threshold, self.binary = embed, threshold, binary

    def __call__(self, predicted: Sequence[str], realised: Sequence[str]) -> np.ndarray:
        """[N] cosines in [-1, 1], to four digits; a blank prediction has -1, whatever its embedding."""
        vectors = self.embed([*predicted, *realised])
        ours, theirs = vectors[: len(predicted)], vectors[len(predicted) :]
        # an embedding's last digits depend on its batch, and a resumed run has other batches: four
        # digits suffice for a reward, and are equal
        cosines = np.clip((ours * theirs).sum(1).round(4), -1.0, 1.0)
        blank = np.array([not text.strip() for text in predicted], bool)
        return np.where(blank, -1.0, cosines)

    def right(self, cosines: np.ndarray) -> np.ndarray:
        """[N] bool: within the threshold."""
        return (1.0 - cosines).round(4) <= self.threshold

    def rewards(self, cosines: np.ndarray) -> np.ndarray:
        """[N] float64: 1 or 0 (``binary``), or the cosines."""
        return self.right(cosines).astype(np.float64) if self.binary else cosines
