"""The shop's server: environments for programs, and a site on which a person shops by the same rules.

A page's whole state is in its address, so back, forward and reload work.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote, urlencode

from fastapi import APIRouter, Path, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined

import paw_gym
from env_servers.application import new_app
from env_servers.gate import Gate
from env_servers.gateway.app import BODIES, MAX_BODY, add_routes
from env_servers.gateway.gateway import Gateway, Limits
from env_servers.gateway.settings import Offer
from env_servers.gateway.workers import LocalFleet
from env_servers.problems import ProblemError
from env_servers.sessions import Client, Session, SessionStore, UnknownSessionError
from paw_gym.core import Task
from paw_gym.envs.webshop.env import CLIENT_SETTINGS, SHOP_ID, ShopSettings, open_shop
from paw_gym.envs.webshop.goals import SPLITS
from paw_gym.envs.webshop.pages import ItemPage
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
_PATHS = ("/shop", "/favicon")
"""beginnings of the paths that people open, besides the entrance"""


@dataclass(eq=False, kw_only=True)
class Visitor(Session):
    """A person with one goal, on the site; found by the session's name alone."""

    task: Task
    split: str
    visit: Visit = field(default_factory=Visit)


def _anyone(request: Request) -> Client:
    return Client(b"", request.client.host if request.client else "unknown")


class Site:
    """A shop with its visitors; renders pages from templates."""

    def __init__(self, settings: ShopSettings, sessions: SessionStore) -> None:
        self.sessions = sessions
        opened = {split: open_shop(settings, split) for split in SPLITS}
        self.shop = next(iter(opened.values()))[0]
        # kept, because a file that is changed later would give tasks of another shop
        self.tasks = {split: tasks for split, (_, tasks) in opened.items()}
        self._templates = Environment(
            loader=PackageLoader("env_servers.webshop"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )

    def task(self, split: str, task_id: str) -> Task:
        """A task, drawn if no id is given; an unknown one is answered with 404."""
        if split not in SPLITS:
            words = f"There is no split of that name; valid: {', '.join(SPLITS)}."
            raise ProblemError(404, words)
        tasks = self.tasks[split]
        if not len(tasks):
            raise ProblemError(404, f"This shop has no task in split {split!r}.")
        try:
            found: Task = tasks[task_id or secrets.randbelow(len(tasks))]
        except KeyError:
            raise ProblemError(404, f"There is no such task in split {split!r}.") from None
        return found

    def visitor(self, session_id: str, request: Request) -> Visitor:
        """The visitor of a session; an unknown one is answered with 404."""
        return self.sessions.get(session_id, _anyone(request), Visitor)

    def render(self, name: str, status: int = 200, **values: Any) -> HTMLResponse:
        html = self._templates.get_template(f"{name}.html").render(**values)
        return HTMLResponse(html, status, SAFE_HEADERS)

    def problem(self, path: str, problem: ProblemError) -> Response | None:
        """The page for an error at a path that people open."""
        if path != "/" and not path.startswith(_PATHS):
            return None
        values = {"code": problem.status, "words": problem.detail}
        return self.render("problem", problem.status, session=None, **values)

    def show(self, session: Visitor, visit: Visit) -> Response:
        """Moves the session to a visit and shows its page; a finished one stays at its score."""
        if session.visit.page == "done" and visit.page != "done":
            return RedirectResponse(self.address(session, session.visit), 303)
        session.visit = visit
        shop = self.shop
        page = shop.show(visit, session.task.data)
        is_sub_page = visit.page == "sub"

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
            to=to,
            with_option=lambda name, value: to(
                "item", options=tuple({**dict(visit.options), name.lower(): value}.items())
            ),
            item_link=lambda asin: to("item", product=shop.catalogue.number_of(asin), options=()),
        )

    def address(self, session: Visitor, visit: Visit) -> str:
        base = f"/shop/{quote(session.id)}"
        if visit.page == "search":
            return base
        if visit.page == "done":
            return f"{base}/done"
        fields = [("q", visit.query), ("page", str(visit.number))]
        if visit.page == "results":
            return f"{base}/results?{urlencode(fields)}"
        asin = self.shop.catalogue[visit.product].asin
        fields += [(_OPTION + name, value) for name, value in visit.options]
        sub = f"/{quote(visit.sub_page.lower())}" if visit.page == "sub" else ""
        return f"{base}/item/{quote(asin)}{sub}?{urlencode(fields)}"


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
    shop = site.shop
    templates = resources.files("env_servers.webshop").joinpath("templates")
    style = templates.joinpath("style.css").read_bytes()

    def to(session: Visitor, visit: Visit) -> Response:
        return RedirectResponse(site.address(session, visit), 303)

    @router.get("/")
    async def home() -> Response:
        counts = {split: len(tasks) for split, tasks in site.tasks.items()}
        return site.render("home", session=None, splits=counts, products=len(shop.catalogue))

    @router.get("/style.css")
    async def style_sheet() -> Response:
        return Response(style, media_type="text/css", headers={"Cache-Control": "max-age=600"})

    @router.post("/shop")
    async def enter(request: Request) -> Response:
        form = await _form(request)
        split = form.get("split", next(iter(SPLITS)))
        task = site.task(split, form.get("task_id", "").strip())
        session = site.sessions.add(Visitor(client=_anyone(request), task=task, split=split))
        return to(session, Visit())

    @router.get("/shop/{session_id}")
    async def search_page(session_id: SiteSession, request: Request) -> Response:
        return site.show(site.visitor(session_id, request), Visit())

    @router.get("/shop/{session_id}/results")
    async def results_page(
        session_id: SiteSession, request: Request, q: str = "", page: int = 1
    ) -> Response:
        session = site.visitor(session_id, request)
        if not q.strip():
            return to(session, Visit())
        return site.show(session, visit_of_results(q, page))

    @router.get("/shop/{session_id}/item/{asin}")
    @router.get("/shop/{session_id}/item/{asin}/{sub_page}")
    async def item_page(
        request: Request, session_id: SiteSession, asin: ShortText, sub_page: str = ""
    ) -> Response:
        session = site.visitor(session_id, request)
        return site.show(session, visit_of_item(shop, asin, sub_page, request.query_params))

    @router.post("/shop/{session_id}/buy/{asin}")
    async def buy(request: Request, session_id: SiteSession, asin: ShortText) -> Response:
        session = site.visitor(session_id, request)
        form = await _form(request)
        if session.visit.page != "done":
            item = visit_of_item(shop, asin, "", form)
            session.visit = replace(item, page="done")
        return to(session, session.visit)

    @router.get("/shop/{session_id}/done")
    async def done_page(session_id: SiteSession, request: Request) -> Response:
        session = site.visitor(session_id, request)
        if session.visit.page != "done":
            return to(session, session.visit)
        return site.show(session, session.visit)

    @router.post("/shop/{session_id}/leave")
    async def leave(session_id: SiteSession, request: Request) -> Response:
        with suppress(UnknownSessionError):  # a visitor who has already left is fine
            site.sessions.remove(site.visitor(session_id, request))
        return RedirectResponse("/", 303)

    return router


