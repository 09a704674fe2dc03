"""Whether a run could start, by either engine, without starting it."""

from __future__ import annotations

from paw_train.settings import Settings
from paw_train.training.preparation import prepared


def require_startable(settings: Settings) -> None:
    """Raises what a run with these settings would raise before it starts.

    Raises:
        ValueError: something that the settings name is not there, or cannot be trained with.
        ImportError: nor a package that they need.
    """
    if settings.engine == "openrlhf":
        from paw_train.training.openrlhf.launch import require_openrlhf
        from paw_train.training.openrlhf.mapping import require_possible

        require_possible(settings)
        require_openrlhf()
    prepared(settings, lambda sentence: None)
