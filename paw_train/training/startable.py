"""What each engine asks before a run begins, without beginning it."""

from __future__ import annotations

from collections.abc import Callable

from paw_train.settings import Settings


def startable(settings: Settings, report: Callable[[str], None]) -> Settings:
    """The settings as the run will use them; nothing is written.

    Args:
        settings: of either engine, as the user gave them.
        report: gets a sentence about each thing that the run goes without.

    Raises:
        ValueError: something that the settings name is not there, cannot be done by the engine, or does not
            fit the machine.
        FileNotFoundError: nor data that the environment needs.
        ImportError: nor a package.
    """
    if settings.engine == "openrlhf":
        from paw_train.training.openrlhf.launch import startable_on_cluster

        return startable_on_cluster(settings, report)
    from paw_train.training.local import startable_here

    return startable_here(settings, report)
