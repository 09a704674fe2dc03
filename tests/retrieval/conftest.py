from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def aligned(shared_data: Path) -> Path:
    """The folder of benchmarks whose corpus holds all supporting passages."""
    folder = shared_data / "qa"
    if not (folder / "aligned_hotpotqa" / "corpus.jsonl").is_file():
        pytest.skip(f"no aligned corpora in {folder} (set PAW_SHARED_DATA)")
    return folder


@pytest.fixture
def small_corpus(tmp_path: Path) -> Path:
    """Four passages in the wiki-18 form."""
    passages = [
        (
            "a",
            '"Lake Orvin"\nLake Orvin is a lake in the north of Tavra. It is fed by the river Sel.',
        ),
        ("b", '"Sel"\nThe Sel is a river. It rises in the hills of Tavra.'),
        ("c", '"Mira Dovan"\nMira Dovan was a painter. She painted Lake Orvin many times.'),
        ("d", "A line without a title."),
    ]
    path = tmp_path / "corpus.jsonl"
    lines = [json.dumps({"id": i, "contents": contents}) for i, contents in passages]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
