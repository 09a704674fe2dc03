"""Products: from the official raw records to what the shop shows, searches and scores."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

NO_ATTRIBUTES = ("DUMMY_ATTR",)
"""what the original gives a product that its attribute file lacks; it takes part in fuzzy matching"""
DEFAULT_PRICE = 100.0
"""dollars, where a record gives none"""
_LONGEST_ASIN = 10
_NOT_A_NUMBER = re.compile(r"[^\d.]")


@dataclass(frozen=True, slots=True)
class Product:
    """A product of the shop."""

    asin: str
    title: str
    description: str
    features: tuple[str, ...]
    """the bullet points"""
    price_tag: str
    """as shown: ``$9.99`` or ``$9.99 to $19.99``"""
    prices: tuple[float, ...]
    """one price in dollars, or the two ends of a range"""
    category: str
    query: str
    """the search that the product was found by when the catalogue was made; its fine category"""
    product_category: str
    """path of categories, joined by ``›``"""
    options: tuple[tuple[str, tuple[str, ...]], ...]
    """names and values in lower case"""
    attributes: tuple[str, ...]
    image: str = ""
    instruction: str | None = None
    """of synthetic goals: what to look for, without options and price"""
    instruction_attributes: tuple[str, ...] = ()

    def pack(self) -> bytes:
        """A compact form, for the compiled catalogue."""
        return json.dumps(astuple(self), ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Product:
        """The product that ``pack`` wrote."""
        fields = json.loads(data)
        for place in (3, 5, 10, 13):
            fields[place] = tuple(fields[place])
        fields[9] = tuple((name, tuple(values)) for name, values in fields[9])
        return cls(*fields)

    @property
    def search_text(self) -> str:
        """The text that the search engine indexes."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options)
        first = self.features[0] if self.features else ""
        return f"{self.title} {self.description} {first} {options}".lower()


def parse_product(
    record: Mapping[str, Any], attributes: Mapping[str, Mapping[str, Any]]
) -> Product | None:
    """A product from a raw record, or ``None`` where the original drops it (an asin that is none).

    Args:
        record: an entry of ``items_shuffle*.json``.
        attributes: ``items_ins_v2*.json``: by asin, ``attributes`` and, for some, ``instruction``.

    Raises:
        ValueError: a field is missing or not of the official form; names it.
    """
    if not isinstance(record, Mapping):
        raise ValueError(f"A product is an object, got {type(record).__name__}: {record!r:.40}.")
    try:
        asin = record["asin"]
        if asin == "nan" or len(asin) > _LONGEST_ASIN:
            return None
        bullets, listed = record["small_description"], attributes.get(asin)
        extra = {} if listed is None else listed
        if not isinstance(extra, Mapping):
            raise TypeError(f"its entry of attributes is {extra!r:.60}, expected an object")
        own = extra.get("attributes")
        tag, prices = _parse_pricing(record.get("pricing"))
        return Product(
            asin=text(asin, "asin"),
            title=text(record["name"], "name"),
            description=text(record["full_description"] or "", "full_description"),
            features=texts(bullets, "small_description")
            if isinstance(bullets, list)
            else (text(bullets or "", "small_description"),),
            price_tag=tag,
            prices=prices,
            category=text(record["category"], "category"),
            query=text(record["query"], "query").lower().strip(),
            product_category=text(record["product_category"], "product_category"),
            options=_parse_options(record["customization_options"]),
            attributes=NO_ATTRIBUTES if own is None else texts(own, "attributes"),
            image=_first_image(record.get("images")),
            instruction=None
            if extra.get("instruction") is None
            else text(extra["instruction"], "instruction"),
            instruction_attributes=texts(
                extra.get("instruction_attributes"), "instruction_attributes"
            ),
        )
    except KeyError as error:
        raise ValueError(
            f"Product {record.get('asin', '(no asin)')!r} lacks the field {error}; "
            "expected a record of the official items_shuffle form."
        ) from error
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"Product {record.get('asin', '(no asin)')!r} is not of the official form: {error}."
        ) from error


def text(value: Any, field: str) -> str:
    """A field that holds a text.

    Raises:
        TypeError: it does not; names it.
    """
    if not isinstance(value, str):
        raise TypeError(f"{field} is {value!r:.60}, expected text")
    return value


def texts(value: Any, field: str) -> tuple[str, ...]:
    """A field that holds a list of texts; null is an empty one.

    Raises:
        TypeError: it does not, as with one text, which is no list of letters; names the field.
    """
    listed = [] if value is None else value
    if not isinstance(listed, list | tuple) or not all(isinstance(one, str) for one in listed):
        raise TypeError(f"{field} is {value!r:.60}, expected a list of texts")
    return tuple(listed)


def _first_image(images: Any) -> str:
    if not isinstance(images, list | None):
        raise TypeError(f"images is {images!r:.60}, expected a list")
    return text((images or [""])[0] or "", "images")


def _parse_pricing(pricing: Any) -> tuple[str, tuple[float, ...]]:
    """Price tag and prices of ``$1,234.50`` or ``$19.99 - $27.99``, or of a number, in dollars."""
    if pricing is None or pricing == "":
        return f"${DEFAULT_PRICE}", (DEFAULT_PRICE,)
    if type(pricing) in (int, float) and 0 <= pricing < float("inf"):
        return f"${float(pricing)}", (float(pricing),)
    try:
        parts = text(pricing, "pricing").split("$")[1:]
        prices = tuple(float(_NOT_A_NUMBER.sub("", part)) for part in parts)
    except ValueError:
        prices = ()
    if not prices:
        raise TypeError(f"pricing is {pricing!r:.60}, expected a price such as $9.99")
    if len(prices) == 1:
        return f"${prices[0]}", prices
    return f"${prices[0]} to ${prices[1]}", prices[:2]


def _parse_options(raw: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    options: dict[str, tuple[str, ...]] = {}
    try:
        for name, contents in (raw or {}).items():
            if contents is not None:
                values = [text(content["value"], f"the value of {name!r}") for content in contents]
                options[name.lower()] = tuple(
                    value.strip().replace("/", " | ").lower() for value in values
                )
    except (AttributeError, KeyError, TypeError) as error:
        raise TypeError(
            f"customization_options is {raw!r:.60}, expected name -> list of objects with 'value' "
            f"({error})"
        ) from error
    return tuple(options.items())
