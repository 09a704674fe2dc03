"""Addresses of the site's pages: a page's whole state is in its address, so back, forward and reload work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote, urlencode

from env_servers.problems import ProblemError
from paw_gym.envs.webshop.pages import ItemPage
from paw_gym.envs.webshop.shop import Shop, Visit

MAX_QUERY = 1000
"""characters of a search on the site"""
MAX_PAGE = 1000
_OPTION = "o."
"""before the name of an option in an address"""


def address(session_id: str, visit: Visit, shop: Shop) -> str:
    base = f"/shop/{quote(session_id)}"
    if visit.page == "search":
        return base
    if visit.page == "done":
        return f"{base}/done"
    fields = [("q", visit.query), ("page", str(visit.number))]
    if visit.page == "results":
        return f"{base}/results?{urlencode(fields)}"
    asin = shop.catalogue[visit.product].asin
    fields += [(_OPTION + name, value) for name, value in visit.options]
    sub = f"/{quote(visit.sub_page.lower())}" if visit.page == "sub" else ""
    return f"{base}/item/{quote(asin)}{sub}?{urlencode(fields)}"


def visit_of_results(query: str, number: int) -> Visit:
    if not query.strip() or len(query) > MAX_QUERY or not 1 <= number <= MAX_PAGE:
        raise ProblemError(404, "There is no such page of results.")
    return Visit("results", query.lower(), number)


def visit_of_item(
    shop: Shop, asin: str, sub_page: str, fields: Mapping[str, str] | Sequence[tuple[str, str]]
) -> Visit:
    """The visit that a product's address names; an address that no click leads to is answered with 404."""
    pairs = list(fields.items()) if isinstance(fields, Mapping) else list(fields)
    given = dict(pairs)
    if asin not in shop.catalogue:
        raise ProblemError(404, "There is no such product.")
    number = shop.catalogue.number_of(asin)
    product = shop.catalogue[number]
    values = {name.lower(): choices for name, choices in product.options}
    options: dict[str, str] = {}
    for key, value in pairs:
        if key.startswith(_OPTION):
            name = key.removeprefix(_OPTION)
            if value not in values.get(name, ()):
                raise ProblemError(404, "This product has no such option.")
            options[name] = value
    names = {name.lower(): name for name in ItemPage("", product, {}, True).sub_pages}
    if sub_page and (
        sub_page not in names or (sub_page == "attributes" and not shop.show_attributes)
    ):
        raise ProblemError(404, "There is no such page.")
    results = visit_of_results(given.get("q", ""), _number(given.get("page", "1")))
    return Visit(
        "sub" if sub_page else "item",
        results.query,
        results.number,
        number,
        tuple(options.items()),
        names.get(sub_page, ""),
    )


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
