"""The values that a setting may have, declared at its field (``lr: AtLeastZero``), and their descriptions.

Pydantic checks the declarations; errors and the page of settings describe them in the same words.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any

from annotated_types import Ge, GroupedMetadata, Gt, Interval, Le, Lt, MinLen
from pydantic import BeforeValidator


def _number(value: Any) -> Any:
    """YAML reads ``1e-4`` as a text."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            pass
    return value


def yaml_switch(value: Any) -> Any:
    """YAML reads ``on`` and ``off`` as true and false."""
    return ("on" if value else "off") if isinstance(value, bool) else value


Number = Annotated[float, BeforeValidator(_number)]
Count = Annotated[int, Ge(0)]
Positive = Annotated[int, Ge(1)]
AtLeastZero = Annotated[Number, Ge(0)]
AtLeastOne = Annotated[Number, Ge(1)]
AboveZero = Annotated[Number, Gt(0)]
Share = Annotated[Number, Interval(ge=0, le=1)]
PositiveShare = Annotated[Number, Interval(gt=0, le=1)]
ShareBelowOne = Annotated[Number, Interval(ge=0, lt=1)]
Text = Annotated[str, MinLen(1)]
# NumPy, PyTorch and vLLM all accept the seeds in this range.
Seed = Annotated[int, Interval(ge=0, lt=2**32)]


def allowed(kind: Any) -> str:
    """The values that a type's declarations allow, in words; empty: all of the type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union, tuple):
        words = next((w for a in arguments if (w := allowed(a))), "")
        return f"{words}, or null" if words and type(None) in arguments else words
    bounds = list(_bounds(kind))
    low = next((b for b in bounds if isinstance(b, Ge | Gt)), None)
    high = next((b for b in bounds if isinstance(b, Le | Lt)), None)
    if low is not None and high is not None:
        left = f"[{low.ge}" if isinstance(low, Ge) else f"({low.gt}"
        right = f"{high.le}]" if isinstance(high, Le) else f"{high.lt})"
        return f"in {left}, {right}"
    if low is not None:
        return f"{low.ge} or more" if isinstance(low, Ge) else f"above {low.gt}"
    if any(isinstance(b, MinLen) for b in bounds):
        return "not empty"
    return allowed(arguments[0]) if origin is Annotated else ""


def _bounds(kind: Any) -> Iterator[Any]:
    if typing.get_origin(kind) is Annotated:
        for item in typing.get_args(kind)[1:]:
            yield from item if isinstance(item, GroupedMetadata) else (item,)


def type_name(kind: Any) -> str:
    """A type as a reader writes it: ``int``, ``float or null``, ``one of 'a', 'b'``."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        named = ["null" if a is type(None) else type_name(a) for a in arguments]
        return " or ".join(named)
    if origin is Annotated:
        return type_name(arguments[0])
    if origin is typing.Literal:
        return "one of " + ", ".join(map(repr, arguments))
    if origin in (list, tuple, dict):
        inside = ", ".join(type_name(a) for a in arguments if a is not Ellipsis)
        return f"{origin.__name__}[{inside}]"
    return getattr(kind, "__name__", str(kind)).replace("Any", "any")
