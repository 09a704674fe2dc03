"""Names, registries, locks, files, caches, and texts of others shown safely."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from programs import install
from rich.text import Text

from paw_gym.internals import locks
from paw_gym.internals.files import (
    append_jsonl,
    file_version,
    naming_full_disk,
    new_folder,
    open_text,
    private_file,
    private_folder,
    write_json,
    write_text,
)
from paw_gym.internals.locks import ProcessLock, is_held, only_process, require_idle
from paw_gym.internals.naming import did_you_mean
from paw_gym.internals.printable import one_line, printable, safe_console
from paw_gym.internals.registry import Registry


@pytest.mark.parametrize(
    ("typed", "valid", "offered"),
    [
        ("Boxs", ["tests/Boxes-v0", "tests/Doors-v0"], "Did you mean 'tests/Boxes-v0'?"),
        ("variation", ["numbers", "render_mode"], "Valid: 'numbers', 'render_mode'."),
        ("x", [], "There are none."),
        ("embeded", ["embedded", "wm_embedded", "z"], "Did you mean 'embedded' or 'wm_embedded'?"),
        ("q", list("abcdefghijklmn"), f"Valid: {', '.join(map(repr, 'abcdefghijkl'))} and 2 more."),
    ],
)
def test_only_similar_names_are_offered(typed: str, valid: list[str], offered: str) -> None:
    assert did_you_mean(typed, valid) == offered
    assert did_you_mean("q", list("abcdefghijklmn"), total=50).endswith(" and 38 more.")


@pytest.fixture
def registry() -> Registry[object]:
    made: Registry[object] = Registry("shape", "paw_tests.shapes")
    made.add("path", Path)
    return made


def test_another_package_is_loaded_by_name_only_and_a_broken_or_taken_one_is_named(
    registry: Registry[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = {"circle": "round_things:circle", "broken": "round_things:nothing"}
    install(tmp_path, "round-things", "circle = 'a circle'", {"paw_tests.shapes": points})
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.names() == ["broken", "circle", "path"]
    assert "round_things" not in sys.modules
    assert registry["circle"] == "a circle"
    with pytest.raises(ImportError, match=r"'broken' of round-things .*'round_things:nothing'"):
        registry["broken"]
    with pytest.raises(ValueError, match="There is a shape 'path' already"):
        registry.add("path", object())


pytest.importorskip("fcntl", reason="elsewhere nothing is protected")


HOLDS = """
import sys, time
from pathlib import Path
from paw_gym.internals.locks import only_process
with only_process(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A folder, and the process that holds it."""
    folder = tmp_path / "deep" / "run"
    command = [sys.executable, "-c", HOLDS, str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield folder, process
        process.kill()


def test_another_process_is_refused_until_the_first_is_gone(
    held: tuple[Path, subprocess.Popen[str]],
) -> None:
    folder, process = held
    assert is_held(folder)
    with pytest.raises(ValueError, match=r"Another process is working in .*run\. Wait"):
        require_idle(folder)
    refused = pytest.raises(ValueError, match=r"Another process is working in .*run\. Wait")
    with refused, only_process(folder):
        pytest.fail("two processes have it")
    assert folder.is_dir()
    process.kill()
    process.wait()
    assert not is_held(folder)
    require_idle(folder)
    with only_process(folder):
        assert is_held(folder)
    assert not is_held(folder)


def test_a_folder_that_stayed_empty_goes_and_a_filled_one_stays(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), only_process(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with only_process(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "file").touch()
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["file"]
    with only_process(tmp_path / "a"):
        pass
    assert (tmp_path / "a").is_dir()


def test_a_child_that_inherits_a_lock_holds_it_without_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "locks" / "deep" / "one"
    lock = ProcessLock(path)
    assert path.is_file() and not path.stat().st_mode & 0o111 and not is_held(path)
    assert lock.take() is True and is_held(path) is True
    second = ProcessLock(path)
    assert second.take() is False
    second.close()
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"],
        stdin=subprocess.PIPE,
        pass_fds=lock.descriptors,
    )
    with child:
        lock.close()
        assert is_held(path)
        child.kill()
    assert not is_held(path)
    assert is_held(tmp_path / "nothing") is False and not (tmp_path / "nothing").exists()


def test_without_locks_a_run_is_better_than_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_here(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks on this file system")

    lock = ProcessLock(tmp_path)
    monkeypatch.setattr(locks._fcntl, "flock", none_here)
    assert lock.take() is True
    monkeypatch.setattr(locks, "_fcntl", None)
    assert lock.take() is True and lock.descriptors == ()
    lock.close()


def test_a_folder_that_cannot_take_its_place_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("old")
    rename = os.rename

    def busy(source: Path, target: Path) -> None:
        if ".staging-" in source.name:
            raise OSError("busy")
        rename(source, target)

    monkeypatch.setattr(os, "rename", busy)
    for folder in (tmp_path / "data", tmp_path / "other" / "folders" / "data"):
        with pytest.raises(OSError, match="busy"), new_folder(folder):
            pass
    made_meanwhile = iter([False, True])  # by another process: then that is no failure
    with new_folder(tmp_path / "data", lambda folder: next(made_meanwhile)):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert (tmp_path / "data" / "a.txt").read_text() == "old"


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    value = {"a": [1.5, float("nan"), {"b": float("inf")}], "c": (float("-inf"), "Infinity")}
    expected = {"a": [1.5, None, {"b": None}], "c": [None, "Infinity"]}
    write_json(tmp_path / "a.json", value)
    append_jsonl(tmp_path / "a.jsonl", value)
    append_jsonl(tmp_path / "a.jsonl", {"whole": True})
    assert json.loads((tmp_path / "a.json").read_text()) == expected
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [expected, {"whole": True}]


def test_what_a_killed_process_left_goes_and_what_others_write_stays(tmp_path: Path) -> None:
    for name in ("a.part", "a.1.part"):
        (tmp_path / name).touch()
    write_text(tmp_path / "a", "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "a.1.part"]
    (tmp_path / "a.part").touch()
    write_json(tmp_path / "a", "text", shared=True)
    assert len(list(tmp_path.iterdir())) == 3


def _tensors_to(device: Path) -> None:
    import torch

    with device.open("wb") as file:
        torch.save(torch.zeros(10_000), file)


def _as_safetensors_says(device: Path) -> None:
    raise RuntimeError("I/O error: No space left on device (os error 28)")


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full")
@pytest.mark.parametrize(
    "write", [partial(append_jsonl, record=1), _tensors_to, _as_safetensors_says]
)
def test_a_full_disk_is_one_sentence_whoever_finds_it(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    with (
        pytest.raises(OSError, match=rf"No space left at {tmp_path}: free some"),
        naming_full_disk(tmp_path),
    ):
        write(Path("/dev/full"))
    with pytest.raises(FileNotFoundError, match="nothing"), naming_full_disk(tmp_path):
        (tmp_path / "nothing").read_text()
    with (
        pytest.raises(
            OSError, match=f"`ulimit -f` forbids a file of this size at {tmp_path}: raise"
        ),
        naming_full_disk(tmp_path),
    ):
        raise RuntimeError("I/O error: File too large (os error 27)")


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
PAGE = b"\n<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>"


READERS = (
    "envs.search_qa.questions:read_questions",
    "retrieval.corpus:Corpus.open",
    "envs.webshop.data_folder:read_json_list",
    "envs.alfworld.games:load_game",
)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("content", "says"), [(POINTER, "is a Git LFS pointer.*git lfs pull"), (PAGE, "is a web page")]
)
def test_what_stands_in_place_of_the_data_is_named(
    tmp_path: Path, reader: str, content: bytes, says: str
) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"data.jsonl {says}"):
        list(resolve_name(f"paw_gym.{reader}")(path))


def test_a_text_is_read_without_its_mark_and_a_change_is_another_version(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes("\ufeffa\r\nb".encode())
    with open_text(path) as file:
        assert file.read() == "a\r\nb"
    before = file_version(path)
    path.write_bytes(b"c")
    assert file_version(path) != before


@pytest.mark.parametrize("content", [b"PK\x03\x04....", b"BZh9...."])
def test_an_archive_under_the_name_of_a_text_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"data.jsonl is .*: unpack it"):
        open_text(path)


posix = pytest.mark.skipif(sys.platform == "win32", reason="modes are those of POSIX")


def _endpoint(root: Path) -> None:
    policy = pytest.importorskip("paw_train.policies.endpoint.policy")
    from paw_train.settings.endpoint import EndpointSettings

    cache = policy._cache_of(EndpointSettings(cache="auto"))
    cache.put("a request", {"an": "answer"})
    cache.close()


def _fills_corpus_cache(root: Path) -> None:
    from paw_gym.retrieval import corpus

    (root / "corpus.jsonl").write_text('{"id": "a", "contents": "text"}\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "_CACHED_FROM", 0)
        corpus.Corpus.open(root / "corpus.jsonl")


def _fills_shop_cache(root: Path) -> None:
    from paw_gym.envs.webshop.env import ShopSettings, open_shop

    open_shop(ShopSettings(num_products=5), "test")


@posix
@pytest.mark.parametrize("fill", [_endpoint, _fills_corpus_cache, _fills_shop_cache])
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


@posix
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


ESCAPES = "\x1b]0;title\x07\x1b[2J\x1b[31mred\x9b1m\u202eflip\x7f"


def obeyed(text: str) -> set[str]:
    return {c for c in text if ord(c) < 32 or 127 <= ord(c) < 160 or c == "\u202e"} - {"\n", "\t"}


def test_no_escape_is_left_in_a_text() -> None:
    assert obeyed(printable(ESCAPES)) == set() and printable("a\tb\nc") == "a\tb\nc"
    assert "\n" not in one_line(f"a\n{ESCAPES}\r\nb")


@pytest.mark.parametrize("terminal", [False, True])
def test_a_console_sends_its_own_styles_and_nobody_elses_escapes(terminal: bool) -> None:
    out = io.StringIO()
    system: Any = "standard" if terminal else None
    console = safe_console(file=out, force_terminal=terminal, color_system=system, width=200)
    console.print(Text(ESCAPES, style="bold"))
    console.print(ESCAPES, markup=False)
    text = out.getvalue()
    for foreign in ("\x1b]0", "\x1b[2J", "\x1b[31m", "\x07", "\x9b", "\u202e", "\x7f"):
        assert foreign not in text
    assert ("\x1b[1m" in text) == terminal


RESULT: dict[str, Any] = {
    "panel": f"p[red]{ESCAPES}", "panel_hash": "0" * 64, "model": f"m[bold]{ESCAPES}|<img src=x>",
    "agent": "policy", "n": 1, "tasks": 1, "success_rate": 1.0, "ci95": [0.2, 1.0], "complete": True,
    "by_type": {f"t[blink]{ESCAPES}": {"n": 1, "success_rate": 1.0, "ci95": [0.2, 1.0]}},
    "score": {"mean": 1.0, "ci95": [1.0, 1.0]}, "mean_steps": 1.0, "invalid_rate": 0.0, "seconds": 1.0,
    "errors": 1, "first_error": f"boom {ESCAPES}",
}  # fmt: skip


def test_tables_of_a_result_with_such_names_are_plain_texts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from paw_train.evaluation.comparison import as_markdown
    from paw_train.evaluation.terminal import Display

    display = Display()
    display.say(f"evaluating m[bold]{ESCAPES}")
    display.result(RESULT)
    shown, markdown = capsys.readouterr().out, as_markdown([RESULT])
    for text in (shown, markdown):
        assert obeyed(text) == set()
    for name in ("p[red]", "m[bold]", "t[blink]", "boom"):
        assert name in shown
    assert "\\<img" in markdown and "\\|" in markdown
