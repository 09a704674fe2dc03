"""One text for equal values, in every process: what fingerprints are made from."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence, Set
from types import FunctionType
from typing import Any

import numpy as np

_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+")


def canonical(value: Any) -> str:
    """The text of a value; for JSON values it is their JSON with sorted keys."""
    try:
        return json.dumps(value, sort_keys=True)  # the fast way, for what is JSON already
    except TypeError:
        return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        kinds = {type(key) for key in value}
        if len(kinds) <= 1 and kinds <= {str, int, float, bool, type(None)}:
            return {key: _plain(item) for key, item in value.items()}
        return {"mapping": sorted([canonical(key), canonical(item)] for key, item in value.items())}
    if isinstance(value, Set):
        return {"set": sorted(map(canonical, value))}
    if isinstance(value, bytes | bytearray):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    if not hasattr(value, "__array__"):
        return _plain_object(value)
    array = np.asarray(value)
    if array.dtype.hasobject:
        return {"array": _plain(array.tolist())}
    digest = hashlib.sha256(array.tobytes()).hexdigest()
    return {"array": [array.dtype.str, list(array.shape), digest]}


def is_json(value: Any) -> bool:
    """True if JSON can hold a value."""
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


def _plain_object(value: Any) -> Any:
    if isinstance(value, FunctionType | type):
        return f"{value.__module__}.{value.__qualname__}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.asdict(value)  # dataclasses in its fields as well
        if not is_json(fields) or not all(field.repr for field in dataclasses.fields(value)):
            return {type(value).__qualname__: _plain(fields)}
    text = repr(value)
    if _ADDRESS.search(text):
        raise TypeError(
            f"a {type(value).__qualname__} is known only by where it lies in memory: make it a dataclass, "
            "or give it a __repr__ that tells what it holds"
        )
    return text


def require_json(value: Any, where: str) -> None:
    """Raises ``TypeError`` unless JSON gives back an equal value: not so for tuples, NumPy types, NaN."""
    if type(value) is float and not math.isfinite(value):
        raise TypeError(f"{where} is {value}, which JSON has no number for. Use None instead.")
    if value is None or type(value) in (bool, int, float, str):
        return
    if type(value) is list:
        for i, item in enumerate(value):
            require_json(item, f"{where}[{i}]")
        return
    if type(value) is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise TypeError(
                    f"{where}: the key {key!r} is a {type(key).__name__}; expected a str."
                )
            require_json(item, f"{where}[{key!r}]")
        return
    raise TypeError(
        f"{where} holds a {type(value).__name__}; expected None, bool, int, float, str, list or dict. "
        "Convert it in the environment (for example with list(...) or float(...))."
    )
