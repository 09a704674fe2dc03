"""Writes the tables of ``docs/conformance.md`` from what ``paw conformance --json`` printed.

    paw conformance --engine local --json > benchmarks/conformance/local.json
    python scripts/conformance_page.py            # writes the page
    python scripts/conformance_page.py --check    # writes nothing; exit status 1 if the page is not current

Everything above the marker is written by hand.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "conformance.md"
RESULTS = ROOT / "benchmarks" / "conformance"
MARKER = "<!-- Below: written by scripts/conformance_page.py from benchmarks/conformance. -->\n"
ENGINES = {"local": "local engine", "openrlhf": "OpenRLHF engine", "trl": "TRL"}


def results() -> dict[str, dict[str, Any]]:
    """The results by engine, in the order of the columns."""
    paths = {name: RESULTS / f"{name}.json" for name in ENGINES}
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items()}


def cell(finding: Mapping[str, Any]) -> str:
    """The result of one fault in one engine: the checks that failed, or what else became of it."""
    if finding["state"] == "caught":
        own = "" if finding["planted_in"] == "border" else "\\*"
        return ", ".join(finding["checks"]) + own
    return str(finding["state"])


def tables() -> str:
    """The generated part of the page."""
    from paw_train.conformance.faults import FAULTS

    found = results()
    by_fault = {name: {f["fault"]: f for f in r["findings"]} for name, r in found.items()}
    head = " | ".join(ENGINES[name] for name in found)
    lines = [f"\n| fault | {head} |", "| --- " * (len(found) + 1) + "|"]
    for fault in FAULTS.values():
        cells = " | ".join(cell(by_fault[name][fault.name]) for name in found)
        lines.append(f"| {fault.what} (`{fault.name}`) | {cells} |")
    noticed = [f"{_noticed(r)} of {len(r['findings'])}" for r in found.values()]
    lines.append(f"| **noticed** | {' | '.join(noticed)} |")
    return "\n".join([*lines, "", *_notes(found)]) + "\n"


def _noticed(result: Mapping[str, Any]) -> int:
    return sum(f["state"] in ("caught", "refused") for f in result["findings"])


def _notes(found: Mapping[str, Any]) -> list[str]:
    notes = ["Without a fault:", ""]
    for name, result in found.items():
        versions = ", ".join(f"{k} {v}" for k, v in result["versions"].items())
        as_is = "equals the known-good values" if result["conforms"] else "**differs**"
        notes.append(
            f"- {ENGINES[name]}: {as_is}; {len(result['findings'])} faults in "
            f"{result['seconds']:.0f} s on one busy core ({versions})."
        )
    reasons = [
        f"- {ENGINES[name]}, `{f['fault']}`: {f['state']}: {f['message']}."
        for name, result in found.items()
        for f in result["findings"]
        if f["state"] != "caught"
    ]
    return [*notes, *(["", "Not caught by a check:", "", *reasons] if reasons else [])]


def page() -> str:
    """The whole page as it should be."""
    by_hand = PAGE.read_text(encoding="utf-8").partition(MARKER)[0]
    return by_hand + MARKER + tables()


def files() -> dict[Path, str]:
    """The page, and its text."""
    return {PAGE: page()}


if __name__ == "__main__":
    from generated import write_or_check

    sys.exit(write_or_check(__doc__, files()))
