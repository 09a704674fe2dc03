"""Texts of models, tasks and files: made harmless to show, and such as UTF-8 can hold."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""control characters, and those that turn the direction of a text around"""
_MARKDOWN = re.compile(r"([\\`*\[\]<>|~]|(?<!\w)_|_(?!\w))")


def printable(text: str) -> str:
    """Text with control characters as their Unicode pictures; lone surrogates become U+FFFD."""
    return _UNPRINTABLE.sub(_picture, text)


def one_line(text: object) -> str:
    """A text on one line, without anything that a terminal would obey."""
    return printable(" ".join(str(text).split()))


def counted(count: int, noun: str) -> str:
    """A number and what it counts: ``1 task``, ``1,024 tasks``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def markdown_text(text: object) -> str:
    """A text as Markdown that shows it without making a link, picture, HTML or table cell."""
    return _MARKDOWN.sub(r"\\\1", one_line(text)).replace("://", ":\\//")


def safe_console(**options: Any) -> Console:
    """A ``rich`` console that shows control characters in what it prints instead of sending them."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Shown(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                text, style, control = segment
                yield segment if control else Segment(printable(text), style)

    return Shown(emoji=False, **options)  # a path may hold :warning:


def _picture(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else "\ufffd"


def encodable(text: str) -> str:
    """The text with a ``?`` for each half of a surrogate pair, which JSON can carry and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")