def create_app(
    settings: ShopSettings | None = None,
    *,
    sessions: SessionStore | None = None,
    token: str | None = None,
    hosts: Sequence[str] = (),
) -> Gate:
    """The server as an ASGI application; ``token`` and ``hosts`` are those of ``Gate``.

    Args:
        settings: what the shop is made of; ``None``: the generated products.
        sessions: where sessions are kept; ``None``: a store with the default limits.
    """
    settings = settings or ShopSettings()
    sessions = SessionStore() if sessions is None else sessions  # an empty store is falsy
    site = Site(settings, sessions)
    # Environments for ``WebShop-v0(server=URL)`` and for programs, over the same data and within the same
    # limits of sessions. There are no separate workers: an action takes less time than the way to another
    # process and back
    chosen = frozenset(CLIENT_SETTINGS)
    offer = Offer(frozenset({SHOP_ID}), chosen, {SHOP_ID: asdict(settings)})
    gateway = Gateway(offer, Limits(), sessions, LocalFleet())
    app = new_app("WebShop", has_token=token is not None, bodies=BODIES, page_for=site.problem)
    app.include_router(site_routes(site))
    add_routes(app, gateway)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """The shop's state."""
        products, held = len(site.shop.catalogue), len(sessions)
        found = {"version": paw_gym.__version__, "products": products, "sessions": held}
        return {"status": "ok", **found}

    return Gate(app, token, max_body=MAX_BODY, hosts=hosts, forms=("/shop",))


def visit_of_results(query: str, number: int) -> Visit:
    if not query.strip() or len(query) > MAX_QUERY or not 1 <= number <= MAX_PAGE:
        raise ProblemError(404, "There is no such page of results.")
    return Visit("results", query.lower(), number)


def visit_of_item(shop: Shop, asin: str, sub_page: str, given: Mapping[str, str]) -> Visit:
    """The visit that a product's address names; an address that no click leads to is answered with 404."""
    if asin not in shop.catalogue:
        raise ProblemError(404, "There is no such product.")
    number = shop.catalogue.number_of(asin)
    product = shop.catalogue[number]
    values = {name.lower(): choices for name, choices in product.options}
    chosen = {k.removeprefix(_OPTION): v for k, v in given.items() if k.startswith(_OPTION)}
    if any(value not in values.get(name, ()) for name, value in chosen.items()):
        raise ProblemError(404, "This product has no such option.")
    names = {name.lower(): name for name in ItemPage("", product, {}, True).sub_pages}
    if sub_page and (
        sub_page not in names or (sub_page == "attributes" and not shop.show_attributes)
    ):
        raise ProblemError(404, "There is no such page.")
    page = given.get("page", "1")
    is_number = page.isascii() and page.isdigit() and len(page) < 6
    results = visit_of_results(given.get("q", ""), int(page) if is_number else 0)
    return Visit(
        "sub" if sub_page else "item",
        results.query,
        results.number,
        number,
        tuple(chosen.items()),
        names.get(sub_page, ""),
    )
