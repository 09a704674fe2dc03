"""What the documentation shows is run: every Python block, in order, and every example."""

from __future__ import annotations

import re
from operator import attrgetter
from pathlib import Path

import pytest
from forked import Forked
from programs import said

from paw_train.settings.recipes import load_settings

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NEEDS = {
    "docs/environments/small.md: BabyAI": "minigrid",
    "docs/environments/small.md: TextWorld": "textworld",
    "docs/environments/small.md: TextWorldExpress": "textworld_express",
    "docs/environments/small.md: ScienceWorld": "scienceworld",
    "docs/environments/tau2.md": "tau2",
}
"""code that needs a package that not everyone has"""
ORIGINAL = {"docs/environments/small.md: TextWorld": pytest.mark.original}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    return [
        code for tag, code in FENCE.findall(page.read_text(encoding="utf-8")) if tag == language
    ]


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
        return said(*([] if warnings else STRICT), script, *arguments, folder=folder)
    ended = Forked(RUN, "" if warnings else "strict", script, *arguments, folder=folder).wait()
    assert ended.code == 0, ended.output
    return ended.stdout.strip()


STRICT = ("-W", "error::UserWarning")


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


def shown_commands(program: str) -> list[str]:
    """Words that follow ``program`` at the start of a line of a shell block, or in inline code."""
    words = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        lines = [line for code in blocks(page, "bash") for line in code.splitlines()]
        lines += re.findall(r"`([^`\n]+)`", re.sub(r"^Planned:.*$", "", text, flags=re.MULTILINE))
        words += [m[1] for line in lines if (m := re.match(rf"{program} ([a-z][a-z-]*)", line))]
    return sorted(set(words))


@pytest.mark.parametrize("command", shown_commands("paw"))
def test_shown_command_exists(command: str) -> None:
    import typer

    from paw_train.cli.program import app

    assert command in typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("target", shown_commands("make"))
def test_shown_target_exists(target: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{target}:", makefile, re.MULTILINE)


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
