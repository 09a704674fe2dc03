"""The shop: its search engines, what an action says, and where it leads from a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from paw_gym.envs.webshop import pages
from paw_gym.envs.webshop.catalogue import Catalogue
from paw_gym.envs.webshop.goals import Goal, sample_price
from paw_gym.envs.webshop.reward import Nouns, Score, score_purchase
from paw_gym.internals.files import private_folder
from paw_gym.internals.printable import encodable
from paw_gym.retrieval.analysis import analyze
from paw_gym.retrieval.bm25 import BM25Scorer
from paw_gym.retrieval.lucene import index_documents, open_searcher

SEARCH_ACTION = "search[...]"
"""stands in the list of admissible actions for every search"""


class Action(NamedTuple):
    """A parsed action."""

    verb: str
    argument: str
    """in lower case; empty if the action is malformed"""


def parse_action(text: str) -> Action:
    """Reads an action; one that is not of the form ``verb[argument]`` has an empty argument.

    The original's reading, which takes the last bracket as the opening one and ignores what
    follows the closing one, except that an argument may hold brackets itself.

    >>> parse_action("click[Buy Now]")
    Action(verb='click', argument='buy now')
    """
    for verb in ("search", "click"):
        if text.startswith(f"{verb}[") and text.endswith("]") and "\n" not in text:
            inner = text[len(verb) + 1 : -1]
            if inner:
                return Action(verb, inner.lower())
    # the greedy (.+)\\[(.+)\\] of the original, in linear time
    line = text.partition("\n")[0]
    end = line.rfind("]")
    start = line.rfind("[", 1, max(end - 1, 0))
    return Action(line[:start], line[start + 1 : end].lower()) if start > 0 else Action(text, "")


RESULTS = 50
"""most hits that a search gives"""
K1, B = 0.9, 0.4
"""BM25's parameters in Anserini, which the original searches with"""
_SUB_PAGES = {name.lower(): name for name in (*pages.SUB_PAGES, pages.ATTRIBUTES)}


class Bm25Search:
    """Lucene's BM25 without Java, over the catalogue's own index."""

    def __init__(self, catalogue: Catalogue) -> None:
        # NumPy answers at once; compiled loops would make the first search of a process wait seconds
        self._scorer = BM25Scorer(catalogue.search_index, K1, B, compiled=False)
        self._order = catalogue.asin_order

    def search(self, query: str, limit: int) -> list[int]:
        """Places of the matching products, best first, equal ones by asin."""
        places, _ = self._scorer.rank(analyze(query), limit)
        return [int(place) for place in self._order[places]]


class LuceneSearch:
    """BM25 by Lucene, through Anserini. The index is built in the cache folder at first use."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        folder = private_folder("webshop") / f"lucene-{catalogue.fingerprint[:20]}"
        if not folder.is_dir():
            documents = ((product.asin, product.search_text) for product in catalogue)
            index_documents(documents, folder, {"catalogue": catalogue.fingerprint})
        self._searcher = open_searcher(folder, K1, B)

    def search(self, query: str, limit: int) -> list[int]:
        """Places of the matching products, best first."""
        hits = self._searcher.search(encodable(query), limit)
        return [self._catalogue.number_of(hit.docid) for hit in hits]


ENGINES: dict[str, type[Bm25Search | LuceneSearch]] = {"bm25": Bm25Search, "lucene": LuceneSearch}
"""by the name of a search"""


@dataclass(frozen=True, slots=True)
class Visit:
    """A shopper's place: everything that changes during an episode, plain and small."""

    page: str = "search"
    """``search``, ``results``, ``item``, ``sub`` or ``done``"""
    query: str = ""
    number: int = 1
    """of the page of results"""
    product: int = -1
    """place in the catalogue"""
    options: tuple[tuple[str, str], ...] = ()
    """chosen so far, in the order of choosing"""
    sub_page: str = ""


class Shop:
    """A catalogue with a search engine, prices, and a noun tagger. Read-only; shared by environments."""

    def __init__(
        self,
        catalogue: Catalogue,
        engine: Bm25Search | LuceneSearch,
        nouns: Nouns,
        prices: Mapping[str, float] | None = None,
        price_seed: int = 0,
        show_attributes: bool = False,
    ) -> None:
        self.catalogue = catalogue
        self.engine = engine
        self.nouns = nouns
        self.show_attributes = show_attributes
        self.given_prices = prices
        self._price_seed = price_seed
        self.hits = lru_cache(maxsize=4096)(lambda query: tuple(engine.search(query, RESULTS)))
        """places in the catalogue of what a search finds"""

    def price(self, asin: str) -> float:
        """The price of a product, in dollars."""
        if self.given_prices is None:
            return sample_price(self.catalogue.by_asin(asin), self._price_seed)
        if asin not in self.given_prices:
            raise ValueError(f"prices: there is none for product {asin!r}.")
        return self.given_prices[asin]

    def show(self, visit: Visit, goal: Goal) -> pages.Page:
        words = goal.instruction
        if visit.page == "search":
            return pages.SearchPage(words)
        if visit.page == "results":
            hits = self.hits(visit.query)
            start = (visit.number - 1) * pages.PAGE_SIZE
            products = tuple(self.catalogue[n] for n in hits[start : start + pages.PAGE_SIZE])
            return pages.ResultsPage(words, visit.query, visit.number, len(hits), products)
        product = self.catalogue[visit.product]
        if visit.page == "item":
            return pages.ItemPage(words, product, dict(visit.options), self.show_attributes)
        if visit.page == "sub":
            return pages.SubPage(words, product, visit.sub_page)
        return pages.DonePage(words, product, dict(visit.options), self.score(visit, goal))

    def score(self, visit: Visit, goal: Goal) -> Score:
        """The score of buying the visit's product with the chosen options."""
        product = self.catalogue[visit.product]
        return score_purchase(
            product, self.price(product.asin), dict(visit.options), goal, self.nouns
        )

    def act(self, visit: Visit, page: pages.Page, action: Action) -> Visit | None:
        """The visit after an action; ``None`` if the page does not accept it. Searching is possible from
        every page, as in the original, even if no field is shown."""
        if action.verb == "search" and action.argument:
            return Visit("results", action.argument)
        part = page.clickables.get(action.argument)
        if action.verb != "click" or part is None or action.argument == "search":
            return None
        moved = self._press(visit, action.argument)
        if moved is not None:
            return moved
        if part.role == "link":
            number = self.catalogue.number_of(part.text)
            return replace(visit, page="item", product=number, options=())
        options = {**dict(visit.options), part.name.lower(): action.argument}
        return replace(visit, page="item", options=tuple(options.items()))

    def _press(self, visit: Visit, label: str) -> Visit | None:
        """The visit after a button, by its label: it takes precedence over an option of the same name."""
        if label == pages.BUY.lower():
            return replace(visit, page="done")
        if label == pages.BACK.lower():
            return Visit()
        if label == pages.NEXT.lower() and visit.page == "results":
            return replace(visit, number=visit.number + 1)
        if label == pages.PREVIOUS.lower():
            if visit.page == "results":
                return replace(visit, number=visit.number - 1)
            if visit.page == "sub":
                return replace(visit, page="item", sub_page="")
            return Visit("results", visit.query, visit.number)
        if label in _SUB_PAGES:
            return replace(visit, page="sub", sub_page=_SUB_PAGES[label])
        return None
