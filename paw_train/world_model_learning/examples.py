"""Transitions as examples of world-model learning: a context, and the observation that followed.

The layout is that of co-training and of ``paw eval-wm``: the observation is written where the environment
would put it, after the agent's action. One token ends it, the first of those that ask for the next answer,
so that a model can mark the end of its prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from paw_gym.prompts import PromptTemplate
from paw_gym.transition import Episode
from paw_train.evaluation import world_model
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.tokens import OBSERVATION, TokenRow


@dataclass(frozen=True, slots=True)
class Example:
    """One transition."""

    context: tuple[int, ...]
    """ids up to where the next observation begins, the action included"""
    target: tuple[int, ...]
    """ids of the next observation, and the token that ends it"""
    text: str
    """the next observation as a prompt shows it"""
    episode: int
    """number of its episode"""


def ending(chat: ChatFormat) -> int | None:
    """The token that follows a complete observation; ``None``: the chat format has none."""
    return chat.ask[0] if chat.ask else chat.end_id


def examples_of(
    episodes: Sequence[Episode],
    chat: ChatFormat,
    shown: Callable[[str], str],
    template: PromptTemplate,
    limit: int | None = None,
) -> list[Example]:
    """The transitions of some episodes; arguments as for ``paw_train.evaluation.world_model.predictions``."""
    end = ending(chat)
    found = []
    for prediction in world_model.predictions(episodes, chat, shown, template, limit):
        ids, places = prediction.row.ids, prediction.row.places(OBSERVATION)[0]
        target = (*(ids[place] for place in places), *([] if end is None else [end]))
        context = tuple(ids[: places[0]])
        found.append(Example(context, target, prediction.text, prediction.episode))
    return found


def unique(examples: Sequence[Example]) -> list[Example]:
    """The first of each (context, target), in order."""
    first: dict[tuple[tuple[int, ...], tuple[int, ...]], Example] = {}
    for example in examples:
        first.setdefault((example.context, example.target), example)
    return list(first.values())


def packed(examples: Sequence[Example]) -> list[TokenRow]:
    """Token rows in which each example is a transition; contexts that nest share a row.

    In a dialogue the example of an early step is the beginning of a later one's context: one row
    then holds both, and each token is computed once. Rows of other contexts stay apart. The world-model
    weights of an example's tokens sum to 1.
    """
    by_episode: dict[int, list[Example]] = {}
    for example in examples:
        by_episode.setdefault(example.episode, []).append(example)
    return [row for group in by_episode.values() for row in _nested(group)]


def _nested(examples: Sequence[Example]) -> Iterator[TokenRow]:
    left = sorted(examples, key=lambda e: len(e.context) + len(e.target), reverse=True)
    while left:
        row = TokenRow([*left[0].context, *left[0].target])
        row.advantage = [0.0] * len(row.ids)
        row.wm_weight = [0.0] * len(row.ids)
        inside = [e for e in left if _begins(row.ids, e)]
        left = [e for e in left if not _begins(row.ids, e)]
        for number, example in enumerate(reversed(inside)):
            start, length = len(example.context), len(example.target)
            for place in range(start, start + length):
                row.role[place], row.turn[place] = OBSERVATION, number
                row.wm_weight[place] += 1 / length
        yield row


def _begins(ids: Sequence[int], example: Example) -> bool:
    start, stop = len(example.context), len(example.context) + len(example.target)
    return tuple(ids[start:stop]) == example.target and tuple(ids[:start]) == example.context
