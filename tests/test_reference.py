"""The pages that describe the code say what the code says."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import gymnasium as gym
import pytest
from files import load
from gymnasium.envs.registration import load_env_creator
from programs import said

import paw_gym  # noqa: F401  (registers the environments)

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def test_the_page_of_the_settings_is_current() -> None:
    script = load("scripts/settings_page.py")
    assert script.PAGE.read_text(encoding="utf-8") == script.page(), (
        "run: python scripts/settings_page.py"
    )


def test_what_the_page_of_the_code_says_to_open_is_there() -> None:
    page = (DOCS / "extend.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:paw_gym|paw_train|env_servers|examples)/[\w/.]+)`", page))
    assert len(named) >= 20
    assert [place for place in sorted(named) if not (ROOT / place).exists()] == []


@pytest.mark.parametrize(("engine", "caught"), [("local", 37), ("openrlhf", 37), ("trl", 35)])
def test_an_engine_of_the_page_conforms(engine: str, caught: int) -> None:
    text = (ROOT / "benchmarks" / "conformance" / f"{engine}.json").read_text(encoding="utf-8")
    result = json.loads(text)
    assert result["conforms"]
    states = [finding["state"] for finding in result["findings"]]
    assert states.count("caught") == caught and len(states) == 37
    assert {f["fault"] for f in result["findings"] if f["state"] == "cannot occur"} == (
        {"return_reset_at_observation", "gae_past_the_end"} if engine == "trl" else set()
    )


ENVS = sorted(i for i in gym.registry if i.startswith("paw_gym/") and "Remote" not in i)


def _page_of(env_id: str) -> str:
    """The page of an environment, or its section of the page on small worlds."""
    texts = []
    for page in sorted((DOCS / "environments").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        texts += re.split("^## ", text, flags=re.MULTILINE) if page.name == "small.md" else [text]
    found = [text for text in texts if f'gym.make("{env_id}"' in text]
    if not found:
        pytest.fail(f"no page in docs/environments makes {env_id}")
    return found[0]


@pytest.mark.parametrize("env_id", ENVS)
def test_page_and_docstring_have_every_argument_and_its_default(env_id: str) -> None:
    creator = load_env_creator(gym.registry[env_id].entry_point)  # type: ignore[arg-type]
    page, docstring = _page_of(env_id), inspect.getdoc(creator) or ""
    given = dict(inspect.signature(creator.__init__).parameters)  # type: ignore[misc]
    parameters = {k: v for k, v in given.items() if k not in ("self", "render_mode")}
    for name in parameters:
        assert f"``{name}``" in docstring, f"the docstring does not explain {name}"
        assert re.search(rf"`{name}\b", page), f"the page does not mention {name}"
    table = re.search(r"^\| argument \|.*?\n\n", page + "\n\n", re.MULTILINE | re.DOTALL)
    assert table, "a table that begins with '| argument |'"
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", table[0], re.MULTILINE)
    assert rows
    for name, default in rows:
        assert name in parameters, f"{env_id} has no argument {name}"
        literal = re.fullmatch(r"`(.*)`", default.strip())
        if literal:
            assert parameters[name].default == ast.literal_eval(literal[1]), name


METHOD = (DOCS / "method.md").read_text(encoding="utf-8")
FUNCTIONS = [
    pair
    for line in METHOD.splitlines()
    if line.startswith("| ") and not line.startswith("| `objective.")
    for pair in re.findall(r"`([a-z_.]+)\.([a-zA-Z]\w+)`", line.rstrip("| ").rpartition("|")[2])
    if pair != ("algorithm", "name")
]


def test_every_row_of_the_method_names_a_function() -> None:
    tables = re.findall(
        r"^\| (?:step|`algorithm\.name`) \|[^\n]*\n\|[ -|]*\n((?:\|[^\n]*\n)+)", METHOD, re.M
    )
    rows = [line for table in tables for line in table.splitlines()]
    assert len(rows) >= 14
    assert [row for row in rows if not re.search(r"\| `[\w.]+\.\w+`", row)] == []


@pytest.mark.parametrize(("module", "name"), sorted(set(FUNCTIONS)))
def test_every_function_that_the_method_names_is_there(module: str, name: str) -> None:
    found = getattr(importlib.import_module(f"paw_train.{module}"), name, None)
    assert callable(found), f"paw_train.{module} has no {name}"
    assert inspect.getdoc(found)


@pytest.mark.parametrize("row", [r for r in METHOD.splitlines() if re.match(r"\| .*\(Eq\. \d", r)])
def test_an_equation_stands_next_to_its_function(row: str) -> None:
    """The number that the page gives stands in the docstring of the function it names, or beside it."""
    number = re.search(r"Eq\. (\d+)", row)
    place = re.search(r"`([\w.]+)\.(\w+)` \|$", row)
    assert number and place
    function = getattr(importlib.import_module(f"paw_train.{place[1]}"), place[2])
    assert re.search(
        rf"Eq(s|uations?)?\. ?[\d, and-]*{number[1]}\b", inspect.getsource(function)
    ), row


@pytest.mark.slow
def test_the_pages_are_built_without_a_warning(tmp_path: Path) -> None:
    """mkdocs.yml has it warn of links and anchors that lead nowhere."""
    pytest.importorskip("material", reason='the docs are built with pip install ".[docs]"')
    build = ["-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    said(*build, folder=ROOT, NO_MKDOCS_2_WARNING="1")
    listed = (tmp_path / "llms.txt").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\]\((\S+\.md)\)", listed)) == sorted(
        str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")
    )


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_files_that_the_root_pages_link_to_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if not urlsplit(link).scheme:
            assert (ROOT / link).exists(), f"{name} links to {link}"


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda p: p.name)
def test_files_of_the_project_that_a_page_names_exist(page: Path) -> None:
    """``paw_train/losses/objective.py`` and the like, in inline code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    roots = "paw_gym|paw_train|env_servers|tests|benchmarks|examples|scripts|recipes"
    for name in re.findall(rf"`((?:{roots})/[\w./-]+\.\w+)`", text):
        assert (ROOT / name).exists(), f"{page.name} names {name}"
