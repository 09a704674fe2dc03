"""The observations that the environment prints."""

from __future__ import annotations

from collections.abc import Sequence

from paw_gym.retrieval.base import Passage


def information(passages: Sequence[Passage]) -> str:
    """The passages that were found, numbered, inside ``<information>`` tags."""
    if not passages:
        return _inside("No passage matches this query.")
    return _inside(
        "\n".join(
            f"Doc {number} (Title: {p.title}) {p.text}" if p.title else f"Doc {number} {p.text}"
            for number, p in enumerate(passages, start=1)
        )
    )


def _inside(text: str) -> str:
    return f"<information>\n{text}\n</information>"


UNREACHABLE = _inside("The search engine did not answer. You may search again or answer.")
"""after a search that failed"""
RECORDED = "The answer is recorded."
"""after an answer: it does not show whether the answer is right"""


def refusal(reason: str) -> str:
    """After an action that is neither a search nor an answer."""
    return (
        f"This is no valid action: {reason}. Write <search>your query</search> to search, or "
        "<answer>your answer</answer> to answer."
    )
