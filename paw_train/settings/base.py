"""The base of every group of settings: values declared at their fields, checked with one-line errors.

Pydantic checks the declarations; errors and the page of settings describe them in the same words.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, Self

from annotated_types import Ge, GroupedMetadata, Gt, Interval, Le, Lt, MinLen
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from paw_gym.internals.naming import did_you_mean, offer, similar


class Group(BaseModel):
    """A group of settings: typed fields, a docstring under each, and groups inside it."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @classmethod
    def read(cls, data: Any, where: str = "") -> Self:
        """The settings in nested plain values, such as a recipe's; missing ones have their defaults.

        Raises:
            ValueError: an unknown key (names the nearest), a value of the wrong type or out of its
                range (names the key), or settings that do not fit together.
        """
        if not isinstance(data, Mapping):
            raise ValueError(_no_group(where, data))
        try:
            return cls.model_validate(dict(data))
        except ValidationError as error:
            raise ValueError(_line(cls, error, where)) from None

    def replace(self, **changes: Any) -> Self:
        """The same settings with these changes, checked like any others; see ``read``."""
        return self.read({**dict(self), **changes})


def field_kinds(cls: type[Group]) -> dict[str, Any]:
    """The types of a group's fields, with their ranges; a list of groups counts as the group."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {
        name: next((part for part in typing.get_args(hints[name]) if is_group(part)), hints[name])
        for name in cls.model_fields
    }


def groups_of(cls: type[Group], where: str = "") -> Iterator[tuple[str, type[Group]]]:
    """(dotted name, class) of a group and those inside it, outer ones first."""
    yield where, cls
    for name, kind in field_kinds(cls).items():
        if is_group(kind):
            yield from groups_of(kind, f"{where}.{name}".lstrip("."))


def is_group(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Group)


def _line(cls: type[Group], error: ValidationError, where: str) -> str:
    first = error.errors(include_url=False)[0]
    kind, path, inner = _place(cls, first["loc"])
    name = ".".join(filter(None, (where, *path)))
    value: Any = first["input"]
    match first["type"]:
        case "extra_forbidden" | "invalid_key":
            given, names = str(inner[0]), list(kind.model_fields)
            prefix = f"{name}." if name else ""
            near = [prefix + one for one in similar(given, names)] or [
                f"{g}.{given}".lstrip(".")
                for g, k in groups_of(cls, where)
                if given in k.model_fields
            ]
            hint, whose = f"{offer(near[:3])} " if near else "", f" of {name}" if name else ""
            return f"Unknown setting {prefix + given!r}. {hint}Settings{whose}: {', '.join(names)}."
        case "value_error":
            return str(first["ctx"]["error"])
        case "model_type":
            return _no_group(name, value)
        case "literal_error":
            choices = [str(choice) for choice in _choices(kind)]
            return f"{name}: {value!r} is not available. {did_you_mean(str(value), choices)}"
        case "finite_number":
            return f"{name} is a finite number, got {value!r}."
        case "missing" if not inner:
            return f"{name} is needed: {type_name(kind)}."
        case problem if problem.startswith(("greater_than", "less_than", "string_too_short")):
            return f"{name} is {allowed(kind)}, got {value!r}."
    inside = " in it" if inner and first["type"] != "missing" else ""
    return f"{name}: expected {type_name(kind)}, got {value!r} ({type(value).__name__}){inside}."


def _no_group(name: str, value: Any) -> str:
    return f"{name or 'The recipe'} is a group of settings, got {value!r}."


def _place(cls: type[Group], loc: tuple[int | str, ...]) -> tuple[Any, list[str], list[int | str]]:
    """The setting at an error's location: (its type, its names, the location inside its value)."""
    kind: Any = cls
    for depth, part in enumerate(loc):
        if not is_group(kind) or part not in kind.model_fields:
            return kind, [str(p) for p in loc[:depth]], list(loc[depth:])
        kind = field_kinds(kind)[str(part)]
    return kind, [str(p) for p in loc], []


def _choices(kind: Any) -> list[Any]:
    arguments = list(typing.get_args(kind))
    literal = typing.get_origin(kind) is typing.Literal
    return arguments if literal else [one for a in arguments for one in _choices(a)]


def _number(value: Any) -> Any:
    """YAML reads ``1e-4`` as text."""
    if isinstance(value, str):
        with suppress(ValueError):
            return float(value)
    return value


def yaml_switch(value: Any) -> Any:
    """YAML reads ``on`` and ``off`` as true and false."""
    return ("on" if value else "off") if isinstance(value, bool) else value


Number = Annotated[float, BeforeValidator(_number)]
Count = Annotated[int, Ge(0)]
Positive = Annotated[int, Ge(1)]
AtLeastZero = Annotated[Number, Ge(0)]
AboveZero = Annotated[Number, Gt(0)]
Share = Annotated[Number, Interval(ge=0, le=1)]
PositiveShare = Annotated[Number, Interval(gt=0, le=1)]
ShareBelowOne = Annotated[Number, Interval(ge=0, lt=1)]
Text = Annotated[str, MinLen(1)]
# NumPy, PyTorch and vLLM all accept the seeds in this range.
Seed = Annotated[int, Interval(ge=0, lt=2**32)]


def allowed(kind: Any) -> str:
    """The values that a type's declarations allow, in words; empty: every value of the type."""
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


ARGUMENTS = ("kwargs",)
"""endings of the names of settings that hold arguments: one value, not a group of settings"""


def flatten(
    values: Mapping[str, Any], leaves: tuple[str, ...] = (), prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of nested settings, down to keys that end in one of ``leaves``."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and not name.endswith(leaves):
            yield from flatten(value, leaves, f"{name}.")
        else:
            yield name, value


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings (dotted) in which two differ, each before and now; an empty group has none."""
    old, new = (
        {
            name: value
            for name, value in flatten(json.loads(json.dumps(s, default=str)))
            if value != {}
        }
        for s in (before, now)
    )
    return {k: (old.get(k), new.get(k)) for k in {**old, **new} if old.get(k) != new.get(k)}


def value_at(values: Any, name: str) -> Any:
    """A nested setting by its dotted name, or ``None``."""
    for part in name.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings from dotted keys, the inverse of ``flatten``."""
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *path, last = key.split(".")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return nested
