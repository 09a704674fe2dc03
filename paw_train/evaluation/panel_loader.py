"""The tasks of a fixed panel, for any program: the standard library of Python 3.8 or newer is enough.

    panel = Panel("KIT", data="json_2.1.1")  # data: the folder of the games that the kit does not hold
    panel.tasks                              # all tasks in order: id, type, goal, seed, start, ...
    panel.part(worker, workers)              # those of one of several workers: together each task once
    panel.game(task)                         # path of a task's game file, compared by its SHA-256
    panel.price("B09QCP4579", 9.99, 19.99)   # WebShop: a product's price in its range

The order of a folder's entries, the number of workers and a seed have no part in any of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from typing import Any


class Panel:
    """The panel that lies in a folder, by default that of this file.

    Raises:
        ValueError: its tasks were changed.
    """

    def __init__(self, folder: str | None = None, data: str | None = None) -> None:
        self.folder = os.path.abspath(folder or os.path.dirname(os.path.abspath(__file__)))
        self.data = os.path.abspath(data or self.folder)
        with open(os.path.join(self.folder, "panel.json"), encoding="utf-8") as file:
            self.about = json.load(file)
        with open(os.path.join(self.folder, "tasks.jsonl"), encoding="utf-8") as file:
            self.tasks: list[dict[str, Any]] = [json.loads(line) for line in file]
        self.ids = [task["id"] for task in self.tasks]
        parts = "\n".join([self.about["environment"]["tasks"], *self.ids])
        if hashlib.sha256(parts.encode()).hexdigest() != self.about["panel_hash"]:
            raise ValueError(
                "tasks.jsonl does not hold the tasks of panel.json, or in another order."
            )

    def part(self, worker: int, workers: int) -> list[dict[str, Any]]:
        """The tasks of worker 0, 1, ... of so many."""
        return self.tasks[worker::workers]

    def game(self, task: dict[str, Any]) -> str:
        """The path of a task's game file.

        Raises:
            ValueError: the file's content is not the panel's.
        """
        path = os.path.join(self.data, *task["file"].split("/"))
        with open(path, "rb") as file:
            found = hashlib.sha256(file.read()).hexdigest()
        if found != task["sha256"]:
            raise ValueError(f"{path} has the SHA-256 {found}, the panel's {task['sha256']}.")
        return path

    def price(self, asin: str, low: float, high: float) -> float:
        """The price of a product of WebShop, in dollars: a sample from its range by seed and asin."""
        seed = self.about["environment"]["arguments"]["price_seed"]
        digest = hashlib.sha256(f"price\x1f{seed}\x1f{asin}".encode()).digest()
        return random.Random(int.from_bytes(digest[:8], "big")).uniform(low, high)
