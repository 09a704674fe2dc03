"""Which anchor states count as the same state, for GiGPO's step groups."""

from collections.abc import Sequence
from difflib import SequenceMatcher


def cluster_anchors(
    anchors: Sequence[str], similarity: float | None = None, autojunk: bool = False
) -> list[int]:
    """Number the anchor states so that equal (or similar) ones share a number.

    Args:
        anchors: [S] raw observations of one rollout group.
        similarity: None for exact equality; otherwise a threshold in (0, 1]: a text joins the first
            cluster whose *first* member has a difflib ratio >= threshold with it, and opens a new
            cluster when there is none. Similarity is not transitive, so which texts meet can depend
            on their order.
        autojunk: see `is_similar`.

    Returns:
        [S] cluster numbers 0, 1, ... in order of first appearance.

    Raises:
        ValueError: `similarity` is outside (0, 1].
    """
    if similarity is not None and not 0.0 < similarity <= 1.0:
        raise ValueError(f"`similarity` must be None or in (0, 1], got {similarity}.")
    known: dict[str, int] = {}
    representatives: list[str] = []
    for text in anchors:
        if text in known:
            continue
        match = None
        if similarity is not None:
            match = _first_similar(text, representatives, similarity, autojunk)
        if match is None:
            match = len(representatives)
            representatives.append(text)
        known[text] = match
    return [known[text] for text in anchors]


def is_similar(text: str, other: str, threshold: float, autojunk: bool = False) -> bool:
    """Whether difflib's ratio of two texts reaches `threshold`, cheap bounds first.

    `autojunk` is off by default: with it, which is difflib's own default and that of GiGPO's published
    code, every frequent character of a text of 200 characters or more is ignored, and two search pages
    that differ by one character score near 0.
    """
    total = len(text) + len(other)
    if text == other:
        return True
    if 2 * min(len(text), len(other)) < threshold * total:
        return False
    if 2 * _longest_common_subsequence(text, other) < threshold * total:
        return False
    return SequenceMatcher(None, text, other, autojunk=autojunk).ratio() >= threshold


def _first_similar(
    text: str, representatives: list[str], threshold: float, autojunk: bool
) -> int | None:
    for number, representative in enumerate(representatives):
        if is_similar(text, representative, threshold, autojunk):
            return number
    return None


def _longest_common_subsequence(text: str, other: str) -> int:
    """Length of the longest common subsequence: what difflib matches can never exceed.

    Bit-parallel (Hyyrö 2004): one big-integer step per character, some hundred times faster than
    the ratio itself on texts of a few thousand characters.
    """
    positions: dict[str, int] = {}
    for place, character in enumerate(text):
        positions[character] = positions.get(character, 0) | (1 << place)
    full = (1 << len(text)) - 1
    row = full
    for character in other:
        matched = row & positions.get(character, 0)
        row = ((row + matched) | (row - matched)) & full
    return len(text) - row.bit_count()
