"""Shared data, found through ``PAW_SHARED_DATA`` or beside the clone; tests skip where it is absent."""

from __future__ import annotations

import fcntl
import os
import tarfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from registries import registered_here

from paw_gym.registration import _OWN

# a busy machine is no failure, so an example may take as long as it takes
settings.register_profile(
    "paw", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("paw")

ROOT = Path(__file__).resolve().parents[1]

collect_ignore = []
if find_spec("torch") is None:  # tests of the policies
    collect_ignore += ["agents", "cli", "retrieval", "search_qa", "train", "viewer"]
if find_spec("fastapi") is None:  # and of what the extra `server` serves
    collect_ignore += ["cli", "env_servers", "gateway", "viewer"]

EXTRAS = {
    "paw_gym/BabyAI-v0": ("minigrid", "babyai"),
    "paw_gym/Tau2-v0": ("tau2", "tau2"),
    "paw_gym/TextWorld-v0": ("textworld", "textworld"),
    "paw_gym/TextWorldExpress-v0": ("textworld_express", "jvm"),
}
"""by id, the package that an environment needs and the extra that brings it"""
FEW_TASKS: dict[str, dict[str, Any]] = {
    "paw_gym/2048-v0": {"target": 32},
    "paw_gym/TextWorld-v0": {"num_tasks": 2},
    "paw_gym/TextWorldExpress-v0": {"game": "coin"},
}
"""arguments of environments whose tasks take seconds to make or to solve"""


SLOW = {"paw_gym/Remote-v0", "paw_gym/ScienceWorld-v0"}
"""environments with which a check of hundreds of episodes takes minutes, or a server; they have tests of
their own"""
ORIGINAL = {"paw_gym/TextWorld-v0": pytest.mark.original}
"""environments whose package takes a compiler: make test-original"""


@pytest.fixture(
    params=[pytest.param(id, marks=ORIGINAL.get(id, ())) for id in sorted(set(_OWN) - SLOW)]
)
def own_env(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Each environment of the package: its id, and arguments that keep a test short."""
    if request.param in EXTRAS:
        package, extra = EXTRAS[request.param]
        pytest.importorskip(package, reason=f"pip install '.[{extra}]'")
    return request.param, FEW_TASKS.get(request.param, {})


@pytest.fixture
def own_environments() -> Iterator[None]:
    """Environments that a test registers are forgotten after it."""
    with registered_here():
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data that is not part of the project."""
    folder = Path(os.environ.get("PAW_SHARED_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no shared data in {folder} (set PAW_SHARED_DATA)")
    return folder


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the tests compile and index stays out of the user's cache."""
    run = tmp_path_factory.getbasetemp()
    shared = run.parent if "PYTEST_XDIST_WORKER" in os.environ else run  # made once for all workers
    patch = pytest.MonkeyPatch()
    patch.setenv("PAW_CACHE_DIR", str(shared / "cache"))
    yield
    patch.undo()


@pytest.fixture(scope="session")
def official_shop(shared_data: Path) -> Path:
    """The folder with WebShop's official set of 1,000 products."""
    folder = shared_data / "webshop"
    if not (folder / "items_shuffle_1000.json.xz").is_file():
        pytest.skip(f"no WebShop data in {folder} (set PAW_SHARED_DATA)")
    return folder


@pytest.fixture(scope="session")
def alfworld_archive(shared_data: Path) -> Path:
    """Real ALFWorld games in the official layout."""
    archives = sorted((shared_data / "alfworld").glob("*.tar.xz"))
    if not archives:
        pytest.skip(f"no ALFWorld archive in {shared_data / 'alfworld'} (set PAW_SHARED_DATA)")
    return archives[0]


@pytest.fixture(scope="session")
def alfworld_data(alfworld_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive, unpacked once a run: the folder of json_2.1.1."""
    base = tmp_path_factory.getbasetemp()
    # the workers of pytest-xdist share the parent of their folders
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "alfworld-data"
    folder.mkdir(exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".unpacked").exists():
            with tarfile.open(alfworld_archive) as archive:
                archive.extractall(folder, filter="data")
            (folder / ".unpacked").touch()
    return folder
