"""A made-up encyclopedia and questions about it: nothing to download, nothing to know by heart.

People, places, companies and works are invented from a seed, with facts that link them. Each has a
passage; other passages mention several and answer nothing (distractors). A question follows a chain
of facts whose entities all belong to one split. Names are made of few parts in many combinations: a
held-out name is new, its words are not.
"""

from __future__ import annotations

import hashlib
import random
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from itertools import product
from typing import Any

from paw_gym.core import Task, TaskSet
from paw_gym.envs.search_qa.questions import Question
from paw_gym.generated import require_in, shared_sets
from paw_gym.internals.naming import require_choice
from paw_gym.retrieval.base import Passage
from paw_gym.retrieval.corpus import Corpus

_WORDS: Mapping[str, Any] = tomllib.loads(
    (resources.files("paw_gym.envs.search_qa") / "encyclopedia.toml").read_text(encoding="utf-8")
)


@dataclass(frozen=True, slots=True)
class Relation:
    """A kind of fact."""

    of: str
    """kind of the subject"""
    to: str
    """kind of the object; ``value`` for a plain word or a year"""
    keyword: str
    """words to type to find it"""
    described: str
    """the object, by way of the subject ``{x}``"""
    stated: Sequence[str]
    """sentences that state it of ``{s}`` and ``{o}``"""
    asked: Sequence[str]
    """questions for the object"""


RELATIONS = {name: Relation(**relation) for name, relation in _WORDS["relations"].items()}


def _syllables(rng: random.Random, count: int, number: int) -> list[str]:
    """Different invented words of some syllables."""
    made: dict[str, None] = {}
    while len(made) < number:
        parts = [rng.choice(_WORDS["onsets"]) + rng.choice(_WORDS["vowels"]) for _ in range(count)]
        made.setdefault(("".join(parts) + rng.choice(_WORDS["codas"])).capitalize())
    return list(made)


