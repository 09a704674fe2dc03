"""Whether a run could start, by either engine, without starting it."""

from __future__ import annotations

from paw_train.settings import Settings


def require_startable(settings: Settings) -> None:
    """Raises what a run with these settings would raise before it starts.

    Raises:
        ValueError: something that the settings name is not there, cannot be done by the engine, or does not
            fit the machine.
        FileNotFoundError: nor data that the environment needs.
        ImportError: nor a package.
    """
    if settings.engine == "openrlhf":
        from paw_train.training.openrlhf.launch import startable_on_cluster as startable
    else:
        from paw_train.training.local import startable_here as startable
    startable(settings, lambda sentence: None)
