"""The official data on disk: which files a folder holds, read without holding them in memory whole."""

from __future__ import annotations

import atexit
import errno
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from paw_gym.cache import cache_dir, private_folder
from paw_gym.envs.webshop.catalogue import FORMAT, Catalogue, compile_catalogue, is_compiled
from paw_gym.envs.webshop.records import Product, parse_product, text, texts
from paw_gym.files import DAMAGED, file_version, open_text

SMALL = 1000
"""products in the small official set"""
_PRODUCTS = ("items_shuffle.json", f"items_shuffle_{SMALL}.json")
_ATTRIBUTES = ("items_ins_v2.json", f"items_ins_v2_{SMALL}.json")
_HUMAN = "items_human_ins.json"
_ENDINGS = ("", ".xz", ".gz", ".zst")
_READING = "2"
"""raised when records are read another way: what was compiled before is not used any more"""
_CHUNK = 1 << 20
_WHITE = " \t\r\n"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataFolder:
    """A folder with the official files.

    Args:
        path: the folder.
        num_products: use the first so many products; ``None``: all of them.

    Raises:
        FileNotFoundError: a file is missing; states which and what to do.
        ValueError: ``num_products`` is not positive.
    """

    path: Path
    num_products: int | None = None

    def __post_init__(self) -> None:
        if self.num_products is not None and self.num_products < 1:
            raise ValueError(f"num_products must be at least 1, got {self.num_products}.")
        if not self.path.is_dir():
            raise FileNotFoundError(
                f"data_dir: there is no folder {str(self.path)!r}. `paw data download webshop` "
                "fetches the official files; without data_dir the products are generated."
            )
        for name, files in (("products", self.products_file), ("attributes", self.attributes_file)):
            if files is None:
                wanted = _PRODUCTS[1] if name == "products" else _ATTRIBUTES[1]
                raise FileNotFoundError(
                    f"data_dir: {self.path} holds no file of {name} (such as {wanted}; .xz and .gz "
                    "are read too). `paw data download webshop` fetches the official files."
                )

    def _find(self, names: tuple[str, ...]) -> Path | None:
        candidates = (self.path / (name + end) for name in names for end in _ENDINGS)
        return next((path for path in candidates if path.is_file()), None)

    @property
    def _small_first(self) -> bool:
        return self.num_products is not None and self.num_products <= SMALL

    @property
    def products_file(self) -> Path | None:
        """The full set where it is there, else the small one; the other way round for few products."""
        return self._find(_PRODUCTS[::-1] if self._small_first else _PRODUCTS)

    @property
    def attributes_file(self) -> Path | None:
        """Attributes and instructions that belong to the products."""
        return self._find(_ATTRIBUTES[::-1] if self._small_first else _ATTRIBUTES)

    @property
    def human_file(self) -> Path | None:
        """Instructions written by people."""
        return self._find((_HUMAN,))

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that are there."""
        files = (self.products_file, self.attributes_file, self.human_file)
        return tuple(path for path in files if path is not None)

    @property
    def has_human_goals(self) -> bool:
        """Whether people's goals are the usual ones: for the full set, of which few are in the small one."""
        products = self.products_file
        full = products is not None and products.name.startswith(_PRODUCTS[0])
        return full and self.human_file is not None

    def _digest(self) -> str:
        """Names the source of a compiled catalogue; the files' sizes and times stand for their content."""
        parts = [str(FORMAT), _READING, str(self.num_products)]
        for path in (self.products_file, self.attributes_file):
            assert path is not None
            parts.append(file_version(path))
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]

    def catalogue(self) -> Catalogue:
        """The compiled catalogue; compiled into the cache folder at first use."""
        return cached_catalogue(f"data-{self._digest()}", self.products)

    def products(self) -> Iterator[Product]:
        """The products, one after the other."""
        assert self.products_file is not None and self.attributes_file is not None
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
        """By asin, what people wrote.

        Raises:
            FileNotFoundError: the folder has no such file.
            ValueError: it is not of the official form; names the product and the field.
        """
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


def cached_catalogue(name: str, products: Any) -> Catalogue:
    """A compiled catalogue of the cache folder, made from ``products()`` where it is not there yet.

    Where the cache folder cannot be written, it goes to a temporary folder, which ends with this process.
    """
    folder = private_folder("webshop") / name
    if not is_compiled(folder):
        try:
            compile_catalogue(products(), folder)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            temporary = Path(tempfile.mkdtemp(prefix="paw-webshop-"))
            atexit.register(_remove, temporary, os.getpid())
            folder = temporary / name
            _log.warning(
                "%s cannot be written (%s): the catalogue goes to %s and is compiled anew by every "
                "process. Set PAW_CACHE_DIR to a folder that can be written.",
                cache_dir(),
                error,
                folder,
            )
            compile_catalogue(products(), folder)
    return Catalogue.open(folder)


def _remove(folder: Path, process: int) -> None:
    """Deletes a temporary folder, unless a fork of the process that made it ends first."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def read_json(path: Path) -> Any:
    """The content of a JSON file, compressed or not.

    Raises:
        ValueError: it is damaged, or no JSON.
    """
    with open_text(path) as file:
        try:
            return json.load(file)
        except DAMAGED as error:
            raise ValueError(f"{path} is damaged: {error}. Download it anew.") from error


def _object(path: Path) -> dict[str, Any]:
    """The object of a JSON file, asin -> entry."""
    loaded = read_json(path)
    if not isinstance(loaded, dict):
        raise ValueError(
            f"{path} holds a {type(loaded).__name__}; expected an object: asin -> entry."
        )
    return loaded


def read_json_list(path: Path) -> Iterator[Any]:
    """The elements of a JSON list, one after the other: the full set would fill the memory.

    Raises:
        ValueError: it is no list, or damaged.
    """
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