def names_of(kind: str, count: int, rng: random.Random) -> list[tuple[str, str]]:
    """``count`` names of a kind with an alias each, all different. Each part of a name occurs in several, so
    a held-out name has hardly any new words."""
    if kind == "work":
        plain = _titles(count, rng)
    elif kind == "person":
        first, last = _syllables(rng, 1, 60), _syllables(rng, 2, max(40, count // 8))
        plain = [(f"{f} {s}", f"{s} of the House of {f}") for f, s in product(first, last)]
    else:
        roots = _syllables(rng, 2, max(20, count // 6 + 1))
        plain = [
            (f"{root} {suffix}", _WORDS["alias"][kind][suffix].format(root))
            for root, suffix in product(roots, _WORDS["suffixes"][kind])
        ]
    rng.shuffle(plain)
    return plain[:count]


def _titles(count: int, rng: random.Random) -> list[tuple[str, str]]:
    """Titles of works; from 900 on they name a place as well."""
    pairs = list(product(_WORDS["adjectives"], _WORDS["nouns"]))
    titles = [(f"The {a} {n}", f"The {n} of the {a} Cycle") for a, n in pairs]
    if count > len(titles):
        for root in _syllables(rng, 2, count // len(pairs) * 2):
            titles += [
                (f"The {a} {n} of {root}", f"The {n} of the {a} {root} Cycle") for a, n in pairs
            ]
    return titles


SPLITS = {"train": 0.6, "dev": 0.2, "test": 0.2}
"""share of the entities of each split"""


@dataclass(frozen=True, slots=True)
class Difficulty:
    """The parameters that set how hard questions are."""

    hops: tuple[int, ...]
    """lengths of the chains of facts, taking turns"""
    distractors: float
    """share of the passages that answer nothing"""
    by_alias: float
    """share of the questions that call their first entity by another name"""
    fillers: int
    """sentences of each passage that state no fact anyone asks for"""


DIFFICULTIES = {
    "easy": Difficulty(hops=(1,), distractors=0.1, by_alias=0.0, fillers=0),
    "medium": Difficulty(hops=(1, 2), distractors=0.3, by_alias=0.25, fillers=1),
    "hard": Difficulty(hops=(2, 3), distractors=0.5, by_alias=0.5, fillers=2),
    "mixed": Difficulty(hops=(1, 2, 3), distractors=0.3, by_alias=0.25, fillers=1),
}


@dataclass(slots=True)
class Entity:
    """A person, place, company or work."""

    kind: str
    name: str
    alias: str
    """another name, which its passage mentions"""
    split: str
    facts: dict[str, Entity | str] = field(default_factory=dict)
    """by relation: another entity, or a plain value"""
    passage: str = ""
    """id of its passage"""


@dataclass(frozen=True, slots=True)
class Hop:
    """One link of a chain: what to search for, and the passage that holds the fact."""

    query: str
    passage: str


@dataclass(frozen=True, slots=True)
class Riddle:
    """A question with the way to its answer."""

    question: Question
    hops: tuple[Hop, ...]


class World:
    """A made-up encyclopedia."""

    def __init__(self, seed: int = 0, difficulty: str = "medium", num_passages: int = 1200) -> None:
        require_choice("difficulty", difficulty, DIFFICULTIES)
        require_in("num_passages", num_passages, range(200, 100_001))
        self.key = f"synthetic-1/{seed}/{difficulty}/{num_passages}"
        self.difficulty = DIFFICULTIES[difficulty]
        count = round(num_passages * (1 - self.difficulty.distractors))
        self.entities = _entities(random.Random(f"{self.key}/entities"), count)
        _link(random.Random(f"{self.key}/facts"), self.entities)
        self.passages = self._write(random.Random(f"{self.key}/text"), num_passages)

    def _write(self, rng: random.Random, total: int) -> list[Passage]:
        texts = [(e, _about(rng, e, self.difficulty.fillers)) for e in self.entities]
        others: list[tuple[Entity | None, tuple[str, str]]] = [
            (None, _distractor(rng, self.entities, number))
            for number in range(total - len(self.entities))
        ]
        pages = [*texts, *others]
        rng.shuffle(pages)
        passages = []
        for number, (entity, (title, text)) in enumerate(pages):
            passages.append(Passage(f"s{number}", f'"{title}"\n{text}'))
            if entity is not None:
                entity.passage = passages[-1].id
        return passages

    def riddles(self, split: str, count: int | None = None) -> list[Riddle]:
        """Questions of a split, in a fixed order; chains of each length take turns."""
        require_choice("split", split, SPLITS)
        rng = random.Random(f"{self.key}/{split}")
        stacks = []
        for hops in self.difficulty.hops:
            starts = [entity for entity in self.entities if entity.split == split]
            chains = [(entity, path) for entity in starts for path in _chains(entity, hops)]
            rng.shuffle(chains)
            stacks.append(chains)
        # equally many of each length, so that a longer list begins with a shorter one
        most = min(len(chains) for chains in stacks) * len(stacks)
        wanted = min(2000, most) if count is None else count
        if wanted > most:
            raise ValueError(
                f"Split {split!r} has {most} questions, {wanted} were asked for: raise num_passages."
            )
        return [self._ask(rng, stacks[i % len(stacks)][i // len(stacks)]) for i in range(wanted)]

    def _ask(self, rng: random.Random, chain: tuple[Entity, tuple[str, ...]]) -> Riddle:
        start, path = chain
        called = start.alias if rng.random() < self.difficulty.by_alias else start.name
        described, entity, hops = called, start, []
        for number, name in enumerate(path, start=1):
            by = called if entity is start else entity.name
            hops.append(Hop(f"{by} {RELATIONS[name].keyword}", entity.passage))
            if number < len(path):
                described = RELATIONS[name].described.format(x=described)
                entity = entity.facts[name]  # type: ignore[assignment]
        text = rng.choice(RELATIONS[path[-1]].asked).format(x=described)
        answer = entity.facts[path[-1]]
        golden = (answer.name, answer.alias) if isinstance(answer, Entity) else (answer,)
        titles = tuple(self.passages[int(hop.passage[1:])].title for hop in hops)
        key = hashlib.sha256(f"{called}/{start.name}/{'/'.join(path)}".encode()).hexdigest()[:10]
        question = Question(f"{len(path)}hop-{key}", text, golden, f"{len(path)}-hop", titles)
        return Riddle(question, tuple(hops))


def _entities(rng: random.Random, count: int) -> list[Entity]:
    """Entities of the four kinds in fixed shares, dealt to the splits."""
    shares = {"person": 0.4, "place": 0.2, "company": 0.15, "work": 0.25}
    entities: list[Entity] = []
    for kind, share in shares.items():
        size = round(count * share) if kind != "work" else count - len(entities)
        made = [Entity(kind, name, alias, "") for name, alias in names_of(kind, size, rng)]
        bound = 0.0
        for split, part in SPLITS.items():
            first, bound = round(bound * size), bound + part
            for entity in made[first : round(bound * size)]:
                entity.split = split
        entities += made
    return entities


def _link(rng: random.Random, entities: Sequence[Entity]) -> None:
    """Gives every entity its facts; links stay mostly within a split, where questions can use them."""
    pools: dict[tuple[str, str], list[Entity]] = {}
    for entity in entities:
        pools.setdefault((entity.kind, entity.split), []).append(entity)
    for entity in entities:
        for name, relation in RELATIONS.items():
            if relation.of != entity.kind:
                continue
            if relation.to == "value":
                words = _WORDS["values"].get(name)
                entity.facts[name] = str(rng.choice(words) if words else rng.randint(1700, 1990))
                continue
            stays = rng.random() < 0.8
            split = entity.split if stays else rng.choices(list(SPLITS), list(SPLITS.values()))[0]
            others = [e for e in pools[relation.to, split] if e is not entity]
            entity.facts[name] = rng.choice(others)


def _chains(start: Entity, hops: int, seen: tuple[Entity, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All chains of facts of one length from an entity, within its split, with no entity twice."""
    for name, value in start.facts.items():
        if isinstance(value, Entity):
            if value.split != start.split or any(value is one for one in (*seen, start)):
                continue
            if hops > 1:
                yield from ((name, *path) for path in _chains(value, hops - 1, (*seen, start)))
        if hops == 1:
            yield (name,)


def _about(rng: random.Random, entity: Entity, fillers: int) -> tuple[str, str]:
    """Title and text of an entity's passage: what it is, its facts in some order, small talk."""
    opening = _WORDS["openings"][entity.kind].format(name=entity.name, alias=entity.alias)
    sentences = []
    for name, value in entity.facts.items():
        said = value.name if isinstance(value, Entity) else value
        sentences.append(rng.choice(RELATIONS[name].stated).format(s=entity.name, o=said))
    sentences += rng.sample(_WORDS["fillers"][entity.kind], fillers)
    rng.shuffle(sentences)
    return entity.name, " ".join([opening, *sentences])


def _distractor(rng: random.Random, entities: Sequence[Entity], number: int) -> tuple[str, str]:
    """A passage that names entities and says nothing that is asked for."""
    page = rng.choice(_WORDS["distractors"])
    a, b, c = (entity.name for entity in rng.sample(list(entities), 3))
    year = rng.randint(1700, 1990)
    values = {"a": a, "b": b, "c": c, "year": year, "n": number}
    return page["title"].format(**values), " ".join(
        sentence.format(**values) for sentence in page["sentences"]
    )


@lru_cache(maxsize=4)
def shared_world(seed: int, difficulty: str, num_passages: int) -> World:
    """A ``World``, made once per process."""
    return World(seed, difficulty, num_passages)


@lru_cache(maxsize=4)
def world_corpus(seed: int, difficulty: str, num_passages: int) -> Corpus:
    return Corpus.open(shared_world(seed, difficulty, num_passages).passages)


@shared_sets(maxsize=16)
def synthetic_tasks(
    split: str, seed: int, difficulty: str, num_passages: int, count: int | None
) -> TaskSet:
    """The questions of a split as tasks; the type of a task is its number of hops."""
    riddles = shared_world(seed, difficulty, num_passages).riddles(split, count)
    return TaskSet.from_tasks(
        [
            Task(f"synthetic/{split}/{r.question.id}", r.question.question, r.question.type, r)
            for r in riddles
        ],
        split,
    )
