"""Deaths of a run's processes, and what has to be so before it starts again."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

DEATHS = (
    "ActorDiedError",
    "ActorUnavailableError",
    "EngineDeadError",
    "NodeDiedError",
    "OwnerDiedError",
    "RayActorError",
    "WorkerCrashedError",
)
"""names of Ray's and vLLM's exceptions; neither is imported here"""


_CONSTRUCTOR = "error raised in its creation task"
"""in Ray's error of an actor that died because its constructor raised"""

LONGEST_WAIT = 180.0
"""seconds that a restart waits for the memory of the processes before it"""
LOOK_EVERY = 3.0
"""seconds"""
SLACK = 1.0
"""GiB by which a GPU's use may differ from that before the run"""


def is_death(error: BaseException) -> bool:
    """True if a process died, here or in the remote task whose error this is.

    A constructor that raised would raise again: its actor's death is none.
    """
    if _CONSTRUCTOR in str(error):
        return False
    if any(kind.__name__ in DEATHS for kind in type(error).__mro__):
        return True
    remote = any(kind.__name__ == "RayTaskError" for kind in type(error).__mro__)
    # Ray gives the errors of tasks that called tasks as text
    return remote and any(f"{name}:" in str(error) for name in DEATHS)


def on_machines(call: Callable[[], T]) -> dict[str, T]:
    """Calls a function on each machine of the Ray cluster that has GPUs; its results, by address."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU")]
    task: Any = ray.remote(num_cpus=0)(call)
    begun = [
        task.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote()
        for node in nodes
    ]
    addresses = [node["NodeManagerAddress"] for node in nodes]
    return dict(zip(addresses, ray.get(begun), strict=True))


def gpu_memory_used() -> list[float]:
    """GiB in use on each GPU of this machine; empty without NVIDIA's driver."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [float(line) / 1024 for line in done.stdout.splitlines()]


def wait_for_memory(before: Mapping[str, list[float]]) -> None:
    """Waits until every GPU holds as little as before the run, or ``LONGEST_WAIT`` has passed.

    Args:
        before: GiB in use on the GPUs of each machine, by its address.
    """
    end = time.monotonic() + LONGEST_WAIT
    while held := _held(before, on_machines(gpu_memory_used)):
        if time.monotonic() > end:
            print(f"Not freed after {LONGEST_WAIT:.0f} s: {', '.join(held)}.", flush=True)
            return
        time.sleep(LOOK_EVERY)


def _held(before: Mapping[str, list[float]], now: Mapping[str, list[float]]) -> list[str]:
    return [
        f"{used - idle:.1f} GiB of GPU {number} on {address}"
        for address, uses in now.items()
        for number, (used, idle) in enumerate(zip(uses, before.get(address, uses), strict=False))
        if used > idle + SLACK
    ]
