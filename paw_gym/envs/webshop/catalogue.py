"""The catalogue: products and their search index, compiled once and mapped into memory.

A compiled catalogue is a folder: ``products.bin`` (a JSON array per product), ``offsets.npy`` (where each
begins), ``asins.npy`` (sorted), ``by_asin.npy`` (their places), ``search/`` (the BM25 index over the products
in the order of their asins, which decides between equal scores as in the original's index), and
``catalogue.json``.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paw_gym.internals.files import new_folder, write_json
from paw_gym.retrieval.base import Passage
from paw_gym.retrieval.bm25_index import BM25Index, build_index

FORMAT = 1
"""of compiled catalogues; a folder of another format is compiled anew"""
_META, _SEARCH = "catalogue.json", "search"
_KEPT_PRODUCTS = 8192


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
    """for synthetic goals: what to look for, without options and price"""
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


def text(value: Any, field: str) -> str:
    """A field that holds a text."""
    if not isinstance(value, str):
        raise TypeError(f"{field} is {value!r:.60}, expected text")
    return value


def texts(value: Any, field: str) -> tuple[str, ...]:
    """A field that holds a list of texts; null is an empty one."""
    listed = [] if value is None else value
    if not isinstance(listed, list | tuple) or not all(isinstance(one, str) for one in listed):
        raise TypeError(f"{field} is {value!r:.60}, expected a list of texts")
    return tuple(listed)


class Catalogue:
    """The products of a compiled folder, in their original order; ``open_catalogue`` opens one."""

    def __init__(self, folder: Path) -> None:
        meta = json.loads((folder / _META).read_text(encoding="utf-8"))
        self.folder = folder
        self.fingerprint: str = meta["fingerprint"]
        """hash of all products, and of the way they are searched"""
        self._offsets: npt.NDArray[np.int64] = _mapped(folder / "offsets.npy")
        self._asins: npt.NDArray[np.bytes_] = _mapped(folder / "asins.npy")
        self.asin_order: npt.NDArray[np.int32] = _mapped(folder / "by_asin.npy")
        """places of the products in the order of their asins"""
        with (folder / "products.bin").open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._load = lru_cache(maxsize=_KEPT_PRODUCTS)(self.read)

    @cached_property
    def search_index(self) -> BM25Index:
        """The index; its positions are places in ``asin_order``."""
        return BM25Index.load(self.folder / _SEARCH)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, number: int) -> Product:
        if not 0 <= number < len(self):
            raise IndexError(f"There are {len(self)} products, none has number {number}.")
        return self._load(number)

    def __iter__(self) -> Iterator[Product]:
        return (self.read(number) for number in range(len(self)))

    def read(self, number: int) -> Product:
        """The product at a place, read anew; ``catalogue[number]`` keeps the latest ones."""
        return Product.unpack(self._data[self._offsets[number] : self._offsets[number + 1]])

    def number_of(self, asin: str) -> int:
        """The place of a product."""
        if asin not in self:
            raise KeyError(f"The catalogue has no product {asin!r}.")
        return int(self.asin_order[np.searchsorted(self._asins, asin.encode())])

    def __contains__(self, asin: str) -> bool:
        code = asin.encode()
        place = int(np.searchsorted(self._asins, code))
        return place < len(self._asins) and bool(self._asins[place] == code)

    def by_asin(self, asin: str) -> Product:
        return self[self.number_of(asin)]


def _mapped(path: Path) -> npt.NDArray[Any]:
    """The array of a file, read when it is needed."""
    return np.asarray(np.load(path, mmap_mode="r"))


@lru_cache(maxsize=8)
def open_catalogue(folder: Path) -> Catalogue:
    """The catalogue of a compiled folder; the same object if it is already open."""
    return Catalogue(folder)


def is_compiled(folder: Path) -> bool:
    """True if a folder holds a catalogue of the present format."""
    try:
        meta = json.loads((folder / _META).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(meta, dict) and meta.get("format") == FORMAT


class _SearchTexts:
    """The texts of the products that the search engine indexes, in the order of their asins."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self.fingerprint = catalogue.fingerprint

    def __len__(self) -> int:
        return len(self._catalogue)

    def __getitem__(self, place: int) -> Passage:
        product = self._catalogue.read(int(self._catalogue.asin_order[place]))
        return Passage(product.asin, product.search_text)


def compile_catalogue(products: Iterable[Product], folder: Path) -> Path:
    """Writes the compiled form of products, of those with the same asin the first one; the folder appears
    only when it is complete."""
    with new_folder(folder, is_compiled) as staging:
        _write_products(products, staging)
        # a sequence of passages is all that the index asks of a corpus
        build_index(_SearchTexts(Catalogue(staging)), staging / _SEARCH)  # type: ignore[arg-type]
    return folder


def _write_products(products: Iterable[Product], folder: Path) -> None:
    offsets = array("q", [0])
    digest = hashlib.sha256(f"webshop catalogue {FORMAT}".encode())
    asins: dict[str, None] = {}
    with (folder / "products.bin").open("wb") as file:
        for product in products:
            if product.asin in asins:
                continue
            asins[product.asin] = None
            packed = product.pack()
            digest.update(packed)
            offsets.append(file.write(packed) + offsets[-1])
    if not asins:
        raise ValueError("There is no product to make a catalogue of.")
    names = np.array([asin.encode() for asin in asins])
    order = np.argsort(names, kind="stable").astype(np.int32)
    np.save(folder / "offsets.npy", np.frombuffer(offsets, dtype=np.int64))
    np.save(folder / "asins.npy", names[order])
    np.save(folder / "by_asin.npy", order)
    meta = {"format": FORMAT, "products": len(asins), "fingerprint": digest.hexdigest()}
    write_json(folder / _META, meta)
