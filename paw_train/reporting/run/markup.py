"""HTML and SVG elements with everything escaped: text of a run can never become markup."""

from __future__ import annotations

import re
from collections.abc import Iterable


class Markup(str):
    """Text that is markup already; every other string is escaped."""

    __slots__ = ()


_EMPTY = {"meta", "rect", "line", "circle", "path", "polyline", "polygon"}
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def escape(text: object) -> Markup:
    """Text as markup that shows it, also where it holds tags, control characters or lone surrogates.

    Control characters, which neither HTML nor XML can hold, appear as their Unicode pictures.
    """
    if isinstance(text, Markup):
        return text
    return Markup(_UNPRINTABLE.sub(_visible, str(text)).translate(_ENTITIES))


def _visible(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else "\ufffd"


def join(parts: Iterable[object], between: str = "") -> Markup:
    """Several pieces of text or markup as one."""
    return Markup(escape(between).join(escape(part) for part in parts))


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """One element.

    Args:
        name: of the element.
        children: text, escaped, or ``Markup``; ``None`` is left out.
        attributes: ``class_`` is ``class``, ``stroke_width`` is ``stroke-width``; numbers are rounded
            to two places; ``None`` and ``False`` are left out, ``True`` has no value.
    """
    head = name + "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _EMPTY and not children:
        return Markup(f"<{head}/>")
    return Markup(f"<{head}>{join(c for c in children if c is not None)}</{name}>")


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    if isinstance(value, float):
        value = f"{value:.2f}".rstrip("0").rstrip(".")
    return f' {name}="{escape(value)}"'
