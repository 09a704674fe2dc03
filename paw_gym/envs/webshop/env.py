"""The WebShop environment."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from paw_gym.core import AgentDefaults, Outcome, Task, TaskSet, TextEnv
from paw_gym.envs.webshop.data_folder import DataFolder
from paw_gym.envs.webshop.expert import Shopper, solve
from paw_gym.envs.webshop.generate import generated_catalogue
from paw_gym.envs.webshop.goals import (
    SPLITS,
    given_goals,
    given_prices,
    given_tasks,
    human_tasks,
    synthetic_tasks,
)
from paw_gym.envs.webshop.pages import DonePage, Page, SearchPage
from paw_gym.envs.webshop.reward import TAGGERS, choose_tagger
from paw_gym.envs.webshop.shop import ENGINES, SEARCH_ACTION, Shop, Visit, parse_action
from paw_gym.internals.files import file_at, file_version, user_path
from paw_gym.internals.naming import require_choice

SHOP_ID = "paw_gym/WebShop-v0"
CLIENT_SETTINGS = ("split", "max_steps")
"""settings of a client; what the shop is made of is the server's choice"""
GOAL_KINDS = ("synthetic", "human")
_INSTRUCTION = re.compile(r"Instruction: \[SEP\] .*? \[SEP\] ", re.DOTALL)


