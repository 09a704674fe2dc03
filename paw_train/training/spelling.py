"""Practice in spelling: known words of an expert's rows are replaced by made-up ones.

A policy trained from scratch spells the words that only held-out tasks have, byte by byte. The training tasks
hold no spelled word, so without practice it would never learn to copy one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from paw_train.rollouts.tokens import ACTION, TokenRow

_SHARE = 0.9
"""probability that a row is changed, and then of each of its words that can be replaced"""
_LENGTHS = (2, 11)
"""characters of a made-up word: from, to below"""
_OTHER_BYTES = "".join(map(chr, [*range(161, 173), *range(174, 256), *range(290, 323)]))
"""bytes from 128, as byte-level vocabularies write them"""
_CHARACTERS = {"abcdefghijklmnopqrstuvwxyz": 0.8, "0123456789": 0.1, _OTHER_BYTES: 0.1}
"""what a made-up word consists of, and how often"""
_WORD = re.compile(r"( ?)([A-Za-z_]{2,})( [0-9]+)?")
"""a word that may be replaced, in its parts: space, name, number"""


def practiced(
    batches: Iterable[list[TokenRow]], tokenizer: Any, rng: np.random.Generator
) -> Iterator[list[TokenRow]]:
    """Batches of an expert's rows, with made-up words for some that responses copy."""
    ids = tokenizer.get_vocab()
    found = {i: _WORD.fullmatch(tokenizer.decode([i])) for i in ids.values()}
    words = {i: match.groups("") for i, match in found.items() if match is not None}
    for batch in batches:
        yield [_respelled(row, words, ids, rng) for row in batch]


def _respelled(
    row: TokenRow, words: dict[int, tuple[str, ...]], ids: dict[str, int], rng: np.random.Generator
) -> TokenRow:
    chosen = _copied(row, words) if rng.random() < _SHARE else []
    made_up = {name: _made_up(name, rng) for name in chosen if rng.random() < _SHARE}
    tokens: list[int] = []
    roles: list[int] = []
    turns: list[int] = []
    for token, role, turn in zip(row.ids, row.role, row.turn, strict=True):
        space, name, number = words.get(token, ("", "", ""))
        spelled = [token]
        if name in made_up:
            written = f"{space}{made_up[name]}{number}".replace(" ", "\u0120")
            spelled = [ids[character] for character in written]
        tokens += spelled
        roles += [role] * len(spelled)
        turns += [turn] * len(spelled)
    return TokenRow(tokens, roles, turns, [0.0] * len(tokens))


def _copied(row: TokenRow, words: dict[int, tuple[str, ...]]) -> list[str]:
    """Names in responses that the model has read before it first wrote them."""
    places: dict[str, list[bool]] = defaultdict(list)
    for token, role in zip(row.ids, row.role, strict=True):
        if token in words:
            places[words[token][1]].append(role == ACTION)
    return [name for name, spoken in places.items() if any(spoken) and not spoken[0]]


def _made_up(name: str, rng: np.random.Generator) -> str:
    characters = rng.choice(list(_CHARACTERS), p=list(_CHARACTERS.values()))
    word = "".join(rng.choice(list(characters), rng.integers(*_LENGTHS)))
    capital = name[0].isupper() and characters.isalpha() and characters.isascii()
    return word.capitalize() if capital else word
