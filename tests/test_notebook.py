"""The notebook runs as it stands, and is one that Jupyter opens."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from files import load
from forked import Forked
from programs import python, said

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def test_there_is_one() -> None:
    assert NOTEBOOKS


RUN = ROOT / "scripts" / "run_notebook.py"


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_it_runs(notebook: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason='pip install ".[train]"')
    ended = Forked(load("scripts/run_notebook.py").code_of(notebook), folder=tmp_path).wait()
    assert ended.code == 0, ended.output
    assert "expert  solved 8 of 8 games" in ended.stdout
    assert not any(tmp_path.iterdir()), "it leaves nothing behind"


def test_each_is_run_up_to_one_that_fails(tmp_path: Path) -> None:
    for name, line in {"good": "print('yes')", "broken": "assert False, 'no'"}.items():
        cells: list[dict[str, Any]] = [{"cell_type": "code", "source": [line]}]
        (tmp_path / name).write_text(json.dumps({"cells": cells}))
    assert said(RUN, "good", folder=tmp_path) == "yes"
    answer = python(RUN, "good", "broken", "good", folder=tmp_path)
    assert answer.returncode != 0 and answer.stdout == "yes\n"
    assert "AssertionError: no" in answer.stderr


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_it_is_a_notebook_without_outputs(notebook: Path) -> None:
    """Format 4.5: ids that are unique; and what it printed on somebody's machine is not kept."""
    book = json.loads(notebook.read_text(encoding="utf-8"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    for cell in book["cells"]:
        assert cell["cell_type"] in ("markdown", "code")
        assert cell.get("outputs", []) == [] and cell.get("execution_count") is None


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_in_a_hosted_runtime_it_installs_from_the_clone(notebook: Path, tmp_path: Path) -> None:
    """Its first cell finds the clone and installs from it, or names what is missing."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    first = "".join(next(cell for cell in cells if cell["cell_type"] == "code")["source"])
    shown = "import subprocess\nsubprocess.run = lambda words, check: print(*words)\n"
    bare = [sys.executable, "-I", "-S", "-c"]  # no site-packages, as where nothing is installed
    nothing = subprocess.run([*bare, shown + first], cwd=tmp_path, capture_output=True, text=True)
    assert nothing.returncode != 0 and "clone it here first" in nothing.stderr
    (tmp_path / "clone" / "paw_gym").mkdir(parents=True)
    found = subprocess.run([*bare, shown + first], cwd=tmp_path, capture_output=True, text=True)
    assert found.stdout.strip().endswith(f"pip install -q {tmp_path / 'clone'}[train,export]")
