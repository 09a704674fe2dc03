"""What an installation brings; pinned sets, images and documented steps agree with ``pyproject.toml``."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from files import load
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from programs import said

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FRAMEWORKS = ["inspect", "openenv", "verifiers"]
WITH_EXTRAS = ["cpu", "train", "servers", "original", "gpu", "cluster", *FRAMEWORKS]
SETS = [*WITH_EXTRAS, "install", "audit", "build", "deepspeed", "flash-attn", "cluster-cpu"]
BUILT_IN_PLACE = {"cluster": ["deepspeed", "flash-attn"]}
"""sets that are installed with other sets"""
LINUX = {
    "python_version": "3.11", "python_full_version": "3.11.9", "sys_platform": "linux",
    "platform_system": "Linux", "platform_machine": "x86_64", "extra": "",
}  # fmt: skip
HEAVY = ("torch", "transformers", "pyarrow", "textworld", "alfworld", "numba", "paw_train")
DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))


@pytest.fixture(scope="module")
def lock() -> ModuleType:
    return load("scripts/lock.py")


def pins(name: str) -> dict[str, str]:
    """Versions of a set, by package, for Python 3.11 on Linux."""
    found = {}
    for line in lines(name):
        if line.startswith("--"):
            continue
        requirement = Requirement(line.partition(" --hash")[0])
        (version,) = requirement.specifier
        assert version.operator == "==", f"{name}: {line} is not pinned"
        if requirement.marker is None or requirement.marker.evaluate(LINUX):
            package = canonicalize_name(requirement.name)
            assert package not in found, f"{name}: {package} is pinned twice"
            found[package] = version.version
    return found


def lines(name: str) -> list[str]:
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    joined = text.replace("\\\n", "").splitlines()
    return [" ".join(line.split()) for raw in joined if (line := raw.partition("#")[0].strip())]


@pytest.mark.parametrize("name", WITH_EXTRAS)
def test_a_set_pins_every_direct_dependency_within_its_range(name: str, lock: ModuleType) -> None:
    extras, options = lock.SETS[name]
    pinned = pins(name)
    for other in BUILT_IN_PLACE.get(name, ["torch"] if "torch" in options else []):
        pinned |= pins(other)
    ours = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][e] for e in extras)]
    for requirement in map(Requirement, itertools.chain(*ours)):
        version = pinned.get(canonicalize_name(requirement.name))
        assert version is not None, (
            f"{requirement} has no pin in requirements/{name}.txt: make lock"
        )
        assert requirement.specifier.contains(version, prereleases=True), (
            f"{requirement}: {version}"
        )


@pytest.mark.parametrize(
    ("package", "floor"), [("jinja2", "3.1.6"), ("sentence-transformers", "6.0")]
)
def test_no_version_is_taken_that_runs_code_of_a_template_or_a_model(
    package: str, floor: str
) -> None:
    asked = [*PROJECT["dependencies"], *itertools.chain(*PROJECT["optional-dependencies"].values())]
    sets = [line for file in (ROOT / "requirements").glob("*.txt") for line in lines(file.stem)]
    pinned = [line.partition(" --hash")[0] for line in sets if not line.startswith("--")]
    for given in (asked, pinned):
        found = [r for r in map(Requirement, given) if canonicalize_name(r.name) == package]
        assert found
        for requirement in found:
            least = [s.version for s in requirement.specifier if s.operator in (">=", "==")]
            assert max(map(Version, least)) >= Version(floor), requirement


def test_make_installs_sets_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = re.findall(r"INSTALL,[^,]+,([a-z]+)\)|requirements/([a-z-]+)\.txt", makefile)
    assert {"train", "cpu", "original", "install", "audit"} <= {a or b for a, b in named}
    assert {a or b for a, b in named} <= {*SETS, "torch"}


def test_every_set_has_the_same_torch_and_build_tools() -> None:
    torch = pins("torch")["torch"]
    assert {pins(name)["torch"] for name in ("gpu", "cluster")} == {torch}
    cluster, build = pins("cluster"), pins("build")
    assert {name: cluster.get(name, version) for name, version in build.items()} == build
    for package in ("openrlhf", "ray", "transformers"):
        assert cluster[package] == pins("cluster-cpu")[package], f"{package}: CI tests another one"


@pytest.mark.parametrize("name", ["train", "servers", "original", "install"])
def test_what_is_installed_beside_the_cpu_set_has_its_versions(name: str) -> None:
    cpu = pins("cpu")
    part = pins(name)
    assert {package: cpu.get(package, version) for package, version in part.items()} == part
    assert name == "original" or set(part) <= set(cpu)


@pytest.mark.parametrize("name", ["cpu", "train", "servers", "original", "install"])
def test_a_set_for_cpus_takes_neither_cuda_nor_a_compiler(name: str) -> None:
    """Of what has no wheel, only the original engines hold C and C++."""
    assert not [p for p in pins(name) if re.match("nvidia-(?!tau2)|cuda-|triton|torch", p)]
    assert "--only-binary :all:" in lines(name)
    built = {line.split()[1] for line in lines(name) if line.startswith("--no-binary")}
    compiled = {"fast-downward-textworld", "jericho"} if name == "original" else set()
    assert built == {"func-timeout", "pyserini"} | compiled


def test_a_set_that_resolves_to_something_else_fails_the_check(
    lock: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def resolves(*words: str) -> None:
        out = Path(words[words.index("--output-file") + 1]) if "--output-file" in words else None
        if out is not None and out.name == "gpu.txt":
            out.write_text(out.read_text(encoding="utf-8") + "new-package==1.0\n", encoding="utf-8")
        if out is not None and out.name == "cpu.txt":  # the same pins, asked for by more packages
            out.write_text(out.read_text(encoding="utf-8").replace("# via ", "# via x, "))

    monkeypatch.setattr(lock, "_uv", resolves)
    monkeypatch.setattr(lock, "index_answers", lambda: True)
    assert lock.main(["--check"]) == 1
    shown = capsys.readouterr().out
    assert "requirements/gpu.txt: run make lock" in shown and "+new-package==1.0" in shown
    assert "requirements/cpu.txt: resolves" in shown


def test_without_an_index_the_check_states_that_it_did_not_run(
    lock: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    assert lock.main(["--check"]) == 0
    assert capsys.readouterr().out.startswith("NOT CHECKED")


def instructions(dockerfile: Path) -> list[str]:
    text = re.sub(r"^#.*\n", "", dockerfile.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]


BY_PIP = re.compile("pip (?:install|wheel) ")


def pip_steps(lines: list[str]) -> list[str]:
    """What pip installs, in order, without shell variables and options of caching.

    A wheel that a stage of its own builds counts where it is built.
    """
    found = [BY_PIP.split(line)[-1] for line in lines if BY_PIP.search(line)]
    left_out = re.compile("--no-cache-dir |--wheel-dir /wheels ")
    return [left_out.sub("", step) for step in found if "--find-links /wheels" not in step]


def test_the_image_of_the_cluster_installs_as_its_page_does() -> None:
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```bash\n(python3\.11 -m venv cluster .*?)```", page, re.DOTALL)
    steps = pip_steps(block.splitlines())
    assert steps == pip_steps(instructions(ROOT / "docker" / "cluster.Dockerfile"))
    torch, built, ours = (
        next(i for i, step in enumerate(steps) if part in step)
        for part in ("cluster.txt", "flash-attn.txt", "--no-build-isolation .")
    )
    assert torch < built < ours, "what is built against torch comes after it"


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_what_an_image_copies_and_names_exists(dockerfile: Path) -> None:
    lines = instructions(dockerfile)
    copies = [line for line in lines if line.startswith("COPY ") and "--from" not in line]
    copied = [source for line in copies for source in line.split()[1:-1]]
    for source in copied:
        assert (ROOT / source).exists(), f"{dockerfile.name} copies {source}"
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]
    packages = build["build"]["targets"]["wheel"]["only-include"]
    needed = {*packages, PROJECT["readme"], *PROJECT["license-files"], "hatch_build.py"}
    assert needed <= set(copied), "the wheel is built from these"
    for option in re.findall(r"-r (\S+)", "\n".join(pip_steps(lines))):
        assert (ROOT / option).is_file() and {option, Path(option).parts[0]} & set(copied)
    held = r"pip (?:install|wheel) (?!.*--(?:require-hashes|no-build-isolation|no-index))"
    assert not re.findall(held, "\n".join(lines))


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_stands_on_digests_and_does_not_run_as_root(dockerfile: Path) -> None:
    lines = instructions(dockerfile)
    text = "\n".join(lines)
    stages = re.findall(r"^FROM .* AS (\S+)", text, re.MULTILINE)
    others = re.findall(r"^(?:FROM|COPY --from=)\s*(\S+)", text, re.MULTILINE)
    others = [other for other in others if other not in stages]
    assert others and all(re.fullmatch(r"\S+:\S+@sha256:[0-9a-f]{64}", other) for other in others)
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users and users[-1] not in ("root", "0")
    assert lines.index(f"USER {users[-1]}") > max(
        i for i, line in enumerate(lines) if line.startswith(("RUN ", "COPY "))
    )


def test_the_servers_image_starts_a_command_that_exists() -> None:
    typer = pytest.importorskip("typer")
    from paw_train.cli.program import app

    lines = instructions(ROOT / "docker" / "servers.Dockerfile")
    words = [re.findall(r'"([^"]+)"', line) for line in lines if line.startswith(("ENTRY", "CMD"))]
    assert words[0] == ["paw", "serve"]
    serve = typer.main.get_command(app).commands["serve"]
    options = {o for parameter in serve.commands[words[1][0]].params for o in parameter.opts}
    assert {word for word in words[1] if word.startswith("--")} <= options


def test_the_module_in_the_id_registers(tmp_path: Path) -> None:
    code = "import gymnasium; print(gymnasium.make('paw_gym:paw_gym/ALFWorld-v0').spec.id)"
    assert said("-c", code, folder=tmp_path) == "paw_gym/ALFWorld-v0"


def test_an_import_brings_every_public_name_and_nothing_heavy() -> None:
    for module in ("paw_gym", "gymnasium", "paw_gym.wrappers", "paw_gym.pool", "paw_gym.retrieval"):
        code = f"import {module}, sys; print([m for m in {HEAVY} if m in sys.modules])"
        assert said("-c", code) == "[]", module
    code = "import paw_gym; [getattr(paw_gym, name) for name in paw_gym.__all__]; print('all')"
    assert said("-c", code) == "all"


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    pytest.importorskip("hatchling", reason="the wheel is built with hatchling (extra dev)")
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    [wheel] = folder.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_version_is_the_same_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    source = (ROOT / "paw_gym" / "__init__.py").read_text(encoding="utf-8")
    assert citation["version"] == PROJECT["version"]
    assert f'__version__ = "{PROJECT["version"]}"' in source
    assert (citation["title"], citation["license"]) == ("PaW-Gym", PROJECT["license"])


def test_the_changelog_has_an_entry_for_what_comes_and_dates_for_what_came() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", h) for h in headings[1:])


def test_the_wheel_holds_data_recipes_types_and_the_licence(names: set[str]) -> None:
    wanted = {f"{package}/py.typed" for package in ("paw_gym", "paw_train", "env_servers")}
    for folder in ("paw_gym/templates", "paw_gym/envs/alfworld/assets"):
        wanted |= {f"{folder}/{path.name}" for path in (ROOT / folder).iterdir() if path.is_file()}
    recipes = {path.relative_to(ROOT) for path in (ROOT / "recipes").glob("**/*.yaml")}
    assert recipes and len(wanted) > 3
    assert wanted | {f"paw_train/{recipe}" for recipe in recipes} <= names
    for licence in ("LICENSE", "NOTICE"):
        assert any(name.endswith(f"licenses/{licence}") for name in names)
    assert not any(name.startswith(("tests/", "docs/", "data/")) for name in names)
    assert not [name for name in names if name.endswith(".pth")]  # nothing runs as Python starts
