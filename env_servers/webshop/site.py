"""The site: a person shops in a browser, by the same rules and pages as the environment.

A page's whole state is in its address, so back, forward and reload work.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote, urlencode

from fastapi import APIRouter, Path, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined

from env_servers.problems import ProblemError
from env_servers.sessions import Client, Session, SessionStore, UnknownSessionError
from paw_gym.core import Task, TaskSet
from paw_gym.envs.webshop.env import ShopSettings, open_shop
from paw_gym.envs.webshop.goals import SPLITS
from paw_gym.envs.webshop.pages import DonePage, ItemPage, Page, SubPage
from paw_gym.envs.webshop.shop import Shop, Visit

MAX_QUERY = 1000
"""characters of a search on the site"""
MAX_PAGE = 1000
_OPTION = "o."
"""before the name of an option in an address"""
_MAX_FORM = 20_000
"""bytes of a form"""
SAFE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",  # with none at all, a form's Origin would be null
    "X-Content-Type-Options": "nosniff",
}
SiteSession = Annotated[str, Path(max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]

ShortText = Annotated[str, Path(max_length=40)]


@dataclass(eq=False, kw_only=True)
class Visitor(Session):
    """A person with one goal, on the site."""

    task: Task
    split: str
    visit: Visit = field(default_factory=Visit)

    def page(self, shop: Shop) -> Page:
        return shop.show(self.visit, self.task.data)


@dataclass
class Store:
    """A shop with its sessions."""

    settings: ShopSettings
    sessions: SessionStore

    def __post_init__(self) -> None:
        opened = {split: open_shop(self.settings, split) for split in SPLITS}
        self.shop = next(iter(opened.values()))[0]
        # kept, because a file that is changed later would give tasks of another shop
        self._tasks = {split: tasks for split, (_, tasks) in opened.items()}

    def tasks(self, split: str) -> TaskSet:
        """The tasks of a split; an unknown split is answered with 404."""
        if split not in SPLITS:
            words = f"There is no split of that name; valid: {', '.join(SPLITS)}."
            raise ProblemError(404, words)
        return self._tasks[split]

    def task(self, split: str, task_id: str) -> Task:
        """A task; an unknown one is answered with 404."""
        try:
            found: Task = self.tasks(split)[task_id]
        except KeyError:
            raise ProblemError(404, f"There is no such task in split {split!r}.") from None
        return found

    def open(self, task: Task, split: str, request: Request) -> Visitor:
        """A new visitor, who is found by the session's name alone; too many are answered with 429."""
        return self.sessions.add(Visitor(client=_anyone(request), task=task, split=split))

    def visitor(self, session_id: str, request: Request) -> Visitor:
        """The visitor of a session; an unknown one is answered with 404."""
        return self.sessions.get(session_id, _anyone(request), Visitor)


def _anyone(request: Request) -> Client:
    return Client(b"", request.client.host if request.client else "unknown")


