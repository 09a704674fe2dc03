"""True probabilities of an episode's observations, beside those that the model predicted."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from threading import Lock
from typing import Any

from paw_gym.envs.alfworld.oracle.observer import Chance
from paw_gym.envs.alfworld.oracle.recorded import UnknownLawError, recorded_chances, tokens_of
from paw_gym.transition import Episode
from paw_train.metrics import number

Record = dict[str, Any]
Chances = list[list[Chance]]

MISSED = math.log(2)
"""nats above the floor from which a word counts as missed: it was more than twice as likely as predicted"""
_NAMED = 4
"""missed words of an observation that are named"""
_SUMS = ("floor", "model", "excess", "estimated", "left_out")


class Observers:
    """Finds the stretches of episodes that were not certain, when first asked; keeps the last episodes.

    Args:
        most: episodes that are kept.
    """

    def __init__(self, most: int = 32) -> None:
        self._kept: OrderedDict[Any, Chances | str] = OrderedDict()
        self._most, self._lock = most, Lock()

    def chances(self, episode: Episode) -> Chances | str:
        """The stretches of each transition that were not certain; or a sentence: why nobody knows."""
        first = episode.transitions[0].observation if episode.transitions else None
        played = tuple((t.action, t.next_observation) for t in episode.transitions)
        key = (episode.env_id, episode.task_id, first, played)
        # one at a time: many pages at once would leave no core to those who train
        with self._lock:
            if key not in self._kept:
                self._kept[key] = _chances(episode)
                if len(self._kept) > self._most:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key]


def _chances(episode: Episode) -> Chances | str:
    try:
        return recorded_chances(episode)
    except UnknownLawError as error:
        return str(error)


@dataclass(frozen=True, slots=True)
class Word:
    """Tokens that were not certain, taken as one."""

    first: int
    end: int
    """[first, end) in the observation's tokens"""
    text: str
    what: str
    """kinds of the stretches in it (``Chance.what``)"""
    p: float | None
    """true probability, given the history and the tokens before; ``None``: too small to be estimated"""
    excess: float | None
    """nats of the model above those of the truth"""
    estimated: bool
    """whether p is an estimate over samples"""

    @property
    def floor(self) -> float:
        """Nats that nobody could know; 0 where they are not known."""
        return -math.log(self.p) if self.p else 0.0


def truth(episode: Episode, tokens: Mapping[str, Any] | None, chances: Chances | str) -> Record:
    """True and predicted probabilities of an episode's observations, as JSON values.

    Args:
        episode: the episode.
        tokens: its line in ``tokens/``; ``None``: a model's probabilities were not recorded.
        chances: of ``Observers``.

    Returns:
        ``why``, a sentence where nothing is known, else ``None``; ``turns``, those whose tokens were recorded
        (``step`` and what ``compared`` gives); and the sums over them.
    """
    if isinstance(chances, str):
        return {"why": chances, "turns": [], **_sums([])}
    recorded = _observations(tokens)
    turns = [
        {"step": t.step, **compared(t.next_observation, recorded[t.step], uncertain)}
        for t, uncertain in zip(episode.transitions, chances, strict=True)
        if t.step in recorded
    ]
    why = None if turns else "No model's probabilities of these observations were recorded."
    return {"why": why, "turns": turns, **_sums(turns)}


def compared(text: str, recorded: Mapping[str, Any], chances: Sequence[Chance]) -> Record:
    """An observation's truth and the model's prediction of it.

    Args:
        text: the observation.
        recorded: its ``tokens`` (pieces of text) and ``logprobs`` (nats).
        chances: the stretches of the text that were not certain.

    Returns:
        ``why``, a sentence where they cannot be compared, else ``None``; ``words``, the tokens that were not
        certain (fields of ``Word``); ``missed``, [text, excess] of up to four words above ``MISSED``, largest
        first; in nats ``floor`` (nobody could know), ``model``, ``excess`` (their difference) and
        ``estimated`` (part of the floor); and ``left_out``, the number of tokens whose truth is too
        small to be estimated, which are in none of the sums.
    """
    found = _usable(recorded)
    start = -1 if found is None else "".join(found[0]).find(text.rstrip())
    if found is None or start < 0:
        why = "The recorded tokens are not those of this observation."
        return {"why": why, "words": [], "missed": [], **_sums([])}
    pieces, logprobs = found
    words = list(_words(pieces, logprobs, chances, start))
    inside = {k for word in words for k in range(word.first, word.end)}
    certain = [(pieces[k], -value) for k, value in enumerate(logprobs) if k not in inside]
    excess = [*certain, *((word.text, word.excess) for word in words if word.excess is not None)]
    missed = sorted(((t.strip(), nats) for t, nats in excess if nats > MISSED), key=lambda m: -m[1])
    floor, above = sum(word.floor for word in words), sum(nats for _, nats in excess)
    return {
        "why": None,
        "words": [asdict(word) for word in words],
        "missed": [list(one) for one in missed[:_NAMED]],
        "floor": floor,
        "model": floor + above,
        "excess": above,
        "estimated": sum(word.floor for word in words if word.estimated),
        "left_out": sum(word.end - word.first for word in words if word.p is None),
    }


def _observations(tokens: Mapping[str, Any] | None) -> dict[int, Mapping[str, Any]]:
    """The recorded observations of an episode by step."""
    steps = tokens.get("steps") if tokens else None
    there = [step for step in (steps if isinstance(steps, list) else []) if isinstance(step, dict)]
    return {
        step["step"]: step["observation"]
        for step in there
        if isinstance(step.get("step"), int) and isinstance(step.get("observation"), dict)
    }


def _usable(recorded: Mapping[str, Any]) -> tuple[list[str], list[float]] | None:
    """Tokens and log probabilities as they should be; ``None``: the record is damaged."""
    pieces, logprobs = recorded.get("tokens"), recorded.get("logprobs")
    if not isinstance(pieces, list) or not isinstance(logprobs, list):
        return None
    values = [value for one in logprobs if (value := number(one)) is not None]
    texts = [piece for piece in pieces if isinstance(piece, str)]
    whole = len(texts) == len(pieces) == len(values) == len(logprobs)
    return (texts, values) if whole else None


def _words(
    pieces: Sequence[str], logprobs: Sequence[float], chances: Sequence[Chance], start: int
) -> Iterator[Word]:
    """Stretches with the tokens they lie in; those that share a token are one.

    Args:
        pieces: [tokens] texts.
        logprobs: [tokens] of the model.
        chances: in characters of the observation.
        start: where it begins in the text of the tokens.
    """
    ends = [end - start for end in accumulate(map(len, pieces))]
    for first, end, inside in _together(chances, tokens_of(chances, ends)):
        p: float | None = math.prod(chance.p for chance in inside)
        if not p or math.isnan(p):
            p = None
        yield Word(
            first,
            end,
            "".join(pieces[first:end]),
            ", ".join(chance.what for chance in inside),
            p,
            None if p is None else math.log(p) - sum(logprobs[first:end]),
            any(chance.estimated for chance in inside),
        )


def _together(
    chances: Iterable[Chance], spans: Iterable[tuple[int, int]]
) -> list[tuple[int, int, list[Chance]]]:
    found: list[tuple[int, int, list[Chance]]] = []
    for chance, (first, end) in zip(chances, spans, strict=True):
        if found and first < found[-1][1]:
            begin, before, inside = found.pop()
            found.append((begin, max(before, end), [*inside, chance]))
        else:
            found.append((first, end, [chance]))
    return found


def _sums(turns: Sequence[Record]) -> Record:
    return {name: sum(turn[name] for turn in turns) for name in _SUMS}
