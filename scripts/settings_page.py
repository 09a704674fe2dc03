"""Writes ``docs/settings.md`` from the typed settings: their names, types, defaults and docstrings.

    python scripts/settings_page.py            # writes the page
    python scripts/settings_page.py --check    # exit code 1 if the page is not current

The text of a setting is the docstring under its field; a class's docstring opens its section.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import re
import sys
import textwrap
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "settings.md"
OPENING = """# Settings

<!-- Written by scripts/settings_page.py from the code; change the docstrings there. -->

Every setting of `paw train` and `paw eval`, by its name in a recipe and on the command line
(`paw train embedded optimizer.lr=1e-4`), with its type, its default, and what it does. `null` is
written for nothing. A [recipe](recipes.md) says what differs from these defaults; an unknown name is an
error that names the nearest.

Settings of prompting agents (`agent.KEY`) stand with [the agents](baselines.md), arguments of an
environment (`env.kwargs.KEY`) on its page.
"""


@dataclasses.dataclass(frozen=True)
class Section:
    """One group of settings."""

    path: str
    """dotted name; empty at the top"""
    cls: Any


def sections() -> list[Section]:
    """All groups, outer ones first, in the order of their fields; then those of ``paw eval`` alone."""
    from paw_train.settings import Settings
    from paw_train.settings.endpoint import EndpointSettings

    return [*_nested(Section("", Settings)), Section("endpoint", EndpointSettings)]


def _nested(section: Section) -> Iterator[Section]:
    yield section
    hints = typing.get_type_hints(section.cls)
    for field in dataclasses.fields(section.cls):
        if dataclasses.is_dataclass(hints[field.name]):
            path = f"{section.path}.{field.name}".lstrip(".")
            yield from _nested(Section(path, hints[field.name]))


def page() -> str:
    """The whole page."""
    return "\n".join([OPENING, *(_section(section) for section in sections())])


def _section(section: Section) -> str:
    title = f"`{section.path}`" if section.path else "The run"
    about = _markdown(inspect.getdoc(section.cls) or "")
    if section.path == "endpoint":
        about += " For `paw eval openai:MODEL`; see [where the model runs](models.md)."
    hints = typing.get_type_hints(section.cls, include_extras=True)
    texts = field_texts(section.cls)
    rows, groups = [], []
    for field in dataclasses.fields(section.cls):
        kind, name = hints[field.name], f"{section.path}.{field.name}".lstrip(".")
        if dataclasses.is_dataclass(kind):
            groups.append(f"[`{name}`](#{anchor(name)})")
            continue
        cells = (f"`{name}`", kind_of(kind), f"`{default_of(field)}`", texts[field.name])
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    head = f"## {title} {{ #{anchor(section.path)} }}\n\n{about}\n"
    table = ["| setting | type | default | |", "| --- | --- | --- | --- |", *rows]
    more = f"\nGroups: {', '.join(groups)}.\n" if groups else ""
    return head + ("\n" + "\n".join(table) + "\n" if rows else "") + more


def anchor(path: str) -> str:
    """The name of a section in the page's address."""
    return path.replace(".", "-") or "run"


def field_texts(cls: Any) -> dict[str, str]:
    """The docstring under each field, as one line of Markdown.

    Raises:
        ValueError: a setting has none (a group has its class's).
    """
    texts: dict[str, str] = {}
    for base in reversed([c for c in cls.__mro__ if dataclasses.is_dataclass(c)]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for here, below in zip(body.body, [*body.body[1:], None], strict=True):
            if isinstance(here, ast.AnnAssign) and isinstance(here.target, ast.Name):
                texts[here.target.id] = _docstring(below)
    hints = typing.get_type_hints(cls)
    single = [name for name in texts if not dataclasses.is_dataclass(hints[name])]
    missing = [name for name in single if not texts[name]]
    if missing:
        raise ValueError(f"{cls.__module__}.{cls.__name__}.{missing[0]} has no docstring below it.")
    return texts


def _docstring(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return _markdown(str(node.value.value))
    return ""


def _markdown(text: str) -> str:
    """reStructuredText's literals as Markdown's, on one line; no HTML tag is left as one."""
    line = " ".join(text.split()).replace("``", "`")
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(p if p.startswith("`") else p.replace("<", "&lt;") for p in parts)


def kind_of(kind: Any) -> str:
    """A type, and the values of it that a setting may have: ``int``, 1 or more."""
    from paw_train.settings.ranges import allowed

    words = allowed(kind).removesuffix(", or null")
    return f"`{type_name(kind)}`" + (f", {words}" if words else "")


def type_name(kind: Any) -> str:
    """A type as a reader writes it: ``int``, ``float or null``, ``one of 'a', 'b'``."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        named = ["null" if a is type(None) else type_name(a) for a in arguments]
        return " or ".join(named)
    if origin is typing.Annotated:
        return type_name(arguments[0])
    if origin is typing.Literal:
        return "one of " + ", ".join(map(_yaml, arguments))
    if origin in (list, tuple, dict):
        inside = ", ".join(type_name(a) for a in arguments if a is not Ellipsis)
        return f"{origin.__name__}[{inside}]"
    return getattr(kind, "__name__", str(kind)).replace("Any", "any")


def default_of(field: dataclasses.Field[Any]) -> str:
    """A default as it is written in a recipe."""
    if field.default is not dataclasses.MISSING:
        return _yaml(field.default)
    if field.default_factory is not dataclasses.MISSING:
        return _yaml(field.default_factory())
    return "(needed)"


def _yaml(value: Any) -> str:
    import yaml

    plain = list(value) if isinstance(value, tuple) else value
    text = yaml.safe_dump(plain, default_flow_style=True, width=1000).strip()
    return text.removesuffix("...").strip()


def main() -> int:
    """Writes or checks the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if it would change"
    )
    chosen = parser.parse_args()
    text = page()
    if chosen.check:
        current = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text
        print(f"{PAGE.name} is {'current' if current else 'not current: run this without --check'}")
        return 0 if current else 1
    PAGE.write_text(text, encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
