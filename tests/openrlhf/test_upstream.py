"""Fails when a class or function of OpenRLHF that we override or rely on has changed.

Look at what changed, adapt ours, then write the new hashes: python tests/openrlhf/test_upstream.py
The names of upstream.json say what is looked at; add one with any hash to rely on more.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import sys
from pathlib import Path

import pytest

TABLE = Path(__file__).with_name("upstream.json")
KNOWN = json.loads(TABLE.read_text(encoding="utf-8"))


def hashes(package: Path) -> dict[str, str]:
    """``file:Class`` -> hash of its source without comments and layout."""
    found = {}
    for place in KNOWN:
        file, _, name = place.partition(":")
        tree = ast.parse((package / file).read_text(encoding="utf-8"))
        node = next(child for child in tree.body if getattr(child, "name", None) == name)
        found[place] = hashlib.sha256(ast.dump(node).encode()).hexdigest()[:16]
    return found


def _package() -> Path | None:
    spec = importlib.util.find_spec("openrlhf")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def test_what_we_build_on_has_not_changed() -> None:
    package = _package()
    if package is None:
        pytest.skip("OpenRLHF is not installed here (make test-openrlhf)")
    changed = [name for name, found in hashes(package).items() if KNOWN[name] != found]
    assert not changed, (
        f"OpenRLHF changed: {', '.join(sorted(changed))}. See this file's first lines."
    )


if __name__ == "__main__":
    place = _package()
    if place is None:
        sys.exit("OpenRLHF is not installed here")
    TABLE.write_text(json.dumps(hashes(place), indent=1, sort_keys=True) + "\n", encoding="utf-8")
