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
        bullets = record["small_description"]
        tag, prices = _parse_pricing(record.get("pricing"))
        extra = attributes.get(asin, {})
        return Product(
            asin=asin,
            title=_string(record, "name"),
            description=record["full_description"] or "",
            features=tuple(bullets) if isinstance(bullets, list) else (bullets or "",),
            price_tag=tag,
            prices=prices,
            category=_string(record, "category"),
            query=_string(record, "query").lower().strip(),
            product_category=_string(record, "product_category"),
            options=_parse_options(record["customization_options"]),
            attributes=tuple(extra.get("attributes", NO_ATTRIBUTES)),
            image=(record.get("images") or [""])[0] or "",
            instruction=extra.get("instruction"),
            instruction_attributes=tuple(extra.get("instruction_attributes") or ()),
        )
    except KeyError as error:
        raise ValueError(
            f"Product {record.get('asin', '(no asin)')!r} lacks the field {error}; "
            "expected a record of the official items_shuffle form."
        ) from error
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"Product {record.get('asin', '(no asin)')!r} is not of the official form: {error}."
        ) from error


def _string(record: Mapping[str, Any], name: str) -> str:
    value = record[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r:.40}, expected text")
    return value


def _parse_pricing(pricing: str | None) -> tuple[str, tuple[float, ...]]:
    """Price tag and prices of ``$1,234.50`` or ``$19.99 - $27.99``."""
    if not pricing:
        return f"${DEFAULT_PRICE}", (DEFAULT_PRICE,)
    prices = tuple(float(_NOT_A_NUMBER.sub("", part)) for part in pricing.split("$")[1:])
    if not prices:
        raise TypeError(f"no price in {pricing!r}")
    if len(prices) == 1:
        return f"${prices[0]}", prices
    return f"${prices[0]} to ${prices[1]}", prices[:2]


def _parse_options(raw: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    options: dict[str, tuple[str, ...]] = {}
    for name, contents in (raw or {}).items():
        if contents is not None:
            options[name.lower()] = tuple(
                content["value"].strip().replace("/", " | ").lower() for content in contents
            )
    return tuple(options.items())
