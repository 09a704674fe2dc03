"""Errors that mean that a process of the run is gone, which a restart helps against."""

from __future__ import annotations

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


def is_death(error: BaseException) -> bool:
    """Whether a process died, here or in the remote task whose error this is."""
    if any(kind.__name__ in DEATHS for kind in type(error).__mro__):
        return True
    remote = any(kind.__name__ == "RayTaskError" for kind in type(error).__mro__)
    # Ray gives the errors of tasks that called tasks as text
    return remote and any(f"{name}:" in str(error) for name in DEATHS)
