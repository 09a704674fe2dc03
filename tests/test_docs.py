"""What the documentation shows is run: every Python block, in order, every example, the notebook."""

from __future__ import annotations

import json
import re
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from files import load
from forked import Forked
from programs import python, said

from paw_train.settings.recipes import load_settings

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
(NOTEBOOK,) = (ROOT / "examples").glob("*.ipynb")
BOOK = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
NEEDS = {
    "docs/environments/small.md: BabyAI": "minigrid",
    "docs/environments/small.md: TextWorld": "textworld",
    "docs/environments/small.md: TextWorldExpress": "textworld_express",
    "docs/environments/small.md: ScienceWorld": "scienceworld",
    "docs/environments/tau2.md": "tau2",
}
ORIGINAL = {"docs/environments/small.md: TextWorld": pytest.mark.original}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def programs() -> dict[str, str]:
    """The Python of each page; of the page on small worlds, of each section."""
    found = {}
    for page in PAGES:
        parts = {name(page): page.read_text(encoding="utf-8")}
        if page.name == "small.md":
            sections = re.split("^## ", parts.popitem()[1], flags=re.MULTILINE)[1:]
            parts = {f"{name(page)}: {text.splitlines()[0]}": text for text in sections}
        for title, text in parts.items():
            code = [block for tag, block in FENCE.findall(text) if tag == "python"]
            if code:
                found[title] = "\n".join(code)
    return found


RUN = """
import runpy, sys, warnings
if sys.argv.pop(1):
    warnings.simplefilter("error", UserWarning)
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


def printed(script: Path, folder: Path, *arguments: str, warnings: bool = True) -> str:
    """What a program prints; one that needs the trainer is spared the import of it."""
    if "paw_train" not in script.read_text(encoding="utf-8"):
        strict = [] if warnings else ["-W", "error::UserWarning"]
        return said(*strict, script, *arguments, folder=folder)
    ended = Forked(RUN, "" if warnings else "strict", script, *arguments, folder=folder).wait()
    assert ended.code == 0, ended.output
    return ended.stdout.strip()


@pytest.mark.parametrize(
    ("title", "code"),
    [pytest.param(t, c, marks=ORIGINAL.get(t, ()), id=t) for t, c in programs().items()],
)
def test_python_of_page(title: str, code: str, tmp_path: Path) -> None:
    if title in NEEDS:
        pytest.importorskip(NEEDS[title])
    script = tmp_path / "page.py"
    script.write_text(code, encoding="utf-8")
    printed(script, tmp_path, warnings=False)


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_example(example: Path, tmp_path: Path) -> None:
    short = ["--smoke"] if "--smoke" in example.read_text(encoding="utf-8") else []
    assert printed(example, tmp_path, *short)
    assert not any(tmp_path.iterdir()), "an example leaves nothing behind"


def shown_commands(program: str) -> set[str]:
    """Words that follow ``program`` at the start of a line of a shell block, or in inline code."""
    words: set[str] = set()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for code in (*[code for tag, code in FENCE.findall(text) if tag == "bash"],
                     *re.findall(r"`([^`\n]+)`", text)):  # fmt: skip
            words |= set(re.findall(rf"^{program} ([a-z][a-z-]*)", code, re.M))
    return words


def test_shown_commands_and_targets_exist() -> None:
    import typer

    from paw_train.cli.program import app

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    targets = re.findall("^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    for program, known in (("paw", commands), ("make", targets)):
        shown = shown_commands(program)
        assert shown and shown <= set(known), program


def test_the_table_of_settings_shows_the_embedded_default_as_it_is() -> None:
    settings, checked = load_settings("embedded"), 0
    page = (ROOT / "docs/train.md").read_text(encoding="utf-8")
    table = page.split("## The settings that matter")[1].split("```")[0]
    for names, values in re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|", table, re.M):
        for name, value in zip(
            re.findall("`([a-z_.]+)[.KEY]*`", names), values.split(","), strict=False
        ):
            shown, found = value.strip(" `"), attrgetter(name)(settings)
            if shown and found is not None and name != "env.id":
                same = float(shown) == found if shown[0].isdigit() else shown == str(found).lower()
                assert same, f"{name}: {shown} is {found}"
                checked += 1
    assert checked > 15


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason='pip install ".[train]"')
    ended = Forked(load("scripts/run_notebook.py").code_of(NOTEBOOK), folder=tmp_path).wait()
    assert ended.code == 0, ended.output
    assert "expert  solved 8 of 8 games" in ended.stdout
    assert not any(tmp_path.iterdir()), "it leaves nothing behind"


def test_each_notebook_is_run_up_to_one_that_fails(tmp_path: Path) -> None:
    for name, line in {"good": "print('yes')", "broken": "assert False, 'no'"}.items():
        cells: list[dict[str, Any]] = [{"cell_type": "code", "source": [line]}]
        (tmp_path / name).write_text(json.dumps({"cells": cells}))
    run = ROOT / "scripts" / "run_notebook.py"
    assert said(run, "good", folder=tmp_path) == "yes"
    answer = python(run, "good", "broken", "good", folder=tmp_path)
    assert answer.returncode != 0 and answer.stdout == "yes\n"
    assert "AssertionError: no" in answer.stderr


def test_the_notebook_has_no_outputs() -> None:
    """Format 4.5: ids that are unique; and what it printed on somebody's machine is not kept."""
    assert (BOOK["nbformat"], BOOK["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in BOOK["cells"]}) == len(BOOK["cells"])
    for cell in BOOK["cells"]:
        assert cell["cell_type"] in ("markdown", "code")
        assert cell.get("outputs", []) == [] and cell.get("execution_count") is None


def test_in_a_hosted_runtime_the_notebook_installs_from_the_clone(tmp_path: Path) -> None:
    first = "".join(next(cell for cell in BOOK["cells"] if cell["cell_type"] == "code")["source"])
    shown = "import subprocess\nsubprocess.run = lambda words, check: print(*words)\n"
    bare = ("-I", "-S", "-c")  # no site-packages, as where nothing is installed
    nothing = python(*bare, shown + first, folder=tmp_path)
    assert nothing.returncode != 0 and "clone it here first" in nothing.stderr
    (tmp_path / "clone" / "paw_gym").mkdir(parents=True)
    found = python(*bare, shown + first, folder=tmp_path)
    assert found.stdout.strip().endswith(f"pip install -q {tmp_path / 'clone'}[train,export]")