class WebShopEnv(TextEnv):
    """Shopping by text: find the product that an instruction describes, choose its options, buy it.

    ## Description
    WebShop (Yao et al. 2022): a shop with a search engine, pages of results, and pages of products.
    Without ``data_dir`` its products are generated, in several categories, with nothing to download.
    With ``data_dir`` they are the official ones. Goals come from the products (``synthetic``) or were
    written by people (``human``).

    ## Action Space
    ``search[words]`` and ``click[thing]``, where a thing is a button, an option's value or a product's
    asin on the page. ``info["admissible_actions"]`` lists every click, and ``search[...]``, which
    announces that a search is possible. Anything else shows the page again.

    ## Observation Space
    The visible strings of the page joined by `` [SEP] ``, as the original program gives them.

    ## Rewards
    0 until the purchase; then the original's reward: how much of the goal's type, attributes, options
    and price limit the purchase fits. ``info["score"]`` is that reward too; success is a score of 1.
    ``info["reward_parts"]`` states what it is made of. Behind ``AgentInterface``: 10 on success, else 0,
    and -0.1 for an invalid response.

    ## Starting State
    The search page with the instruction. ``seed`` or ``options`` choose the goal.

    ## Episode End
    Terminated by the purchase; truncated after ``max_steps`` (15).

    ## Arguments
    ``split``: ``train``, ``valid`` or ``test``, disjoint by product. ``data_dir``: the folder with
    ``items_*.json`` (``.xz`` and ``.gz`` too). ``num_products``: use the first N products. ``search``:
    ``bm25`` (no Java) or ``lucene`` (extra ``lucene``). ``server``: address of a ``paw serve webshop``
    whose shop is used instead. ``goals``: ``synthetic``, ``human``, or a list of goals in the original's
    form (or JSON of it), which become the tasks ``goal/0``, ``goal/1``, ... of every split; by default
    ``human`` for the full official set, else ``synthetic``. ``prices``: dollars by asin (or JSON of it);
    else prices are sampled by ``price_seed`` from a product's range.
    ``nouns``: ``spacy`` or ``rules``, for the reward; by default spaCy's model for official
    products if it is installed. ``show_attributes``: a page with the product's attributes.
    ``token``: bearer token of the server.
    """

    agent = AgentDefaults(template="webshop", success_reward=10.0)
    held_out_splits = ("valid", "test")
    forkable = True

    def __new__(
        cls,
        *args: Any,
        server: str | None = None,
        token: str | None = None,
        render_mode: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """With ``server`` the environment is a client of that server's shop: a ``RemoteEnv``."""
        if server is None:
            return super().__new__(cls)
        from paw_gym.remote.env import RemoteEnv

        signature = inspect.signature(WebShopEnv.__init__)
        given = signature.bind(cls, *args, **kwargs).arguments
        chosen = {n: v for n, v in given.items() if v not in (cls, signature.parameters[n].default)}
        for name in chosen:
            if name not in CLIENT_SETTINGS:
                raise ValueError(
                    f"{name} is the server's to choose: give it to `paw serve webshop`, "
                    "or leave server out."
                )
        return RemoteEnv(server, SHOP_ID, token, render_mode=render_mode, **chosen)

    def __init__(
        self,
        split: str = "train",
        data_dir: str | Path | None = None,
        num_products: int | None = None,
        search: str = "bm25",
        server: str | None = None,
        goals: Any = None,
        prices: Any = None,
        max_steps: int = 15,
        nouns: str | None = None,
        price_seed: int = 0,
        show_attributes: bool = False,
        token: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        if token is not None:
            raise ValueError("token is for a server: give its address as server='http://...'.")
        self.shop, tasks = open_shop(
            ShopSettings(
                None if data_dir is None else str(data_dir),
                num_products,
                search,
                _frozen(goals),
                _frozen(prices),
                nouns,
                price_seed,
                show_attributes,
            ),
            split,
        )
        super().__init__(tasks, max_steps, render_mode)
        self.state: Any = Visit()
        self._page: Page | None = None

    @property
    def page(self) -> Page:
        """The page that is shown, as data."""
        if self._page is None:
            self._page = self.shop.show(self.state, self.task.data)
        return self._page

    def _start(self, task: Task) -> Outcome:
        self.state, self._page = Visit(), None
        return self._outcome(True)

    def _act(self, action: str) -> Outcome:
        moved = self.shop.act(self.state, self.page, parse_action(action))
        if moved is not None:
            self.state, self._page = moved, None
        return self._outcome(moved is not None)

    def _outcome(self, valid: bool) -> Outcome:
        page = self.page
        parts = asdict(page.score) if isinstance(page, DonePage) else None
        score = parts["reward"] if parts else 0.0
        actions = [SEARCH_ACTION] if isinstance(page, SearchPage) else []
        actions += [f"click[{text}]" for text in page.clickables if text != "search"]
        return Outcome(
            page.text(),
            reward=score,
            terminated=parts is not None,
            success=score == 1.0,
            score=score,
            action_is_valid=valid,
            admissible_actions=actions,
            info={"reward_parts": parts},
        )

    def _set_state(self, state: Any) -> None:
        self.state, self._page = state, None

    def is_admissible(self, action: str) -> bool:
        """True if the page accepts an action: the list cannot hold every search."""
        return self.shop.act(self.state, self.page, parse_action(action)) is not None

    def prompt_observation(self, observation: str) -> str:
        """The text without the instruction, which has its own slot in the prompt."""
        if self._task is not None:
            shown = f"Instruction: [SEP] {self._task.instruction.strip()} [SEP] "
            if shown in observation:
                return observation.replace(shown, "", 1)
        return _INSTRUCTION.sub("", observation, count=1)  # a record of another task

    def reference_solution(self) -> list[str]:
        """A purchase with score 1, by an expert that knows the goal's product."""
        return solve(self.shop, self.task.data)

    def expert(self) -> Callable[[], str]:
        """A shopper that acts on the text alone, as a policy must: the source of demonstrations."""
        shopper = Shopper(self.task.instruction)

        def act() -> str:
            chosen = [value for _, value in self.state.options]
            return shopper.act(self._last.observation, self._last.admissible_actions or (), chosen)

        return act


@dataclass(frozen=True)
class ShopSettings:
    """The settings of a shop, with the arguments of ``WebShopEnv``; equal ones share one shop."""

    data_dir: str | None = None
    num_products: int | None = None
    search: str = "bm25"
    goals: str | None = None
    """a kind, JSON of goals, a path, or ``None`` for the default"""
    prices: str | None = None
    nouns: str | None = None
    price_seed: int = 0
    show_attributes: bool = False

    def __post_init__(self) -> None:
        require_choice("search", self.search, ENGINES)

    @property
    def folder(self) -> DataFolder | None:
        """The official data; ``None``: the products are generated."""
        if self.data_dir is None:
            return None
        return DataFolder(user_path(self.data_dir), self.num_products)


def _frozen(value: Any) -> str | None:
    """Goals or prices in a form that can be compared: JSON, a path, or a kind."""
    if value is None or isinstance(value, str):
        return value
    return str(value) if isinstance(value, Path) else json.dumps(value)


def open_shop(settings: ShopSettings, split: str) -> tuple[Shop, TaskSet]:
    """The shop and the tasks of a split, made once per process, and again if a file has changed."""
    require_choice("split", split, SPLITS)
    folder = settings.folder
    files = [] if folder is None else [*folder.files]
    files += filter(None, (file_at(text) for text in (settings.goals, settings.prices) if text))
    return _opened(settings, split, tuple(file_version(path) for path in files))


@lru_cache(maxsize=8)
def _opened(settings: ShopSettings, split: str, versions: tuple[str, ...]) -> tuple[Shop, TaskSet]:
    shop, tagger_name = _shop(settings, versions)
    parts = [shop.catalogue.fingerprint, tagger_name, settings.price_seed, shop.given_prices]
    fingerprint = json.dumps(parts, sort_keys=True)
    folder, kind = settings.folder, settings.goals
    if kind is not None and kind not in GOAL_KINDS:
        if kind.isidentifier() and file_at(kind) is None:
            require_choice("kind of goals", kind, GOAL_KINDS)
        return shop, given_tasks(given_goals(kind), fingerprint)
    if kind is None:
        kind = "human" if folder is not None and folder.has_human_goals else "synthetic"
    of = (split, shop.price, settings.price_seed, fingerprint)
    if kind == "synthetic":
        return shop, synthetic_tasks(shop.catalogue, *of)
    if folder is None:
        raise ValueError("goals='human' needs data_dir: the generated products have none.")
    return shop, human_tasks(shop.catalogue, folder.human_instructions(), *of)


@lru_cache(maxsize=8)
def _shop(settings: ShopSettings, versions: tuple[str, ...]) -> tuple[Shop, str]:
    folder = settings.folder
    if folder is None:
        catalogue = generated_catalogue(settings.num_products)
        # the same reward on every machine, whatever is installed
        name = choose_tagger(settings.nouns or "rules")
    else:
        catalogue = folder.catalogue()
        name = choose_tagger(settings.nouns)
    shop = Shop(
        catalogue,
        ENGINES[settings.search](catalogue),
        TAGGERS[name],
        None if settings.prices is None else given_prices(settings.prices),
        settings.price_seed,
        settings.show_attributes,
    )
    return shop, name
