"""What an installation brings: registration by a bare ``import gymnasium``, light imports, the wheel."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
START_UP = (ROOT / "paw_gym_autoload.pth").read_text()


def python(code: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", code], cwd=folder, capture_output=True, text=True
    )


def said(code: str, folder: Path, *options: str) -> str:
    answer = python(code, folder, *options)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


def before_site(path: Path) -> str:
    """Code that runs the start-up line as Python's ``site`` does, with ``path`` to import from.

    The installed hook (if any) is taken out first, and so is whatever brings this clone's packages.
    """
    return f"""
import sys
root = {str(ROOT)!r}
sys.path = [{str(path)!r}, *(p for p in sys.path if p not in (root, ""))]
sys.meta_path = [f for f in sys.meta_path if type(f).__name__ != "AfterGymnasium"]
sys.modules.pop("paw_gym_autoload", None)
for line in {START_UP!r}.splitlines():
    exec(line)
"""


class TestBareImport:
    def test_installed_package_registers(self, tmp_path: Path) -> None:
        try:
            metadata.distribution("paw-gym")
        except metadata.PackageNotFoundError:
            pytest.skip("paw-gym is not installed in this environment (pip install -e .)")
        code = "import gymnasium; print(gymnasium.make('paw_gym/ALFWorld-v0').spec.id)"
        assert said(code, tmp_path) == "paw_gym/ALFWorld-v0"

    def test_line_registers(self, tmp_path: Path) -> None:
        code = (
            before_site(ROOT) + "import gymnasium; print(gymnasium.spec('paw_gym/ALFWorld-v0').id)"
        )
        assert said(code, tmp_path, "-W", "error") == "paw_gym/ALFWorld-v0"

    def test_submodule_first(self, tmp_path: Path) -> None:
        code = before_site(ROOT) + (
            "from gymnasium.envs.registration import registry; print('paw_gym/ALFWorld-v0' in registry)"
        )
        assert said(code, tmp_path, "-W", "error") == "True"

    def test_looking_for_gymnasium_does_not_use_the_hook_up(self, tmp_path: Path) -> None:
        code = before_site(ROOT) + (
            "import importlib.util; assert importlib.util.find_spec('gymnasium')\n"
            "import gymnasium; print(gymnasium.spec('paw_gym/ALFWorld-v0').id)"
        )
        assert said(code, tmp_path) == "paw_gym/ALFWorld-v0"

    def test_nothing_is_imported_before_gymnasium(self, tmp_path: Path) -> None:
        code = before_site(ROOT) + (
            "import json; print('gymnasium' in sys.modules, 'paw_gym' in sys.modules)"
        )
        assert said(code, tmp_path) == "False False"

    def test_hook_leaves_when_done(self, tmp_path: Path) -> None:
        code = before_site(ROOT) + (
            "import gymnasium; print([f for f in sys.meta_path if 'Gymnasium' in type(f).__name__])"
        )
        assert said(code, tmp_path) == "[]"

    def test_broken_package_is_a_warning(self, tmp_path: Path) -> None:
        (tmp_path / "paw_gym_autoload.py").write_text((ROOT / "paw_gym_autoload.py").read_text())
        (tmp_path / "paw_gym").mkdir()
        (tmp_path / "paw_gym" / "__init__.py").write_text("raise RuntimeError('half installed')")
        code = before_site(tmp_path) + "import gymnasium; print(gymnasium.__name__)"
        answer = python(code, tmp_path)
        assert answer.stdout.strip() == "gymnasium"
        assert "could not be registered" in answer.stderr and "half installed" in answer.stderr

    @pytest.mark.parametrize("left_behind", ["paw_gym_autoload.py", None])
    def test_uninstalled_package_is_silent(self, tmp_path: Path, left_behind: str | None) -> None:
        if left_behind:
            (tmp_path / left_behind).write_text((ROOT / left_behind).read_text())
        code = before_site(tmp_path) + "import gymnasium; print(gymnasium.__name__)"
        answer = python(code, tmp_path, "-W", "error")
        assert (answer.stdout.strip(), answer.stderr) == ("gymnasium", "")


class TestLightImport:
    HEAVY = ("torch", "transformers", "pyarrow", "textworld", "alfworld", "paw_train")

    @pytest.mark.parametrize("module", ["paw_gym", "gymnasium", "paw_gym.wrappers", "paw_gym.pool"])
    def test_brings_nothing_heavy(self, module: str) -> None:
        code = f"import {module}, sys; print([m for m in {self.HEAVY} if m in sys.modules])"
        assert said(code, ROOT) == "[]"

    def test_every_public_name_resolves(self) -> None:
        code = "import paw_gym; [getattr(paw_gym, name) for name in paw_gym.__all__]; print('all')"
        assert said(code, ROOT) == "all"


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


class TestWheel:
    def test_holds_the_start_up_file(self, names: set[str]) -> None:
        assert {"paw_gym_autoload.pth", "paw_gym_autoload.py"} <= names

    @pytest.mark.parametrize("folder", ["paw_gym/templates", "paw_gym/envs/alfworld/assets"])
    def test_holds_the_packages_data(self, names: set[str], folder: str) -> None:
        kept = {f"{folder}/{path.name}" for path in (ROOT / folder).iterdir() if path.is_file()}
        assert kept and kept <= names

    def test_holds_every_recipe(self, names: set[str]) -> None:
        recipes = {path.relative_to(ROOT) for path in (ROOT / "recipes").glob("**/*.yaml")}
        assert recipes and {f"paw_train/{recipe}" for recipe in recipes} <= names

    def test_holds_the_licence_and_no_tests(self, names: set[str]) -> None:
        assert any(name.endswith("licenses/LICENSE") for name in names)
        assert any(name.endswith("licenses/NOTICE") for name in names)
        assert not any(name.startswith(("tests/", "docs/", "data/")) for name in names)
