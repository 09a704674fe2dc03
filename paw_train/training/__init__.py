"""Changes of the weights: warm start, updates, checkpoints, and the two engines.

``local`` is one process, CPU or one GPU; ``openrlhf`` a Ray cluster.
"""

from __future__ import annotations

from paw_train.settings import Settings


def require_startable(settings: Settings) -> None:
    """Raises what a run with these settings would raise before it starts."""
    if settings.engine == "openrlhf":
        from paw_train.training.openrlhf.launch import cluster_settings as startable
    else:
        from paw_train.training.local import local_settings as startable
    startable(settings, lambda sentence: None)
