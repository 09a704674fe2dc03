"""Products, and the official data on disk, read without holding all of it in memory."""

from __future__ import annotations

import errno
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from paw_gym.envs.webshop.catalogue import (
    FORMAT,
    Catalogue,
    Product,
    compile_catalogue,
    is_compiled,
    open_catalogue,
    text,
    texts,
)
from paw_gym.generated import require_count
from paw_gym.internals.files import DAMAGED, cache_dir, file_version, open_text, private_folder

NO_ATTRIBUTES = ("DUMMY_ATTR",)
"""of a product that the attribute file lacks, as in the original; they take part in fuzzy matching"""
DEFAULT_PRICE = 100.0
"""dollars, if a record gives no price"""
_LONGEST_ASIN = 10
_NOT_A_NUMBER = re.compile(r"[^\d.]")


def parse_product(
    record: Mapping[str, Any], attributes: Mapping[str, Mapping[str, Any]]
) -> Product | None:
    """A product from a raw record, or ``None`` if the original drops it (an asin that is not one)."""
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
        raise ValueError(f"Product {record.get('asin')!r} lacks the field {error}.") from error
    except (AttributeError, TypeError) as error:
        raise ValueError(
            f"Product {record.get('asin')!r} is not of the official form: {error}."
        ) from error


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
                values = texts([content["value"] for content in contents], name)
                shown = [value.strip().replace("/", " | ").lower() for value in values]
                options[name.lower()] = tuple(shown)
    except (AttributeError, KeyError, TypeError) as error:
        raise TypeError(
            f"customization_options is {raw!r:.60}, expected name -> list of objects with 'value'"
        ) from error
    return tuple(options.items())


SMALL = 1000
"""products in the small official set"""
_PRODUCTS = ("items_shuffle.json", f"items_shuffle_{SMALL}.json")
_ATTRIBUTES = ("items_ins_v2.json", f"items_ins_v2_{SMALL}.json")
_HUMAN = "items_human_ins.json"
_ENDINGS = ("", ".xz", ".gz", ".zst")
_READING = "2"
"""raised when records are read in another way: what was compiled before is no longer used"""
_CHUNK = 1 << 20
_WHITE = " \t\r\n"


class DataFolder:
    """A folder with the official files: the full set, or the small one if it is enough or all there is.

    Args:
        num_products: use the first N products; ``None``: all of them.
    """

    def __init__(self, path: Path, num_products: int | None = None) -> None:
        require_count("num_products", num_products)
        if not path.is_dir():
            raise FileNotFoundError(
                f"data_dir: there is no folder {str(path)!r}. `paw data download webshop` "
                "fetches the official files; without data_dir the products are generated."
            )
        self.path, self.num_products = path, num_products
        self.products_file = self._required("products", _PRODUCTS)
        self.attributes_file = self._required("attributes", _ATTRIBUTES)
        self.human_file = self._find((_HUMAN,))
        """instructions written by people"""

    def _find(self, names: Sequence[str]) -> Path | None:
        candidates = (self.path / (name + end) for name in names for end in _ENDINGS)
        return next((path for path in candidates if path.is_file()), None)

    def _required(self, what: str, names: Sequence[str]) -> Path:
        small_first = self.num_products is not None and self.num_products <= SMALL
        found = self._find(names[::-1] if small_first else names)
        if found is None:
            raise FileNotFoundError(
                f"data_dir: {self.path} holds no file of {what} (such as {names[1]}; .xz and .gz "
                "are read too). `paw data download webshop` fetches the official files."
            )
        return found

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(filter(None, (self.products_file, self.attributes_file, self.human_file)))

    @property
    def has_human_goals(self) -> bool:
        """True if people's goals are the default: for the full set, as few of them are in the small one."""
        full = self.products_file.name.startswith(_PRODUCTS[0])
        return full and self.human_file is not None

    def catalogue(self) -> Catalogue:
        """The compiled catalogue; compiled into the cache folder at first use."""
        # the files' sizes and times stand for their content
        parts = [str(FORMAT), _READING, str(self.num_products)]
        parts += [file_version(path) for path in (self.products_file, self.attributes_file)]
        digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
        return cached_catalogue(f"data-{digest[:20]}", self.products)

    def products(self) -> Iterator[Product]:
        """The products, one after the other."""
        attributes = _object(self.attributes_file)
        records = islice(read_json_list(self.products_file), self.num_products)
        for number, record in enumerate(records, start=1):
            try:
                product = parse_product(record, attributes)
            except ValueError as error:
                raise ValueError(
                    f"{self.products_file}, record {number}: {error} (Attributes and instructions "
                    f"are from {self.attributes_file.name}.)"
                ) from error
            if product is not None:
                yield product

    def human_instructions(self) -> dict[str, list[dict[str, Any]]]:
        """The entries that people wrote, by asin."""
        path = self.human_file
        if path is None:
            raise FileNotFoundError(
                f"goals='human' needs {_HUMAN} in {self.path}; "
                "goals='synthetic' needs no further file."
            )
        found = _object(path)
        for asin, written in found.items():
            try:
                for entry in written:
                    text(entry["instruction"], "instruction")
                    texts(entry.get("instruction_attributes"), "instruction_attributes")
                    options = entry.get("instruction_options")
                    listed = [*options.values()] if isinstance(options, dict) else options
                    texts(listed, "instruction_options")
            except (AttributeError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{path}: an entry of {asin!r} is not of the official form: {error}."
                ) from error
        return found


def cached_catalogue(name: str, products: Callable[[], Iterable[Product]]) -> Catalogue:
    """A compiled catalogue of the cache folder, made from ``products()`` if it is not there yet."""
    folder = private_folder("webshop") / name
    if not is_compiled(folder):
        try:
            compile_catalogue(products(), folder)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            raise OSError(
                f"{cache_dir()} cannot be written ({error}), and the products are compiled there: set "
                "PAW_CACHE_DIR to a folder that can."
            ) from error
    return open_catalogue(folder.resolve())


def _object(path: Path) -> dict[str, Any]:
    """The object of a JSON file, compressed or not: asin -> entry."""
    with open_text(path) as file:
        try:
            loaded = json.load(file)
        except DAMAGED as error:
            raise ValueError(f"{path} is damaged: {error}. Download it anew.") from error
    if not isinstance(loaded, dict):
        raise ValueError(
            f"{path} holds a {type(loaded).__name__}; expected an object: asin -> entry."
        )
    return loaded


def read_json_list(path: Path) -> Iterator[Any]:
    """The elements of a JSON list, one after another: the full set would fill the memory."""
    decoder, buffer, at, begun = json.JSONDecoder(), "", 0, False
    with open_text(path) as file:
        while True:
            while at < len(buffer) and buffer[at] in _WHITE + ("," if begun else "["):
                begun = begun or buffer[at] == "["
                at += 1
            if begun and at < len(buffer) and buffer[at] == "]":
                return
            if at < len(buffer) and not begun:
                raise ValueError(f"{path} is not a JSON list.")
            try:
                if at == len(buffer):
                    raise json.JSONDecodeError("more is needed", buffer, at)
                element, at = decoder.raw_decode(buffer, at)
                yield element
            except json.JSONDecodeError as error:
                try:
                    more = file.read(_CHUNK)
                except DAMAGED as damage:
                    raise ValueError(f"{path} is damaged or cut off: {damage}.") from damage
                if not more:
                    raise ValueError(f"{path} is damaged or cut off: {error}.") from error
                buffer, at = buffer[at:] + more, 0
