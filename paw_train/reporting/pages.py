"""Pages and pictures rendered from templates in which everything is escaped, and texts split for them."""

from __future__ import annotations

import base64
import difflib
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from paw_gym.internals.printable import printable

_FOLDER = Path(__file__).parent / "templates"


def render(template: str, **values: Any) -> str:
    """The text of a template in ``templates/``.

    A value can never become markup: what HTML and XML reserve is escaped, control characters and lone
    surrogates, which neither can hold, become visible ones. Floats are rounded to two places, which
    is enough for coordinates.
    """
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    script, style = _joined("dom.js", "charts.js", "report.js"), _joined("charts.css", "report.css")
    # one file has nothing to import from
    script = re.sub(r"^(import .*\n|export )", "", script, flags=re.MULTILINE)
    found.globals |= {
        "script": Markup(script),
        "script_digest": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "style": Markup(style),
    }
    found.filters |= {
        "percent": lambda share: f"{100 * share:.1f} %",
        "special_tokens": special_tokens,
    }
    return found


def _joined(*names: str) -> str:
    """Files of pages, one after the other; the viewer serves those in ``static`` as well."""
    folders = (_FOLDER, _FOLDER.with_name("static"))
    found = [folder / name for name in names for folder in folders if (folder / name).exists()]
    return "".join(path.read_text(encoding="utf-8") for path in found)


def _shown(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value)
    return value


_BLOCK = re.compile(
    r"<(think|action|search|information|answer|tool_call|tool_response|next_state|prediction)>"
    r"(.*?)</\1>",
    re.DOTALL,
)
_SPECIAL = re.compile(r"(<\|[^<>|\s]{1,40}\|>)")
_DIFFED = 4000
"""lines of a prompt that are compared; a longer one is shown whole"""


def changes(earlier: str, text: str) -> list[list[str]]:
    """A prompt as ``["same", lines]`` and ``["new", lines]``, compared with the one before it."""
    lines, old = text.split("\n"), earlier.split("\n")
    if not earlier or max(len(lines), len(old)) > _DIFFED:
        return [["new", text]] if text else []
    parts: list[list[str]] = []
    matcher = difflib.SequenceMatcher(None, old, lines, autojunk=False)
    for kind, _, _, start, end in matcher.get_opcodes():
        if end > start:
            name = "same" if kind == "equal" else "new"
            if parts and parts[-1][0] == name:
                parts[-1][1] += "\n" + "\n".join(lines[start:end])
            else:
                parts.append([name, "\n".join(lines[start:end])])
    return parts


def blocks(response: str) -> list[list[str]]:
    """A raw answer as ``["text", ...]`` and ``[tag, ...]`` parts; together they are the whole answer."""
    text, *rest = _BLOCK.split(response)  # then tag, content, text and so on
    parts = [["text", text]]
    for tag, content, text in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        parts += [[tag, content], ["text", text]]
    return [part for part in parts if part != ["text", ""]]


def special_tokens(text: str) -> list[str]:
    """A text split at its special tokens (``<|im_end|>``), which are the odd entries."""
    return _SPECIAL.split(text)
