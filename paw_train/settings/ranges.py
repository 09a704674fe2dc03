"""Which values a setting may have, declared at its field: ``lr: Annotated[float, Ge(0)]``.

The declarations are those of ``annotated-types``, which other validators read too. An error names the
setting, what is allowed and what was given; the page of settings shows the same words.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any

from annotated_types import Ge, GroupedMetadata, Gt, Interval, Le, Lt, MinLen

from paw_gym.naming import did_you_mean

Count = Annotated[int, Ge(0)]
Positive = Annotated[int, Ge(1)]
AtLeastZero = Annotated[float, Ge(0)]
AboveZero = Annotated[float, Gt(0)]
Share = Annotated[float, Interval(ge=0, le=1)]
PositiveShare = Annotated[float, Interval(gt=0, le=1)]
Text = Annotated[str, MinLen(1)]


def check_fields(settings: Any, where: str = "") -> None:
    """Raises ``ValueError`` for a value that its field's declaration does not allow.

    Args:
        settings: a settings dataclass.
        where: dotted name of the group, for the message.
    """
    cls: Any = type(settings)
    for field in dataclasses.fields(settings):
        kind = declared(cls)[field.name]
        check_value(kind, getattr(settings, field.name), f"{where}.{field.name}".lstrip("."))


@cache
def declared(cls: Any) -> dict[str, Any]:
    """The types of a class's fields, with what is declared about their values."""
    return typing.get_type_hints(cls, include_extras=True)


def check_value(kind: Any, value: Any, name: str, also: str = "") -> None:
    """Raises ``ValueError`` unless a type's declarations allow the value; its type is not looked at.

    Args:
        kind: a type, such as ``Annotated[int, Ge(1)] | None`` or a ``Literal``.
        value: what was given.
        name: dotted name of the setting.
        also: what is allowed besides, for the message.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is not None or type(None) not in arguments:
            also = ", or null" if type(None) in arguments else ""
            check_value(next(a for a in arguments if a is not type(None)), value, name, also)
    elif origin is typing.Literal:
        if value not in arguments:
            hint = did_you_mean(str(value), [str(a) for a in arguments])
            raise ValueError(f"{name}: {value!r} is not available. {hint}")
    elif origin is tuple:
        for part, item in zip(arguments, value, strict=False):
            check_value(part, item, name)
    elif origin is Annotated:
        check_value(arguments[0], value, name, also)
        if not all(_holds(bound, value) for bound in _bounds(kind)):
            raise ValueError(f"{name} is {allowed(kind)}{also}, got {value!r}.")
    elif kind is float and not math.isfinite(value):
        raise ValueError(f"{name} is a finite number, got {value!r}.")


def allowed(kind: Any) -> str:
    """The values that a type's declarations allow, in words; empty: all of the type."""
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
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
    return "not empty" if any(isinstance(b, MinLen) for b in bounds) else ""


def _bounds(kind: Any) -> Iterator[Any]:
    if typing.get_origin(kind) is Annotated:
        for item in typing.get_args(kind)[1:]:
            yield from item if isinstance(item, GroupedMetadata) else (item,)


def _holds(bound: Any, value: Any) -> bool:
    match bound:
        case Ge(ge=limit):
            return bool(value >= limit)
        case Gt(gt=limit):
            return bool(value > limit)
        case Le(le=limit):
            return bool(value <= limit)
        case Lt(lt=limit):
            return bool(value < limit)
        case MinLen(min_length=limit):
            return len(value) >= limit
    raise TypeError(f"A setting declares {bound!r}, which is not checked here.")
