"""Porter's stemmer (1980) with the two departures of its author's own program, as Lucene has it.

The departures: the suffixes ``bli`` (not ``abli``) and ``logi``. Stemmers on the package index either
lack them or carry a second algorithm, and to agree with Lucene, BM25 needs exactly this one.
"""

from __future__ import annotations

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
    word = _step_1b(_step_1a(word))
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


def _step_1a(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    if word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return word


def _step_1b(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for suffix in ("ed", "ing"):
        if word.endswith(suffix):
            rest = word[: -len(suffix)]
            return _tidy(rest) if "v" in _kinds(rest) else word
    return word


def _tidy(rest: str) -> str:
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
