"""The shop's pages as data: the same page gives the text observation, what can be clicked, and HTML.

A page is a sequence of parts in reading order; what is shown and in which order follows the original's
templates. ``env_servers/webshop`` renders the same objects for a browser.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from paw_gym.envs.webshop.catalogue import Product
from paw_gym.envs.webshop.reward import Score

SEPARATOR = " [SEP] "
PAGE_SIZE = 10
"""products on a page of results"""
BACK, PREVIOUS, NEXT, BUY = "Back to Search", "< Prev", "Next >", "Buy Now"
SUB_PAGES = ("Description", "Features", "Reviews")
ATTRIBUTES = "Attributes"
"""a sub-page that is shown with ``show_attributes``"""

Role = Literal["text", "button", "link", "option"]


class Part(NamedTuple):
    """A visible string."""

    text: str
    role: Role = "text"
    name: str = ""
    """of an option: what it is a choice of"""


@dataclass(frozen=True)
class Page:
    """Base of the pages."""

    instruction: str

    def parts(self) -> Iterator[Part]:
        """All visible strings in reading order."""
        raise NotImplementedError

    @cached_property
    def _listed(self) -> list[Part]:
        return list(self.parts())

    def text(self) -> str:
        return SEPARATOR.join([text for part in self._listed if (text := part[0].strip())])

    @cached_property
    def clickables(self) -> dict[str, Part]:
        """The parts that can be clicked, by their text in lower case; options come last. Of two with the same
        text the later one counts, in the earlier one's place."""
        found: dict[str, Part] = {}
        for role in ("button", "link"):
            found |= {part.text.lower(): part for part in self._listed if part.role == role}
        return found | {part.text: part for part in self._listed if part.role == "option"}

    def _head(self) -> Iterator[Part]:
        yield Part("Instruction:")
        yield Part(self.instruction)
        yield Part(BACK, "button")


@dataclass(frozen=True)
class SearchPage(Page):
    """The first page of a visit: a field to search from."""

    def parts(self) -> Iterator[Part]:
        yield Part("WebShop")
        yield Part("Instruction:")
        yield Part(self.instruction)
        yield Part("Search", "button")


@dataclass(frozen=True)
class ResultsPage(Page):
    """A page of search results."""

    query: str
    number: int
    """of the page, from 1"""
    total: int
    """results on all pages"""
    products: tuple[Product, ...]

    def parts(self) -> Iterator[Part]:
        """Head, page number, paging buttons, then asin, title and price of each product."""
        yield from self._head()
        yield Part(f"Page {self.number} (Total results: {self.total})")
        if self.number > 1:
            yield Part(PREVIOUS, "button")
        yield Part(NEXT, "button")  # on the last page too, as in the original
        for product in self.products:
            yield Part(product.asin, "link")
            yield Part(product.title)
            yield Part(product.price_tag)


@dataclass(frozen=True)
class ItemPage(Page):
    """A product: its options, and the way to buy it."""

    product: Product
    chosen: dict[str, str] = field(default_factory=dict)
    """values by option name; they do not show in the text"""
    show_attributes: bool = False

    @property
    def sub_pages(self) -> tuple[str, ...]:
        """Names of the pages behind the product's."""
        return (*SUB_PAGES, ATTRIBUTES) if self.show_attributes else SUB_PAGES

    def parts(self) -> Iterator[Part]:
        """Head, options, title, price, rating (the data has none), sub-pages, buy button."""
        yield from self._head()
        yield Part(PREVIOUS, "button")
        for name, values in self.product.options:
            yield Part(name)
            for value in values:
                yield Part(value, "option", name)
        yield Part(self.product.title)
        yield Part(f"Price: {self.product.price_tag}")
        yield Part("Rating: N.A.")
        for name in self.sub_pages:
            yield Part(name, "button")
        yield Part(BUY, "button")


@dataclass(frozen=True)
class SubPage(Page):
    """More about a product: description, features, reviews or attributes."""

    product: Product
    name: str

    @property
    def texts(self) -> tuple[str, ...]:
        """Its text. The data has no reviews."""
        if self.name == "Description":
            return (self.product.description,)
        if self.name == "Features":
            return self.product.features
        if self.name == ATTRIBUTES:
            product = self.product
            return (*product.attributes, product.category, product.query, product.product_category)
        return ()

    def parts(self) -> Iterator[Part]:
        yield from self._head()
        yield Part(PREVIOUS, "button")
        for text in self.texts:
            yield Part(text)


_HTML_SAFE = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "'": "\\u0027"})
"""characters that the original's templates escape in JSON"""


@dataclass(frozen=True)
class DonePage(Page):
    """After the purchase: the score."""

    product: Product
    chosen: dict[str, str]
    score: Score

    def parts(self) -> Iterator[Part]:
        """The original's page, whose text mode shows the empty fields of its hidden form too."""
        chosen = json.dumps(self.chosen, sort_keys=True).translate(_HTML_SAFE)
        words = (
            *("Thank you for shopping with us!", "Your code:", "None"),
            *("(Paste it in your MTurk interface.)", "Purchased", "asin", self.product.asin),
            *("options", chosen, "attrs", "None", "category", "None", "query", "None"),
            *("product category", "None", "Target", "asin", "options", "attrs", "price upper"),
            # "instuction" is the original's spelling
            *("instuction text", "category", "product category", "query", "Goal", "None"),
            *("Reward", "Your score (min 0.0, max 1.0)", str(self.score.reward)),
            *("Reward Details", "None"),
        )
        yield from map(Part, words)
