"""Display names of ALFWorld entities, as the original's demangler gives them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def display_names(ids: Iterable[str]) -> dict[str, str]:
    """Name every entity: "bed_bar__plus_01..." becomes "bed 1".

    Ids are sorted and numbered downward within a name, so the first id gets the highest number.
    "basin" anywhere in an id is appended to its name ("sink..." becomes "sinkbasin 1"). An id
    without "_bar_" has no number, and the original then leaves a space at the end.

    Args:
        ids: lower-case PDDL ids of everything that the initial facts mention, types included.
    """
    ordered = sorted(ids)
    numbered = {entity: _base_name(entity) for entity in ordered if "_bar_" in entity}
    left = Counter(numbered.values())
    names = {}
    for entity in ordered:
        base = numbered.get(entity)
        if base is None:
            names[entity] = f"{entity} "
        else:
            names[entity] = f"{base} {left[base]}"
            left[base] -= 1
    return names


def _base_name(entity: str) -> str:
    name = entity.split("_bar_", 1)[0]
    return name + "basin" if "basin" in entity else name
