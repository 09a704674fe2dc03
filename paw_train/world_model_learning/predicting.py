"""Transitions as examples of world-model learning, sampled predictions of their observations, and filters.

The layout of an example is that of co-training and of ``paw eval-wm``: the observation is written where the
environment would put it, after the agent's action. One token ends it, the first of those that ask for the
next answer, so that a model can mark the end of its prediction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from paw_gym.prompts import PromptTemplate
from paw_gym.transition import Episode
from paw_train.evaluation import world_model
from paw_train.evaluation.world_model import Embed
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.chat import ChatFormat
from paw_train.rollouts.policy import Request, Response, Sampling, response_seed
from paw_train.rollouts.tokens import OBSERVATION, TokenRow

_KEPT_EASY = 0.1
"""probability with which an easy transition is learned from (RWML, Yu et al. 2026)"""


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
    rows = []
    for group in by_episode.values():
        left = sorted(group, key=lambda e: len(e.context) + len(e.target), reverse=True)
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
            rows.append(row)
    return rows


def _begins(ids: Sequence[int], example: Example) -> bool:
    start, stop = len(example.context), len(example.context) + len(example.target)
    return tuple(ids[start:stop]) == example.target and tuple(ids[:start]) == example.context


@dataclass(frozen=True, slots=True)
class Guess:
    """One sampled prediction."""

    response: Response
    """as sampled, the ending token included"""
    text: str
    """the predicted observation"""
    complete: bool
    """whether it ended by itself, within the limit of tokens"""


def predict(
    policy: LocalPolicy,
    examples: Sequence[Example],
    each: int,
    max_tokens: int,
    seed: int,
    batch: int = 256,
    progress: Callable[[int], None] | None = None,
) -> list[list[Guess]]:
    """Samples predictions.

    Args:
        seed: of sampling; a prediction depends only on it and on its own number.
        batch: predictions sampled together (at least those of one example): memory, not results.
    """
    end = ending(policy.chat)
    stop = () if end is None or end in policy.chat.end_ids else (policy.chat.raw([end]),)
    sampling = Sampling(1.0, max_tokens, stop)
    together = max(1, batch // each)
    found: list[list[Guess]] = []
    for start in range(0, len(examples), together):
        part = examples[start : start + together]
        requests = [
            Request(f"{start + i}/{k}", response_seed(seed, f"{start + i}/{k}", 0), [], e.context)
            for i, e in enumerate(part)
            for k in range(each)
        ]
        guesses = []
        for response in policy.session(sampling, False).respond(requests):
            complete = response.ids[-1] == end or response.ids[-1] in policy.chat.end_ids
            predicted = response.ids[:-1] if complete else response.ids
            guesses.append(Guess(response, policy.chat.raw(predicted), complete))
        found += [guesses[i * each : (i + 1) * each] for i in range(len(part))]
        if progress:
            progress(len(found))
    return found


class Similarity:
    """The similarity of predicted and realised observations.

    Args:
        threshold: largest cosine distance at which a prediction is right.
    """

    def __init__(self, embed: Embed, threshold: float = 0.2) -> None:
        self.embed, self.threshold = embed, threshold

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


def solved_shares(
    guesses: Sequence[Sequence[Guess]], examples: Sequence[Example], similarity: Similarity
) -> np.ndarray:
    """[N] share of each example's predictions that are right."""
    each = len(guesses[0])
    flat = [guess.text for group in guesses for guess in group]
    truth = [example.text for example in examples for _ in range(each)]
    right = similarity.right(similarity(flat, truth))
    return np.asarray(right.reshape(len(examples), each).mean(1))


def kept(shares: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """[N] bool: the hard ones, and a tenth of the easy ones, those with a share of 1."""
    return np.asarray((shares < 1) | (rng.random(len(shares)) < _KEPT_EASY))


def balanced(texts: Sequence[str], max_share: float, rng: np.random.Generator) -> np.ndarray:
    """[N] bool: as many of each text, at random, as keep its share of the kept ones at ``max_share``.

    If there are too few different texts for that share, as many of each as of the rarest.
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