class Site:
    """Renders pages from templates."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._templates = Environment(
            loader=PackageLoader("env_servers.webshop"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.style: str = self._templates.loader.get_source(  # type: ignore[union-attr]
            self._templates, "style.css"
        )[0]

    def render(self, name: str, status: int = 200, **values: Any) -> HTMLResponse:
        html = self._templates.get_template(f"{name}.html").render(**values)
        return HTMLResponse(html, status, SAFE_HEADERS)

    def problem(self, status: int, words: str) -> HTMLResponse:
        return self.render("problem", status, code=status, words=words, session=None)

    def show(self, session: Visitor, visit: Visit) -> Response:
        """Moves the session to a visit and shows its page; a finished one stays at its score."""
        if session.visit.page == "done" and visit.page != "done":
            return RedirectResponse(self.address(session, session.visit), 303)
        session.visit = visit
        shop = self.store.shop
        page = session.page(shop)
        is_sub_page = isinstance(page, SubPage)

        def to(kind: str, **changes: Any) -> str:
            return self.address(session, replace(visit, page=kind, **changes))

        return self.render(
            "item" if is_sub_page else visit.page,
            session=session,
            page=page,
            visit=visit,
            product=getattr(page, "product", None),
            shop_page=shop.show(replace(visit, page="item"), session.task.data)
            if is_sub_page
            else page,
            sub_page=page if is_sub_page else None,
            link=lambda to: self.address(session, to),
            with_option=lambda name, value: to(
                "item", options=tuple({**dict(visit.options), name.lower(): value}.items())
            ),
            sub_link=lambda label: to("sub", sub_page=label),
            back=to("results"),
            page_link=lambda number: to("results", number=number),
            item_link=lambda asin: to("item", product=shop.catalogue.number_of(asin), options=()),
            score=page.score if isinstance(page, DonePage) else None,
            goal=session.task.data,
        )

    def address(self, session: Visitor, visit: Visit) -> str:
        return address(session.id, visit, self.store.shop)


async def _form(request: Request) -> dict[str, str]:
    body = await request.body()
    if len(body) > _MAX_FORM:
        raise ProblemError(413, "The form is too long.")
    try:
        return dict(parse_qsl(body.decode(), max_num_fields=200, keep_blank_values=True))
    except ValueError:
        raise ProblemError(400, "The form cannot be read.") from None


def site_routes(site: Site) -> APIRouter:
    router = APIRouter(default_response_class=HTMLResponse, include_in_schema=False)
    store = site.store

    @router.get("/")
    async def home() -> Response:
        counts = {split: len(store.tasks(split)) for split in SPLITS}
        products = len(store.shop.catalogue)
        return site.render("home", session=None, splits=counts, products=products)

    @router.get("/style.css")
    async def style() -> Response:
        return Response(site.style, media_type="text/css", headers={"Cache-Control": "max-age=600"})

    @router.post("/shop")
    async def enter(request: Request) -> Response:
        form = await _form(request)
        split = form.get("split", next(iter(SPLITS)))
        tasks = store.tasks(split)
        wanted = form.get("task_id", "").strip()
        if not len(tasks):
            raise ProblemError(404, f"This shop has no task in split {split!r}.")
        number = secrets.randbelow(len(tasks))
        task = store.task(split, wanted) if wanted else tasks[number]
        session = store.open(task, split, request)
        return RedirectResponse(site.address(session, Visit()), 303)

    @router.get("/shop/{session_id}")
    async def search_page(session_id: SiteSession, request: Request) -> Response:
        return site.show(store.visitor(session_id, request), Visit())

    @router.get("/shop/{session_id}/results")
    async def results_page(
        session_id: SiteSession, request: Request, q: str = "", page: int = 1
    ) -> Response:
        session = store.visitor(session_id, request)
        if not q.strip():
            return RedirectResponse(site.address(session, Visit()), 303)
        return site.show(session, visit_of_results(q, page))

    def item(request: Request, session_id: str, asin: str, sub_page: str) -> Response:
        session = store.visitor(session_id, request)
        fields = request.query_params.multi_items()
        return site.show(session, visit_of_item(store.shop, asin, sub_page, fields))

    @router.get("/shop/{session_id}/item/{asin}")
    async def item_page(request: Request, session_id: SiteSession, asin: ShortText) -> Response:
        return item(request, session_id, asin, "")

    @router.get("/shop/{session_id}/item/{asin}/{sub_page}")
    async def item_sub_page(
        request: Request, session_id: SiteSession, asin: ShortText, sub_page: ShortText
    ) -> Response:
        return item(request, session_id, asin, sub_page)

    @router.post("/shop/{session_id}/buy/{asin}")
    async def buy(request: Request, session_id: SiteSession, asin: ShortText) -> Response:
        session = store.visitor(session_id, request)
        form = await _form(request)
        if session.visit.page != "done":
            item = visit_of_item(store.shop, asin, "", form)
            session.visit = Visit("done", item.query, item.number, item.product, item.options)
        return RedirectResponse(site.address(session, session.visit), 303)

    @router.get("/shop/{session_id}/done")
    async def done_page(session_id: SiteSession, request: Request) -> Response:
        session = store.visitor(session_id, request)
        if session.visit.page != "done":
            return RedirectResponse(site.address(session, session.visit), 303)
        return site.show(session, session.visit)

    @router.post("/shop/{session_id}/leave")
    async def leave(session_id: SiteSession, request: Request) -> Response:
        with suppress(UnknownSessionError):  # a visitor who has already left is fine
            store.sessions.remove(store.visitor(session_id, request))
        return RedirectResponse("/", 303)

    return router


# --- addresses --------------------------------------------------------------------------------------


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
