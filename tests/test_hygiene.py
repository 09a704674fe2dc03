"""What must not be in the code, and the verdict of the audit of dependencies."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from files import load
from programs import python

ROOT = Path(__file__).resolve().parents[1]
CODE = ("paw_gym", "paw_train", "env_servers", "scripts", "benchmarks", "examples")
FILES = sorted(
    [p for folder in CODE for p in (ROOT / folder).rglob("*.py")] + list(ROOT.glob("*.py"))
)
SERIALIZERS = {
    "pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle",
}  # fmt: skip
RULES = "S102,S103,S108,S202,S301,S302,S306,S307,S323,S501,S506,S602,S604,S605,S609,S701"
"""of ruff (bandit's): exec, file modes, temporary files, extractall, unpickling, marshal, mktemp, eval,
unverified TLS, unsafe YAML, shells, templates without escaping"""
LOADERS = ("from_pretrained", "SentenceTransformer", "CrossEncoder", "load_dataset", "LLM")
"""calls that run a model's or a data set's own code unless they are told not to"""
OWN_FORMS = ("super()", "peft.LoraConfig")
"""of these, the ones that run none: a method of ours that is called so, and a plain JSON file"""
IMPORTED = {
    # a copy of the process's own state goes through pickle to see that it can: nothing from outside
    ("paw_gym/contract/state.py", "pickle")
    # pickle.dumps alone, so that an environment that cannot be pickled is named; nothing is loaded
}
CALLED = {("paw_gym/contract/state.py", "S301")}


def defects(source: str) -> Iterator[str]:
    """What in a module could run code from data, beyond what ruff's rules see."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Call):
            yield from _call_defects(node)
        yield from (top for name in names if (top := name.split(".")[0]) in SERIALIZERS)


def _call_defects(node: ast.Call) -> Iterator[str]:
    name = ast.unparse(node.func)
    given = {k.arg: ast.unparse(k.value) for k in node.keywords}
    if name == "torch.load" and given.get("weights_only") != "True":
        yield "torch.load without weights_only=True"
    if given.get("allow_pickle", "False") != "False":
        yield "allow_pickle"
    owner, _, called = name.rpartition(".")
    loads = called in LOADERS and owner not in OWN_FORMS
    if (loads or "trust_remote_code" in given) and given.get("trust_remote_code") != "False":
        yield "trust_remote_code"
    if name.endswith((".extractall", ".unpack_archive")) and "filter" not in given:
        yield "extraction without a filter"


FOUND = {
    "from joblib import load": "joblib",
    "import torch\ntorch.load('x')": "torch.load without weights_only=True",
    "torch.load('x', weights_only=False)": "torch.load without weights_only=True",
    "np.load('x', allow_pickle=True)": "allow_pickle",
    "AutoModel.from_pretrained('x', trust_remote_code=flag)": "trust_remote_code",
    "package.SentenceTransformer('x', device=d)": "trust_remote_code",
    "LLM(model='x', **more)": "trust_remote_code",
    "tar.extractall('x')": "extraction without a filter",
}


def test_the_walk_finds_what_it_is_for_and_lets_the_rest_pass() -> None:
    assert {source: next(defects(source), None) for source in FOUND} == FOUND
    fine = "import json\ntorch.load(p, weights_only=True)\nnp.load(p)\ntar.extractall(p, filter='data')"
    assert list(defects(fine)) == []


def test_no_data_becomes_code() -> None:
    assert {
        (str(path.relative_to(ROOT)), defect)
        for path in FILES
        for defect in defects(path.read_text(encoding="utf-8"))
    } == IMPORTED


def test_what_is_printed_is_harmless() -> None:
    """Through consoles that send nobody's escapes, and as JSON that holds no NaN."""
    found = [
        f"{path.relative_to(ROOT)}: {ast.unparse(node.func)}"
        for path in FILES
        if path.relative_to(ROOT).parts[0] in ("paw_gym", "paw_train", "env_servers")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and (
            ast.unparse(node.func).split(".")[-1] == "Console"
            or (path.parent.name == "cli" and ast.unparse(node.func) == "json.dumps")
        )
    ]
    assert found == []  # that of paw_gym/internals/printable.py is a class of its own


def test_ruff_finds_nothing_dangerous() -> None:
    """But the one place, which shows that it looks."""
    pytest.importorskip("ruff", reason="ruff is not installed")
    command = "-m ruff check --isolated --no-cache --ignore-noqa --output-format json --select"
    folders = [*CODE, *(str(p.relative_to(ROOT)) for p in ROOT.glob("*.py"))]
    answer = python(*command.split(), RULES, *folders, folder=ROOT)
    found = json.loads(answer.stdout)
    assert {(str(Path(f["filename"]).relative_to(ROOT)), f["code"]) for f in found} == CALLED


def dependency(name: str, *holes: str) -> dict[str, Any]:
    found = [{"id": hole, "fix_versions": ["1.1"]} for hole in holes]
    return {"name": name, "version": "1.0", "vulns": found}


def test_only_a_hole_of_ours_is_an_error_and_what_was_not_asked_is_no_success() -> None:
    audit = load("scripts/audit.py")

    def assessed(*found: dict[str, Any]) -> tuple[list[str], int]:
        return audit.assess({"dependencies": found}, {"numpy"})  # type: ignore[no-any-return]

    lines, code = assessed(dependency("NumPy", "PYSEC-1"), dependency("idna"))
    assert (lines, code) == (["DIRECT: numpy 1.0: PYSEC-1, fixed in 1.1"], 1)
    lines, code = assessed(dependency("idna", "PYSEC-2"))
    assert code == 0 and lines[0].startswith("indirect: idna 1.0: PYSEC-2")
    missing = {"name": "numpy", "skip_reason": "Dependency not found on PyPI"}
    lines, code = assessed(missing)
    assert code == audit.NOT_AUDITED
    assert lines == ["NOT AUDITED: the advisory service knows none of the packages (a mirror?)."]
    lines, _ = assessed(missing, dependency("rich"))
    assert lines[0] == "Not audited, unknown to the service: numpy."
