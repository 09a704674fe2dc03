"""Test only: faults of a run, planned by environment variables and brought about in a vLLM engine's actor.

PAW_FAULTS: ``FOLDER;2:die;1:hang`` kills the engine after the second update of the process that runs
it; the next process, after its first update, stands still. Each fault leaves a file ``fault-N`` in
FOLDER, so that it comes once.
PAW_FAIL_EPISODE: the number of the episode, in the order in which they begin, whose environment raises.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path
from typing import Any


def after_update(number: int) -> None:
    """The next planned fault, if it is of this update."""
    folder, *faults = os.environ.get("PAW_FAULTS", "").split(";")
    for index, fault in enumerate(faults):
        mark = Path(folder) / f"fault-{index}"
        if mark.exists():
            continue
        update, action = fault.split(":")
        if number == int(update):
            mark.touch()
            _die() if action == "die" else time.sleep(3600)
        return


def _die() -> None:
    import psutil

    for child in psutil.Process().children(recursive=True):
        child.kill()


def break_an_episode() -> None:
    """Makes the planned episode's environment raise at its second step."""
    planned = int(os.environ.get("PAW_FAIL_EPISODE", 0))
    if not planned:
        return
    from paw_gym.wrappers import AgentInterface

    reset, step = AgentInterface.reset, AgentInterface.step
    numbers, lock = itertools.count(1), threading.Lock()
    steps: dict[int, int] = {}

    def counted_reset(self: Any, *args: Any, **kwargs: Any) -> Any:
        with lock:
            if next(numbers) == planned:
                steps[id(self)] = 0
        return reset(self, *args, **kwargs)

    def failing_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if id(self) in steps:
            steps[id(self)] += 1
            if steps[id(self)] == 2:
                del steps[id(self)]
                raise RuntimeError("the simulator crashed")
        return step(self, *args, **kwargs)

    AgentInterface.reset, AgentInterface.step = counted_reset, failing_step  # type: ignore[method-assign]
