"""From text to index terms, as Anserini's default English analyzer does it (on top of Lucene).

Words by the boundaries of Unicode Annex 29, without a possessive 's, in lower case, without 33 stop
words, stemmed. Plain ASCII takes a fast path; both paths give the same terms.
"""

from __future__ import annotations

import re
import unicodedata

from paw_gym.retrieval.porter import stem

_STOP_WORDS = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then "
    "there these they this to was will with"
)
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""Lucene's English stop words"""
MAX_WORD = 255
"""characters; longer words are cut into pieces, as Lucene's tokenizer does"""

_ASCII_WORD = re.compile(
    r"(?:[a-z0-9_]|(?<=[a-z])[.:'](?=[a-z])|(?<=[0-9])[.,;'](?=[0-9]))+", re.ASCII
)
# The same over classes of characters: L letter, N digit, _ joining, K katakana, I one-character
# word (ideograph, hiragana), E emoji, M mark or format, Q . : , what stands inside words.
_CLASS_WORD = re.compile(
    r"IM*|EM*|KM*(?:[K_]M*)*"
    r"|(?:[LN_]M*|(?<=[LM])[Q.:](?=L)|(?<=[NM])[Q.,](?=N))+"
)
_INSIDE = {
    **dict.fromkeys("'.’‘․﹒．＇", "Q"),
    **dict.fromkeys(":·‧︓﹕：·՟״", ":"),
    **dict.fromkeys(",;;։،؍٬߸⁄︐︔﹐﹔，；", ","),
    "\u202f": "_",
    "\u200b": " ",
}


class _Classes(dict[int, str]):
    """Character classes for ``str.translate``, found when first asked for."""

    def __missing__(self, code: int) -> str:
        self[code] = kind = _class_of(chr(code))
        return kind


def _class_of(character: str) -> str:
    if character in _INSIDE:
        return _INSIDE[character]
    category, code = unicodedata.category(character), ord(character)
    if category == "Nd":
        return "N"
    if category[0] == "L" or category == "Nl":
        name = unicodedata.name(character, "")
        if "KATAKANA" in name:
            return "K"
        return "I" if name.startswith(("CJK ", "HIRAGANA", "IDEOGRAPHIC")) else "L"
    if category in ("Mn", "Me", "Mc", "Cf"):
        return "M"
    if category == "Pc":
        return "_"
    pictures = ((0x2600, 0x2685), (0x2690, 0x2705), (0x1F300, 0x1FAFF))
    return "E" if any(low <= code <= high for low, high in pictures) else " "


class _Lower(dict[int, str]):
    """Lower case one character at a time: neither length nor neighbours matter, as in Java."""

    def __missing__(self, code: int) -> str:
        self[code] = lower = chr(code).lower()[0]
        return lower


_CLASSES, _LOWER = _Classes(), _Lower()


def words(text: str) -> list[str]:
    """The words of a text in lower case, in order, stop words included.

    >>> words("O'Neil's wolf:hound cost 1,000.50 in the U.S.")
    ["o'neil's", 'wolf:hound', 'cost', '1,000.50', 'in', 'the', 'u.s']
    """
    if text.isascii():
        found = _ASCII_WORD.findall(text.lower())
    else:
        lower = text.translate(_LOWER)
        classes = lower.translate(_CLASSES)
        found = [lower[m.start() : m.end()] for m in _CLASS_WORD.finditer(classes)]
    return [piece for word in found for piece in _pieces(word)]


def _pieces(word: str) -> list[str]:
    if len(word) <= MAX_WORD:
        return [word]
    return [word[i : i + MAX_WORD] for i in range(0, len(word), MAX_WORD)]


def term_of(word: str) -> str | None:
    """The index term of a lower-case word; ``None`` for a stop word or a word of joiners alone."""
    if word[-2:] in ("'s", "’s", "＇s"):
        word = word[:-2]
    if word in STOP_WORDS or not word.strip("_‿⁀⁔︳︴﹍﹎﹏＿\u202f"):
        return None
    return stem(word)


def analyze(text: str) -> list[str]:
    """The index terms of a text, in order.

    >>> analyze("The foxes' dens are hidden")
    ['fox', 'den', 'hidden']
    """
    return [term for word in words(text) if (term := term_of(word)) is not None]
