"""What must not be in the code, and the verdict of the audit of dependencies."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from files import load

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
ALLOWED = {
    # a copy of the process's own state goes through pickle to see that it can: nothing from outside
    ("paw_gym/contract/state.py", "pickle"),
    ("paw_gym/contract/state.py", "S301"),
    # pickle.dumps alone, so that an environment that cannot be pickled is named; nothing is loaded
    ("paw_gym/internals/copying.py", "pickle"),
    # the name of the error that torch's safe loader raises
    ("paw_train/policies/local/checkpoint.py", "pickle"),
}


def defects(source: str) -> Iterator[str]:
    """What in a module could run code from data, beyond what ruff's rules see."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (
                a.name.split(".")[0] for a in node.names if a.name.split(".")[0] in SERIALIZERS
            )
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in SERIALIZERS:
            yield (node.module or "").split(".")[0]
        elif isinstance(node, ast.Call):
            yield from _call_defects(node)


def _call_defects(node: ast.Call) -> Iterator[str]:
    name = ast.unparse(node.func)
    given = {k.arg: k.value for k in node.keywords}

    def says(argument: str, value: bool) -> bool:
        constant = given.get(argument)
        return isinstance(constant, ast.Constant) and constant.value is value

    if name == "torch.load" and not says("weights_only", True):
        yield "torch.load without weights_only=True"
    if "allow_pickle" in given and not says("allow_pickle", False):
        yield "allow_pickle"
    owner, _, called = name.rpartition(".")
    loads = called in LOADERS and owner not in OWN_FORMS
    if (loads or "trust_remote_code" in given) and not says("trust_remote_code", False):
        yield "trust_remote_code"
    if name.endswith((".extractall", ".unpack_archive")) and "filter" not in given:
        yield "extraction without a filter"
    if name in ("yaml.load", "yaml.unsafe_load", "yaml.full_load", "os.system", "os.popen"):
        yield name


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import pickle", "pickle"),
        ("from joblib import load", "joblib"),
        ("import torch\ntorch.load('x')", "torch.load without weights_only=True"),
        ("torch.load('x', weights_only=False)", "torch.load without weights_only=True"),
        ("np.load('x', allow_pickle=True)", "allow_pickle"),
        ("AutoModel.from_pretrained('x', trust_remote_code=flag)", "trust_remote_code"),
        ("AutoTokenizer.from_pretrained('x')", "trust_remote_code"),
        ("package.SentenceTransformer('x', device=d)", "trust_remote_code"),
        ("load_dataset('json')", "trust_remote_code"),
        ("LLM(model='x', **more)", "trust_remote_code"),
        ("tar.extractall('x')", "extraction without a filter"),
        ("yaml.load(text, Loader)", "yaml.load"),
        ("os.system('ls')", "os.system"),
    ],
)
def test_the_walk_finds(source: str, found: str) -> None:
    assert list(defects(source)) == [found]


def test_the_walk_lets_pass() -> None:
    fine = "import json\ntorch.load(p, weights_only=True)\nnp.load(p)\ntar.extractall(p, filter='data')"
    assert list(defects(fine)) == []


def test_no_data_becomes_code() -> None:
    found = {
        (str(path.relative_to(ROOT)), defect)
        for path in FILES
        for defect in defects(path.read_text(encoding="utf-8"))
    }
    assert found - ALLOWED == set()


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
    assert found == ["paw_gym/internals/printable.py: Console"]


def _ruff(*arguments: str, stdin: str | None = None) -> set[tuple[str, str]]:
    pytest.importorskip("ruff", reason="ruff is not installed")
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--ignore-noqa"]
    command += ["--select", RULES, "--output-format", "json", *arguments]
    answer = subprocess.run(command, cwd=ROOT, input=stdin, capture_output=True, text=True)
    return {
        (Path(hit["filename"]).as_posix().removeprefix(f"{ROOT.as_posix()}/"), hit["code"])
        for hit in json.loads(answer.stdout)
    }


def test_ruff_finds_nothing_dangerous() -> None:
    folders = [*CODE, *(str(p.relative_to(ROOT)) for p in ROOT.glob("*.py"))]
    assert _ruff(*folders) - ALLOWED == set()


def test_ruff_would_find_it() -> None:
    source = "import subprocess, yaml\neval(x)\nsubprocess.run(x, shell=True)\nyaml.load(x)\n"
    hits = _ruff("--stdin-filename", "x.py", "-", stdin=source)
    assert {code for _, code in hits} >= {"S307", "S602", "S506"}


# --- the audit ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    return load("scripts/audit.py")


def dependency(name: str, *holes: str) -> dict[str, Any]:
    return {
        "name": name,
        "version": "1.0",
        "vulns": [{"id": hole, "fix_versions": ["1.1"]} for hole in holes],
    }


def test_only_a_hole_of_ours_is_an_error(audit: ModuleType) -> None:
    ours = {"dependencies": [dependency("NumPy", "PYSEC-1"), dependency("idna")]}
    lines, code = audit.assess(ours, {"numpy"})
    assert code == 1
    assert lines == ["DIRECT: numpy 1.0: PYSEC-1, fixed in 1.1"]
    lines, code = audit.assess({"dependencies": [dependency("idna", "PYSEC-2")]}, {"numpy"})
    assert code == 0
    assert lines[0].startswith("indirect: idna 1.0: PYSEC-2")


def test_what_was_not_asked_is_no_success(audit: ModuleType) -> None:
    missing = {"name": "numpy", "skip_reason": "Dependency not found on PyPI"}
    lines, code = audit.assess({"dependencies": [missing]}, {"numpy"})
    assert code == audit.NOT_AUDITED
    assert lines == ["NOT AUDITED: the advisory service knows none of the packages (a mirror?)."]
    lines, _ = audit.assess({"dependencies": [missing, dependency("rich")]}, {"numpy"})
    assert lines[0] == "Not audited, unknown to the service: numpy."
