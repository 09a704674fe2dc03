"""What tests register, and must not leave to one another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def registered_here() -> Iterator[None]:
    """Forgets at the end what was registered with us inside.

    What a package registered while it was imported inside stays: it would not do so again.
    """
    import gymnasium as gym

    from paw_gym import registration

    ours, gymnasiums = dict(registration._REGISTERED), dict(gym.registry)
    try:
        yield
    finally:
        for added in registration._REGISTERED.keys() - ours.keys():
            gym.registry.pop(added, None)
        registration._REGISTERED.clear()
        registration._REGISTERED.update(ours)
        gym.registry.update(gymnasiums)
