"""The words of the made-up encyclopedia: names, relations, and how both are put into sentences.

Names are made of few parts in many combinations: a held-out name is new, its words are not.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product

_ONSETS = ("b", "br", "d", "dr", "f", "g", "gl", "h", "k", "kr", "l", "m", "n", "p", "r", "s", "st",
           "t", "tr", "v", "z")  # fmt: skip
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ei")
_CODAS = ("l", "m", "n", "nd", "r", "rk", "s", "sk", "th", "v")
_SUFFIXES = {
    "place": ("Bay", "Ford", "Hill", "Market", "Mill", "Port", "Ridge", "Vale", "Wells", "Wood"),
    "company": ("Brothers", "Foundry", "Lines", "Motors", "Optics", "Press", "Tools", "Works"),
}
_ALIAS = {
    "place": {
        "Bay": "{} on the Bay", "Ford": "Old {} Ford", "Hill": "{} Heights", "Market": "New {}",
        "Mill": "{} by the Mill", "Port": "Harbour of {}", "Ridge": "Upper {}", "Vale": "Lower {}",
        "Wells": "Spa of {}", "Wood": "{} in the Wood",
    },
    "company": {
        "Brothers": "{} and Sons", "Foundry": "{} Iron", "Lines": "{} Shipping",
        "Motors": "{} Engines", "Optics": "{} Glass", "Press": "{} Books", "Tools": "{} Steel",
        "Works": "{} Industries",
    },
}  # fmt: skip
_ADJECTIVES = ("Amber", "Bitter", "Broken", "Burning", "Crimson", "Distant", "Empty", "Faithful",
               "Frozen", "Gentle", "Golden", "Hidden", "Hollow", "Idle", "Last", "Lonely", "Lost",
               "Narrow", "Pale", "Patient", "Quiet", "Restless", "Scarlet", "Secret", "Silver",
               "Sleeping", "Stolen", "Tender", "Violet", "Wandering")  # fmt: skip
_NOUNS = ("Anchor", "Bell", "Bridge", "Candle", "Castle", "Compass", "Door", "Feather", "Garden",
          "Harvest", "Island", "Kettle", "Lantern", "Letter", "Mirror", "Mountain", "Orchard",
          "Owl", "Palace", "Ribbon", "Shadow", "Ship", "Stairway", "Summer", "Tower", "Violin",
          "Wheel", "Window", "Winter", "Wolf")  # fmt: skip
_VALUES = {
    "occupation": ("astronomer", "baker", "botanist", "carpenter", "chemist", "clockmaker",
                   "composer", "dancer", "diplomat", "engineer", "fencer", "gardener", "geologist",
                   "glassblower", "goldsmith", "historian", "judge", "librarian", "locksmith",
                   "mathematician", "midwife", "painter", "pilot", "sailor", "surgeon", "tailor",
                   "translator", "weaver"),
    "product": ("barometers", "bicycles", "buttons", "cameras", "carpets", "ceramics", "clocks",
                "elevators", "fishing nets", "lamps", "locks", "microscopes", "needles", "organs",
                "paper", "pencils", "pianos", "ploughs", "printing presses", "scales", "stoves",
                "telescopes", "typewriters", "umbrellas"),
    "form": ("ballad", "ballet", "comedy", "documentary film", "fresco", "memoir", "mosaic", "novel",
             "opera", "poem", "short story", "silent film", "sonata", "symphony", "tapestry",
             "tragedy", "travel book", "woodcut"),
    "crop": ("almonds", "apples", "barley", "cherries", "chestnuts", "flax", "garlic", "grapes",
             "hops", "lavender", "lemons", "mint", "oats", "olives", "pears", "plums", "rye",
             "saffron", "tea", "wheat"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Relation:
    """A kind of fact."""

    of: str
    """kind of the subject"""
    to: str
    """kind of the object; ``value`` for a plain word or a year"""
    keyword: str
    """what one would type to find it"""
    described: str
    """the object, by way of the subject ``{x}``"""
    stated: tuple[str, ...]
    """sentences that state it of ``{s}`` and ``{o}``"""


RELATIONS = {
    "birthplace": Relation("person", "place", "born in", "the birthplace of {x}",
        ("{s} was born in {o}.", "The birthplace of {s} is {o}.")),
    "birth_year": Relation("person", "value", "born in the year", "the year in which {x} was born",
        ("{s} was born in the year {o}.", "The year of birth of {s} is {o}.")),
    "occupation": Relation("person", "value", "worked as", "the occupation of {x}",
        ("By trade {s} was a {o}.", "{s} worked as a {o}.")),
    "employer": Relation("person", "company", "employed by", "the employer of {x}",
        ("{s} was employed by {o}.", "The employer of {s} was {o}.")),
    "mayor": Relation("place", "person", "mayor", "the mayor of {x}",
        ("The mayor of {s} is {o}.", "{s} is governed by its mayor, {o}.")),
    "crop": Relation("place", "value", "farmers grow", "what farmers grow around {x}",
        ("Farmers around {s} grow {o}.", "The fields around {s} are known for {o}.")),
    "charter": Relation("place", "value", "town charter year", "the year of the charter of {x}",
        ("{s} received its charter in {o}.", "The charter of {s} dates from {o}.")),
    "founder": Relation("company", "person", "founder", "the founder of {x}",
        ("{s} was founded by {o}.", "The founder of {s} was {o}.")),
    "headquarters": Relation("company", "place", "headquarters", "the home town of {x}",
        ("{s} has its headquarters in {o}.", "The headquarters of {s} are in {o}.")),
    "product": Relation("company", "value", "makes", "what {x} makes",
        ("{s} makes {o}.", "The products of {s} are {o}.")),
    "author": Relation("work", "person", "author", "the author of {x}",
        ("{s} was created by {o}.", "The author of {s} is {o}.")),
    "form": Relation("work", "value", "kind of work", "the form of {x}",
        ("{s} is a {o}.", "In form, {s} is a {o}.")),
    "setting": Relation("work", "place", "set in", "the town in which {x} is set",
        ("{s} is set in {o}.", "The story of {s} takes place in {o}.")),
}  # fmt: skip

ASKED = {
    "birthplace": ("Where was {x} born?", "In which town was {x} born?"),
    "birth_year": ("In what year was {x} born?", "When was {x} born?"),
    "occupation": ("What did {x} work as?", "What was the occupation of {x}?"),
    "employer": ("Who employed {x}?", "Which company employed {x}?"),
    "mayor": ("Who is the mayor of {x}?", "Which person is the mayor of {x}?"),
    "crop": ("What do farmers grow around {x}?", "What are the fields around {x} known for?"),
    "charter": ("When did {x} receive its charter?", "From what year is the charter of {x}?"),
    "founder": ("Who founded {x}?", "Which person founded {x}?"),
    "headquarters": ("Where is {x} based?", "In which town are the headquarters of {x}?"),
    "product": ("What does {x} make?", "What are the products of {x}?"),
    "author": ("Who created {x}?", "Who is the author of {x}?"),
    "form": ("What kind of work is {x}?", "What is the form of {x}?"),
    "setting": ("Where is {x} set?", "In which town does the story of {x} take place?"),
}
"""questions for the object of a relation"""

FILLERS = {
    "person": (
        "Several letters have survived.",
        "A portrait hangs in a private collection.",
        "Little is known of the early years.",
        "The family later moved abroad.",
    ),
    "place": (
        "Two roads meet here.",
        "The winters are long and dry.",
        "A fair is held every autumn.",
        "The old wall still stands.",
    ),
    "company": (
        "The accounts are public.",
        "A strike closed the gates for a season.",
        "Its sign shows a red wheel.",
        "It has changed hands twice.",
    ),
    "work": (
        "Critics were divided.",
        "A copy is kept under glass.",
        "It was forgotten for decades.",
        "Schools still discuss it.",
    ),
}
"""sentences that nobody asks about"""

DISTRACTORS = (
    (
        "Almanac entry {n}",
        "The almanac of {year} mentions {a}, {b} and {c} on the same page.",
        "It gives no reason for the choice.",
    ),
    (
        "Auction {n}",
        "In {year} a lot that concerned {a} was sold together with papers about {b}.",
        "The buyer was said to admire {c}.",
    ),
    (
        "Society of {a}",
        "The society was formed in {year} to honour {a}.",
        "Its members also studied {b} and argued about {c}.",
        "It has the catalogue number {n}.",
    ),
    (
        "Letter {n}",
        "A letter from {year} compares {a} with {b}.",
        "Its writer had never heard of {c}.",
    ),
    (
        "Exhibition {n}",
        "The exhibition of {year} had a room each for {a}, {b} and {c}.",
        "Visitors preferred the garden.",
    ),
)
"""title and sentences of passages that answer nothing"""


def value_of(relation: str, rng: random.Random) -> str:
    """A plain value for a relation: a word of its list, or a year."""
    if relation in _VALUES:
        return rng.choice(_VALUES[relation])
    return str(rng.randint(1700, 1990))


def _syllables(rng: random.Random, count: int, number: int) -> list[str]:
    """Different invented words of some syllables."""
    made: dict[str, None] = {}
    while len(made) < number:
        parts = [rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(count)]
        made.setdefault(("".join(parts) + rng.choice(_CODAS)).capitalize())
    return list(made)


def names_of(kind: str, count: int, rng: random.Random) -> list[tuple[str, str]]:
    """``count`` names of a kind with an alias each, all different.

    Each part of a name occurs in several of them, so a held-out name holds hardly a new word.
    """
    if kind == "work":
        plain = _titles(count, rng)
    elif kind == "person":
        first, last = _syllables(rng, 1, 60), _syllables(rng, 2, max(40, count // 8))
        plain = [(f"{f} {s}", f"{s} of the House of {f}") for f, s in product(first, last)]
    else:
        roots = _syllables(rng, 2, max(20, count // 6 + 1))
        plain = [
            (f"{root} {suffix}", _ALIAS[kind][suffix].format(root))
            for root, suffix in product(roots, _SUFFIXES[kind])
        ]
    rng.shuffle(plain)
    return plain[:count]


def _titles(count: int, rng: random.Random) -> list[tuple[str, str]]:
    """Titles of works; from 900 on they name a place as well."""
    pairs = list(product(_ADJECTIVES, _NOUNS))
    titles = [(f"The {a} {n}", f"The {n} of the {a} Cycle") for a, n in pairs]
    if count > len(titles):
        for root in _syllables(rng, 2, count // len(pairs) * 2):
            titles += [
                (f"The {a} {n} of {root}", f"The {n} of the {a} {root} Cycle") for a, n in pairs
            ]
    return titles
