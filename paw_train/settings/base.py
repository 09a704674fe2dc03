"""The base of every group of settings: an immutable pydantic model, read with one-line errors."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from paw_gym.internals.naming import did_you_mean, similar
from paw_train.settings.ranges import allowed, type_name


class Group(BaseModel):
    """A group of settings: typed fields, a docstring under each, and groups inside it."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    @classmethod
    def read(cls, data: Any, where: str = "") -> Self:
        """The settings in nested plain values, such as a recipe's; missing ones have their defaults.

        Args:
            data: by name.
            where: dotted name of the group, for the message.

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
        """The same settings but for these, checked like any others; see ``read``."""
        return self.read({**dict(self), **changes})


def field_kinds(cls: type[Group]) -> dict[str, Any]:
    """The types of a group's fields by name, with the declared ranges of their values.

    A field that holds a group or a list of such groups counts as the group.
    """
    hints = typing.get_type_hints(cls, include_extras=True)
    return {name: _group_in(hints[name]) for name in cls.model_fields}


def _group_in(kind: Any) -> Any:
    return next((part for part in typing.get_args(kind) if is_group(part)), kind)


def groups_of(cls: type[Group], where: str = "") -> Iterator[tuple[str, type[Group]]]:
    """(dotted name, class) of a group and those inside it, outer ones first."""
    yield where, cls
    for name, kind in field_kinds(cls).items():
        if is_group(kind):
            yield from groups_of(kind, f"{where}.{name}".lstrip("."))


def is_group(kind: Any) -> bool:
    """Whether a field's type is a group of settings."""
    return isinstance(kind, type) and issubclass(kind, Group)


def _line(cls: type[Group], error: ValidationError, where: str) -> str:
    """The first of pydantic's errors, as one line."""
    first = error.errors(include_url=False)[0]
    kind, path, inner = _place(cls, first["loc"])
    name = ".".join(filter(None, (where, *path)))
    value: Any = first["input"]
    match first["type"]:
        case "extra_forbidden" | "invalid_key":
            names = list(kind.model_fields)
            full = ".".join(filter(None, (name, str(inner[0]))))
            hint = f"{did_you_mean(str(inner[0]), names)} " if similar(str(inner[0]), names) else ""
            whose = f" of {name}" if name else ""
            return f"Unknown setting {full!r}. {hint}Settings{whose}: {', '.join(names)}."
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


def _choices(kind: Any) -> Iterator[Any]:
    """The values of the ``Literal`` in a type."""
    if typing.get_origin(kind) is typing.Literal:
        yield from typing.get_args(kind)
    else:
        for argument in typing.get_args(kind):
            yield from _choices(argument)
