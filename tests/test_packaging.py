"""What an installation brings: registration, light imports, the wheel."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from programs import said

ROOT = Path(__file__).resolve().parents[1]


class TestRegistration:
    @pytest.mark.parametrize(
        ("line", "id"),
        [
            ("import paw_gym", "paw_gym/ALFWorld-v0"),
            ("", "paw_gym:paw_gym/ALFWorld-v0"),
        ],
    )
    def test_an_import_or_the_module_in_the_id_registers(
        self, tmp_path: Path, line: str, id: str
    ) -> None:
        code = f"import gymnasium\n{line}\nprint(gymnasium.make({id!r}).spec.id)"
        assert said("-c", code, folder=tmp_path) == "paw_gym/ALFWorld-v0"

    def test_an_installation_runs_nothing_at_the_start_of_python(self, names: set[str]) -> None:
        assert not [name for name in names if name.endswith(".pth")]


class TestLightImport:
    HEAVY = ("torch", "transformers", "pyarrow", "textworld", "alfworld", "paw_train")

    @pytest.mark.parametrize("module", ["paw_gym", "gymnasium", "paw_gym.wrappers", "paw_gym.pool"])
    def test_brings_nothing_heavy(self, module: str) -> None:
        code = f"import {module}, sys; print([m for m in {self.HEAVY} if m in sys.modules])"
        assert said("-c", code) == "[]"

    def test_every_public_name_resolves(self) -> None:
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


class TestPublishedFacts:
    def test_the_version_is_the_same_everywhere(self) -> None:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
        said = (ROOT / "paw_gym" / "__init__.py").read_text(encoding="utf-8")
        assert citation["version"] == project["version"]
        assert f'__version__ = "{project["version"]}"' in said
        assert (citation["title"], citation["license"]) == ("PaW-Gym", project["license"])

    def test_the_changelog_has_an_entry_for_what_comes_and_dates_for_what_came(self) -> None:
        text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
        headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
        assert headings[0] == "Unreleased"
        assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", h) for h in headings[1:])


class TestWheel:
    @pytest.mark.parametrize("folder", ["paw_gym/templates", "paw_gym/envs/alfworld/assets"])
    def test_holds_the_packages_data(self, names: set[str], folder: str) -> None:
        kept = {f"{folder}/{path.name}" for path in (ROOT / folder).iterdir() if path.is_file()}
        assert kept and kept <= names

    def test_holds_every_recipe(self, names: set[str]) -> None:
        recipes = {path.relative_to(ROOT) for path in (ROOT / "recipes").glob("**/*.yaml")}
        assert recipes and {f"paw_train/{recipe}" for recipe in recipes} <= names

    @pytest.mark.parametrize("package", ["paw_gym", "paw_train", "env_servers"])
    def test_offers_its_types(self, names: set[str], package: str) -> None:
        assert f"{package}/py.typed" in names

    def test_holds_the_licence_and_no_tests(self, names: set[str]) -> None:
        assert any(name.endswith("licenses/LICENSE") for name in names)
        assert any(name.endswith("licenses/NOTICE") for name in names)
        assert not any(name.startswith(("tests/", "docs/", "data/")) for name in names)
