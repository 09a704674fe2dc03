"""The settings in which several runs differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from paw_train.settings.dotted import flatten

_NAMES = ("name", "out")
"""settings that differ between any two runs and mean nothing"""


def differences(settings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The settings that are not equal in all runs.

    Args:
        settings: of each run, nested.

    Returns:
        By dotted key, in the order of the first run that has it: ``key`` and ``values``, one a run, as
        JSON texts (a text without its quotes); ``None`` where a run has no such setting.
    """
    flat = [
        {key: v if isinstance(v, str) else json.dumps(v) for key, v in flatten(one) if v != {}}
        for one in settings
    ]
    keys = dict.fromkeys(key for one in flat for key in one if key not in _NAMES)
    found = []
    for key in keys:
        values = [one.get(key) for one in flat]
        if len(set(values)) > 1:
            found.append({"key": key, "values": values})
    return found
