"""Writes ``docs/settings.md`` from the typed settings: their names, types, defaults and docstrings.

    python scripts/settings_page.py            # writes the page
    python scripts/settings_page.py --check    # writes nothing; exit status 1 if the page is not current

The text of a setting is the docstring under its field; a class's docstring opens its section.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import yaml

from paw_train.settings import EndpointSettings, Settings
from paw_train.settings.base import Group, allowed, field_kinds, groups_of, is_group
from paw_train.settings.env import MixedEnvSettings

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "settings.md"
OPENING = """# Settings

<!-- Written by scripts/settings_page.py from the code; change the docstrings there. -->

Every setting of `paw train` and `paw eval`, by its name in a recipe and on the command line
(`paw train embedded optimizer.lr=1e-4`), with its default, what it does, and its range;
`null`: none is set. A [recipe](train.md#recipes) contains only what differs. Those that matter are on
[one screen](train.md#the-settings-that-matter).

Settings of prompting agents (`agent.KEY`) are listed with [the agents](baselines.md), arguments of an
environment (`env.kwargs.KEY`) on the environment's page.
"""


def sections() -> list[tuple[str, type[Group]]]:
    """(dotted name, class) of all groups, outer ones first; then of those of ``paw eval`` alone.

    An entry of a list in ``env`` comes after the group.
    """
    found = [*groups_of(Settings), *groups_of(EndpointSettings, "endpoint")]
    found.insert(1 + [path for path, _ in found].index("env"), ("env.NAME", MixedEnvSettings))
    return found


def page() -> str:
    """The whole page."""
    return "\n".join([OPENING, *(_section(path, cls) for path, cls in sections())])


def _section(path: str, cls: type[Group]) -> str:
    title = f"`{path}`" if path else "The run"
    about = _markdown(inspect.getdoc(cls) or "")
    if path == "endpoint":
        about += " For `paw eval openai:MODEL`; see [where the model runs](models.md)."
    rows = []
    for key, kind in field_kinds(cls).items():
        if any(key in getattr(base, "model_fields", {}) for base in cls.__mro__[1:]):
            continue  # listed with the class that has it
        name = f"{path}.{key}".lstrip(".")
        if is_group(kind):
            continue
        default = as_yaml(cls.model_fields[key].get_default())
        cells = (f"`{name}`", f"`{default}`", text_of(cls, key) + values_of(kind))
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    head = f"## {title} {{ #{anchor(path)} }}\n\n{about}\n"
    table = ["| setting | default | |", "| --- | --- | --- |", *rows]
    return head + ("\n" + "\n".join(table) + "\n" if rows else "")


def anchor(path: str) -> str:
    """The anchor of a section in the page's address."""
    return path.replace(".", "-") or "run"


def text_of(cls: type[Group], name: str) -> str:
    """The docstring under a field, as one line of Markdown.

    Raises:
        ValueError: the field has none.
    """
    text = cls.model_fields[name].description
    if not text:
        raise ValueError(f"{cls.__module__}.{cls.__name__}.{name} has no docstring below it.")
    return _markdown(text)


def _markdown(text: str) -> str:
    """reStructuredText's literals as Markdown's, on one line; HTML tags are escaped."""
    line = " ".join(text.split()).replace("``", "`")
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(p if p.startswith("`") else p.replace("<", "&lt;") for p in parts)


def values_of(kind: Any) -> str:
    """The range that a setting has, in brackets: ``(in [0, 1])``; empty if it is only bounded below."""
    words = allowed(kind).removesuffix(", or null")
    return f" ({words})" if words.startswith("in ") else ""


def as_yaml(value: Any) -> str:
    """A value as it is written in a recipe."""
    plain = list(value) if isinstance(value, tuple) else value
    text = yaml.safe_dump(plain, default_flow_style=True, width=1000).strip()
    return text.removesuffix("...").strip()


if __name__ == "__main__":
    text = page()
    if PAGE.read_text(encoding="utf-8") != text:
        if "--check" in sys.argv:
            sys.exit(f"not current: {PAGE.relative_to(ROOT)}")
        PAGE.write_text(text, encoding="utf-8")
