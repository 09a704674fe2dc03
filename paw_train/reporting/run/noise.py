"""The section of a report on noisy tokens, where the diagnostic was run."""

from __future__ import annotations

from typing import Any

from paw_train.reporting.run.markup import Markup, tag
from paw_train.reporting.run.results import number

_ROWS = (
    ("of the tokens", "token_share"),
    ("of the gradient under CE", "ce"),
    ("of the gradient under MAE", "mae"),
    ("of the gradient under clipped MAE", "cmae"),
)


def noise_section(found: dict[str, Any]) -> Markup:
    """The shares as a table; a sentence where no tokens are defined as noise; empty without data."""
    if not found:
        return Markup()
    title = tag("h2", "Noise in the observations")
    if found.get("rule") is None:
        return tag("section", title, tag("p", "No noisy tokens defined for this environment."))
    rows = [
        tag(
            "tr",
            tag("th", label, scope="row"),
            tag("td", "–" if value is None else f"{100 * value:.1f} %", class_="num"),
        )
        for label, key in _ROWS
        for value in [number(found.get(key))]
    ]
    note = (
        f"The share that falls on noisy tokens (arXiv 2606.02388, A.4), by the rule {found.get('rule')}: "
        f"{found.get('tokens')} tokens of {found.get('transitions')} recorded transitions, scored by the "
        f"checkpoint {found.get('checkpoint')}; clipped at ρ = {found.get('rho')}."
    )
    table = tag("table", tag("tbody", *rows), class_="small")
    return tag("section", title, table, tag("p", note, class_="muted"))
