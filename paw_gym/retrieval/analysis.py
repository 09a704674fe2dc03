"""From text to index terms, as Anserini's default English analyzer does it (on top of Lucene).

Text is split at the word boundaries of Unicode Annex 29; words lose a possessive 's and are lower-cased,
33 stop words are left out, the rest stemmed. Plain ASCII takes a fast path; both paths give the same terms.

The stemmer is Porter's (1980) with the two departures of its author's own program: the suffixes ``bli`` (not
``abli``) and ``logi``. Stemmers on the package index either lack them or carry a second algorithm, and to
agree with Lucene, BM25 needs exactly this one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache

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
    r"I[MJ]*|E[MJ]*(?:(?<=J)E[MJ]*)*|K[MJ]*(?:[K_][MJ]*)*"
    r"|(?:[LN_][MJ]*|(?<=[LMJ])[Q.:](?=L)|(?<=[NMJ])[Q.,](?=N))+"
)
_INSIDE = {
    **dict.fromkeys("'.’‘․﹒．＇", "Q"),
    **dict.fromkeys(":·‧︓﹕：·՟״", ":"),
    **dict.fromkeys(",;;։،؍٬߸⁄︐︔﹐﹔，；", ","),
    "\u202f": "_",
    "\u200b": " ",
    "\u200d": "J",
}


_PICTURE_RANGES = (
    "\u00a9\u00a9\u00ae\u00ae\u203c\u203c\u2049\u2049\u2122\u2122\u2139\u2139\u2194\u2199\u21a9\u21aa"
    "\u231a\u231b\u2328\u2328\u2388\u2388\u23cf\u23cf\u23e9\u23f3\u23f8\u23fa\u24c2\u24c2\u25aa\u25ab"
    "\u25b6\u25b6\u25c0\u25c0\u25fb\u25fe\u2600\u2605\u2607\u2612\u2614\u2685\u2690\u2705\u2708\u2712"
    "\u2714\u2714\u2716\u2716\u271d\u271d\u2721\u2721\u2728\u2728\u2733\u2734\u2744\u2744\u2747\u2747"
    "\u274c\u274c\u274e\u274e\u2753\u2755\u2757\u2757\u2763\u2767\u2795\u2797\u27a1\u27a1\u27b0\u27b0"
    "\u27bf\u27bf\u2934\u2935\u2b05\u2b07\u2b1b\u2b1c\u2b50\u2b50\u2b55\u2b55\u3030\u3030\u303d\u303d"
    "\u3297\u3297\u3299\u3299\U0001f000\U0001f1e5\U0001f200\U0001f3fa\U0001f400\U0001faff"
)
_PICTURES = frozenset(
    chr(code)
    for low, high in zip(_PICTURE_RANGES[::2], _PICTURE_RANGES[1::2], strict=True)
    for code in range(ord(low), ord(high) + 1)
)
"""emoji (Unicode's Extended_Pictographic), each a word of its own"""


class _Table(dict[int, str]):
    """A table for ``str.translate``; what stands for a character is found when it is first asked for."""

    def __init__(self, find: Callable[[str], str]) -> None:
        self._find = find

    def __missing__(self, code: int) -> str:
        self[code] = found = self._find(chr(code))
        return found


def _class_of(character: str) -> str:
    if character in _INSIDE:
        return _INSIDE[character]
    category = unicodedata.category(character)
    if category == "Nd":
        return "N"
    if character in "\uff9e\uff9f":  # halfwidth voice marks: letters by category, marks by Annex 29
        return "M"
    if category[0] == "L" or category == "Nl":
        name = unicodedata.name(character, "")
        if "KATAKANA" in name:
            return "K"
        return "I" if name.startswith(("CJK ", "HIRAGANA", "IDEOGRAPHIC")) else "L"
    if category in ("Mn", "Me", "Mc", "Cf"):
        return "M"
    if category == "Pc":
        return "_"
    return "E" if character in _PICTURES else " "


_CLASSES = _Table(_class_of)
_LOWER = _Table(lambda character: character.lower()[0])
"""one character at a time: neither length nor neighbours matter, as in Java"""


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
    if max(map(len, found), default=0) <= MAX_WORD:
        return found
    return [word[i : i + MAX_WORD] for word in found for i in range(0, len(word), MAX_WORD)]


@lru_cache(maxsize=2**16)
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


# --- Porter's stemmer -------------------------------------------------------------------------------

_STEP_2 = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize",
    "bli": "ble", "alli": "al", "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize",
    "ation": "ate", "ator": "ate", "alism": "al", "iveness": "ive", "fulness": "ful",
    "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble", "logi": "log",
}  # fmt: skip
_STEP_3 = {
    "icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": "",
}  # fmt: skip
_STEP_4 = {
    "al": "", "ance": "", "ence": "", "er": "", "ic": "", "able": "", "ible": "", "ant": "",
    "ement": "", "ment": "", "ent": "", "ion": "", "ou": "", "ism": "", "ate": "", "iti": "",
    "ous": "", "ive": "", "ize": "",
}  # fmt: skip


def stem(word: str) -> str:
    """The stem of a lower-case word; words of one or two letters stay as they are.

    >>> [stem(word) for word in ("relational", "hopping", "possibly", "is")]
    ['relat', 'hop', 'possibl', 'is']
    """
    if len(word) <= 2:
        return word
    if word.endswith(("sses", "ies")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    word = _step_1b(word)
    if word.endswith("y") and "v" in _kinds(word[:-1]):
        word = word[:-1] + "i"
    word = _replace(word, _STEP_2, 0)
    word = _replace(word, _STEP_3, 0)
    word = _replace(word, _STEP_4, 1)
    return _step_5(word)


def _kinds(word: str) -> str:
    """``c`` or ``v`` for each letter; y is a vowel after a consonant."""
    kinds = ""
    for index, letter in enumerate(word):
        vowel = letter in "aeiou" or (letter == "y" and index > 0 and kinds[-1] == "c")
        kinds += "v" if vowel else "c"
    return kinds


def _measure(stem_: str) -> int:
    """Porter's m: how often a vowel is followed by a consonant."""
    return _kinds(stem_).count("vc")


def _ends_cvc(word: str) -> bool:
    return _kinds(word)[-3:] == "cvc" and word[-1] not in "wxy"


def _step_1b(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    rest = word.removesuffix("ed") if word.endswith("ed") else word.removesuffix("ing")
    if rest == word or "v" not in _kinds(rest):
        return word
    if rest.endswith(("at", "bl", "iz")):
        return rest + "e"
    if len(rest) > 1 and rest[-1] == rest[-2] and _kinds(rest)[-1] == "c":
        return rest if rest[-1] in "lsz" else rest[:-1]
    return rest + "e" if _measure(rest) == 1 and _ends_cvc(rest) else rest


def _replace(word: str, suffixes: dict[str, str], above: int) -> str:
    """Replaces the longest suffix that is there, if the part before it has a measure above ``above``."""
    for length in range(min(7, len(word)), 1, -1):
        suffix = word[-length:]
        if suffix in suffixes:
            rest = word[:-length]
            if suffix == "ion" and not rest.endswith(("s", "t")):
                return word
            return rest + suffixes[suffix] if _measure(rest) > above else word
    return word


def _step_5(word: str) -> str:
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _ends_cvc(word[:-1])):
            word = word[:-1]
    if word.endswith("ll") and _measure(word) > 1:
        word = word[:-1]
    return word
