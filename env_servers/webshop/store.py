"""The state of a WebShop server: one shop, its tasks, and the sessions of visitors."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastapi import Request

from env_servers.problems import ProblemError
from env_servers.sessions import Client, Session, SessionStore
from paw_gym.core import Task, TaskSet
from paw_gym.envs.webshop.env import ShopSettings, open_shop
from paw_gym.envs.webshop.goals import SPLITS
from paw_gym.envs.webshop.pages import Page
from paw_gym.envs.webshop.shop import Shop, Visit


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
