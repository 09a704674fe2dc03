"""What is kept between runs holds prompts, answers and episodes: no other user of the machine reads it."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paw_gym.cache import private_file, private_folder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="modes are those of POSIX")


def _endpoint(root: Path) -> None:
    policy = pytest.importorskip("paw_train.policies.endpoint.policy")
    from paw_train.settings.endpoint import EndpointSettings

    cache = policy._cache_of(EndpointSettings(cache="auto"))
    cache.put("a request", {"an": "answer"})
    cache.close()


def _viewer(root: Path) -> None:
    from paw_train.viewer.index import RunIndex

    RunIndex(root).refresh()


def _corpus(root: Path) -> None:
    from paw_gym.retrieval import corpus

    file = root / "corpus.jsonl"
    file.write_text('{"id": "a", "contents": "text"}\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "_CACHED_FROM", 0)
        corpus.Corpus.open(file)


def _shop(root: Path) -> None:
    from paw_gym.envs.webshop.env import ShopSettings, open_shop

    open_shop(ShopSettings(num_products=5), "test")


@pytest.mark.parametrize("fill", [_endpoint, _viewer, _corpus, _shop])
def test_a_cache_is_its_users_own(
    fill: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "cache"
    monkeypatch.setenv("PAW_CACHE_DIR", str(root))
    before = os.umask(0)  # of the least careful user
    try:
        fill(tmp_path)
    finally:
        os.umask(before)
    folders = list(root.iterdir())
    assert folders
    for folder in (root, *folders):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for file in root.rglob("*.sqlite*"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_what_others_could_read_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAW_CACHE_DIR", str(tmp_path))
    (tmp_path / "servers").mkdir(mode=0o755)
    assert stat.S_IMODE(private_folder("servers").stat().st_mode) == 0o700
    open_file = tmp_path / "file"
    open_file.touch(0o644)
    assert stat.S_IMODE(private_file(open_file).stat().st_mode) == 0o600
    (tmp_path / "link").symlink_to(open_file)
    with pytest.raises(OSError, match="link"):
        private_file(tmp_path / "link")
