"""What a WebShop server serves: one shop, its tasks, and the sessions."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi.exceptions import HTTPException

from env_servers.webshop.sessions import SessionStore
from paw_gym.core import Task, TaskSet
from paw_gym.envs.webshop.env import ShopSettings, open_shop
from paw_gym.envs.webshop.tasks import SPLITS


@dataclass
class Store:
    """A shop with its sessions."""

    settings: ShopSettings
    sessions: SessionStore

    def __post_init__(self) -> None:
        self.shop, _ = open_shop(self.settings, next(iter(SPLITS)))

    def tasks(self, split: str) -> TaskSet:
        """The tasks of a split; an unknown split is answered with 404."""
        if split not in SPLITS:
            raise HTTPException(404, f"There is no split of that name; valid: {', '.join(SPLITS)}.")
        return open_shop(self.settings, split)[1]

    def task(self, split: str, task_id: str) -> Task:
        """A task; an unknown one is answered with 404."""
        try:
            found: Task = self.tasks(split)[task_id]
        except KeyError:
            raise HTTPException(404, f"There is no such task in split {split!r}.") from None
        return found
