"""Pages and pictures rendered from templates in which everything is escaped."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from paw_gym.printable import printable
from paw_train.reporting.conversation import special_tokens

_FOLDER = Path(__file__).parent / "templates"


def render(template: str, **values: Any) -> str:
    """The text of a template of ``templates/``.

    A value can never become markup: what HTML and XML reserve is escaped, control characters and lone
    surrogates, which neither can hold, become visible ones. Floats are rounded to two places, as
    coordinates need.
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
    script = (_FOLDER / "report.js").read_text(encoding="utf-8")
    found.globals |= {
        "script": Markup(script),
        "script_digest": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "style": Markup((_FOLDER / "report.css").read_text(encoding="utf-8")),
    }
    found.filters |= {"percent": _percent, "special_tokens": special_tokens}
    return found


def _shown(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value)
    return value


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
