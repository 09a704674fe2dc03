"""Downloads against a real HTTP server that cuts, corrupts, forgets and refuses."""

from __future__ import annotations

import hashlib
import re
import shutil
import struct
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from stat import S_IMODE
from types import SimpleNamespace
from typing import Any

import pytest
from files import archive, unpinned
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paw_gym.data import (
    DataFile,
    DownloadError,
    Manifest,
    dataset_names,
    download_dataset,
    fetch,
    load_manifest,
    read_receipt,
    verify_dataset,
)
from paw_gym.data.dataset import RECEIPT, unpack
from paw_gym.internals.locks import only_process

JSON, GAMES = "json_2.1.1_json.zip", "json_2.1.3_tw-pddl.zip"
TREE = {
    f"json_2.1.1/{split}/task-{i}/trial/traj_data.json": f"{split}{i}"
    for split in ("train", "valid_seen", "valid_unseen")
    for i in (1, 2)
}
PLAYED = {name.replace("traj_data.json", "game.tw-pddl"): "{}" for name in TREE}
PADDING = hashlib.shake_256(b"padding").hexdigest(300_000)
"""makes an archive of several chunks, which compression does not shrink away"""


@dataclass
class Served:
    """What the server has, how it misbehaves, and ALFWorld's data set, which is downloaded from it."""

    dest: Path
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    cut_after: int | None = None
    """bytes after which a connection breaks"""
    cuts: int = 0
    """how many more connections break"""
    status: list[int] = field(default_factory=list)
    """answers to give first"""
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """(path, Range) as they came"""
    url: str = ""

    def asked_for(self, name: str) -> list[str | None]:
        return [asked for path, asked in self.requests if path == f"/{name}"]

    def manifest(self, checksums: bool = False, **changes: Any) -> Manifest:
        """ALFWorld's, its addresses those of the server."""
        some = replace(unpinned(load_manifest("alfworld")).with_mirror(self.url), **changes)
        if not checksums:
            return some
        sums = {name: hashlib.sha256(body).hexdigest() for name, body in self.files.items()}
        return replace(some, files=tuple(replace(f, sha256=sums[f.name]) for f in some.files))

    def download(self, **settings: Any) -> Path:
        return download_dataset(self.manifest(settings.pop("known", False)), self.dest, **settings)

    def leftovers(self) -> list[str]:
        return sorted(path.name for path in self.dest.parent.iterdir() if path != self.dest)

    def flip(self, name: str, place: int, bits: int = 255) -> None:
        body = bytearray(self.files[name])
        body[place] ^= bits
        self.files[name] = bytes(body)


class Handler(BaseHTTPRequestHandler):
    served: Served

    def do_GET(self) -> None:
        served, asked = self.served, self.headers.get("Range")
        served.requests.append((self.path, asked))
        body = served.files.get(self.path.lstrip("/"))
        if served.status or body is None:
            self.send_error(served.status.pop(0) if served.status else 404)
            return
        start = int(asked[len("bytes=") : -1]) if asked and served.ranges else 0
        rest, place = body[start:], f"{start}-{len(body) - 1}"
        self.send_response((206 if start else 200) if rest else 416)
        if start:
            self.send_header("Content-Range", f"bytes {place if rest else '*'}/{len(body)}")
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if served.cut_after is not None and served.cuts > 0 and len(rest) > served.cut_after:
            served.cuts -= 1
            rest = rest[: served.cut_after]
        self.wfile.write(rest)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow each other without a pause."""
    monkeypatch.setattr(fetch, "time", SimpleNamespace(sleep=lambda seconds: None))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    files = {JSON: archive({**TREE, "json_2.1.1/padding.txt": PADDING}), GAMES: archive(PLAYED)}
    served = Served(tmp_path / "in" / "alf", files)
    http = ThreadingHTTPServer(("127.0.0.1", 0), type("H", (Handler,), {"served": served}))
    served.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield served
    http.shutdown()
    thread.join()
    http.server_close()


def test_a_download_brings_every_file_and_a_receipt(server: Served) -> None:
    dest = server.download()
    for name, text in {**TREE, **PLAYED}.items():
        assert (dest / name).read_text() == text
    receipt = read_receipt(dest)
    assert receipt is not None
    assert set(receipt["files"]) == {*TREE, *PLAYED, "json_2.1.1/padding.txt"}
    first, body = receipt["archives"][0], server.files[JSON]
    assert first["origin"] == f"{server.url}/{JSON}"
    assert first["sha256"] == hashlib.sha256(body).hexdigest()
    assert (first["bytes"], first["sha256_was_known"]) == (len(body), False)
    assert server.leftovers() == []
    assert S_IMODE(dest.stat().st_mode) == 0o755, "others may read it"


class TestResume:
    def test_a_cut_connection_goes_on_where_it_stopped(self, server: Served) -> None:
        server.cut_after, server.cuts = 90_000, 3
        assert (server.download(known=True) / "json_2.1.1/padding.txt").read_text() == PADDING
        ranges = [None, "bytes=90000-", "bytes=180000-", "bytes=270000-"]
        assert server.asked_for(JSON) == ranges

    def stop_halfway(self, server: Served, known: bool) -> Path:
        server.cut_after, server.cuts = 90_000, 1

        def give_up(seconds: float) -> None:
            raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(fetch, "time", SimpleNamespace(sleep=give_up))
            server.download(known=known)
        part = server.dest.parent / ".alf.download" / f"{JSON}.part"
        assert part.stat().st_size == 90_000
        assert not server.dest.exists()
        return part

    @pytest.mark.parametrize(("known", "ranges"), [(True, True), (True, False), (False, True)])
    def test_a_second_run_goes_on_where_it_is_sure_of_the_file(
        self, server: Served, known: bool, ranges: bool
    ) -> None:
        server.ranges = ranges
        self.stop_halfway(server, known)
        assert (server.download(known=known) / "json_2.1.1/padding.txt").read_text() == PADDING
        assert server.asked_for(JSON) == [None, "bytes=90000-" if known else None]
        assert server.leftovers() == []

    @pytest.mark.parametrize("whole", [True, False])
    def test_a_part_that_is_whole_is_taken_and_a_longer_one_thrown_away(
        self, server: Served, whole: bool
    ) -> None:
        part = self.stop_halfway(server, known=True)
        part.write_bytes(server.files[JSON] if whole else b"x" * 900_000)
        assert (server.download(known=True) / "json_2.1.1/padding.txt").read_text() == PADDING

    @pytest.mark.parametrize("after", [0, 90_000])  # this file has no checksum: it begins anew
    def test_a_server_that_always_cuts_is_given_up(self, server: Served, after: int) -> None:
        server.cut_after, server.cuts = after, 99
        with pytest.raises(DownloadError, match=rf"no connection .it ended after {after:,} of"):
            server.download()
        assert len(server.requests) == 3

    def test_a_busy_server_is_asked_again(self, server: Served) -> None:
        server.status = [503, 429]
        assert server.download().is_dir()


class TestFailures:
    def test_a_dead_link_says_what_else_there_is_and_keeps_what_came(self, server: Served) -> None:
        games = server.files.pop(GAMES)
        with pytest.raises(DownloadError) as caught:
            server.download()
        assert f"{server.url}/{GAMES}: the server answered 404" in str(caught.value)
        for text in ("The link is dead.", "--mirror", "--from-folder"):
            assert text in str(caught.value)
        assert not server.dest.exists()
        server.files[GAMES] = games
        server.download()
        assert server.asked_for(JSON) == [None]

    def test_no_server_at_all_says_so(self, tmp_path: Path) -> None:
        some = load_manifest("alfworld").with_mirror("http://127.0.0.1:9")
        with pytest.raises(DownloadError, match="no connection"):
            download_dataset(some, tmp_path / "alf")

    def test_a_page_in_place_of_a_file_leads_to_the_next_address(self, server: Served) -> None:
        """As file stores answer when too many have asked."""
        page = b"\n<!DOCTYPE html><html><body>Too many users have viewed this file.</body></html>"
        server.files |= {"quota/items.json": page, "ok/items.json": b"[1, 2]"}
        urls = tuple(f"{server.url}/{place}/items.json" for place in ("gone", "quota", "ok"))
        plain = DataFile("items.json", urls)
        dest = download_dataset(Manifest("shop", "A shop", (plain,)), server.dest)
        assert (dest / "items.json").read_bytes() == b"[1, 2]" and verify_dataset(dest) == []
        assert (read_receipt(dest) or {})["archives"][0]["origin"] == urls[2]
        failing = Manifest("shop", "A shop", (replace(plain, urls=urls[:2]),))
        with pytest.raises(DownloadError, match=r"(?s)404.*web page"):
            download_dataset(failing, dest.with_name("other"))

    def test_a_wrong_checksum_is_refused(self, server: Served) -> None:
        some = server.manifest(checksums=True)
        server.flip(JSON, 1000, bits=1)
        with pytest.raises(DownloadError, match="the checksum is wrong: expected sha256"):
            download_dataset(some, server.dest)
        assert not server.dest.exists()

    @pytest.mark.parametrize("place", [1000, -40])
    def test_damage_is_found_without_a_checksum(self, server: Served, place: int) -> None:
        server.flip(JSON, place)
        with pytest.raises(DownloadError, match=r"json_2\.1\.1_json\.zip"):
            server.download()
        assert server.leftovers() == [".alf.download"]
        server.flip(JSON, place)
        assert verify_dataset(server.download()) == []

    def test_what_a_killed_run_left_goes(self, server: Served) -> None:
        server.dest.with_name(".alf.staging-old").mkdir(parents=True)
        server.download()
        assert server.leftovers() == []

    @pytest.mark.parametrize(
        "name", ["../evil", "/etc/evil", "a/../../evil", "C:/evil", "a\\evil", "link"]
    )
    def test_paths_and_links_that_lead_out_are_refused(self, server: Served, name: str) -> None:
        member = zipfile.ZipInfo(name)
        if name == "link":
            member.external_attr = 0o120777 << 16
        server.files[GAMES] = archive({**PLAYED, member: "/etc"})
        with pytest.raises(DownloadError, match="leads out of the data folder .or is a link"):
            server.download()
        assert not list(server.dest.parents[1].rglob("*evil*"))
        assert not server.dest.exists()

    def test_a_set_without_what_it_should_hold_is_refused(self, server: Served) -> None:
        with pytest.raises(DownloadError, match=r"hold no json_2.1.1/test"):
            download_dataset(server.manifest(expect=("json_2.1.1/test",)), server.dest)
        assert not server.dest.exists()

    def test_a_full_disk_is_noticed_before(
        self, server: Served, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=64 * 2**20))
        with pytest.raises(DownloadError, match=r"needed for the next step. Free some"):
            server.download()
        assert server.asked_for(GAMES) == []
        assert not server.dest.exists()


class TestExisting:
    def test_a_folder_with_something_else_is_left_alone(self, server: Served) -> None:
        server.dest.mkdir(parents=True)
        (server.dest / "thesis.txt").write_text("years of work")
        with pytest.raises(FileExistsError, match="holds something else"):
            server.download()
        assert (server.dest / "thesis.txt").read_text() == "years of work"
        assert server.requests == []

    def test_a_damaged_copy_is_replaced_on_request(self, server: Served) -> None:
        (server.download() / next(iter(TREE))).unlink()
        with pytest.raises(FileExistsError, match=r"damaged copy .*missing.*--force"):
            server.download()
        assert verify_dataset(server.download(force=True)) == []
        assert server.leftovers() == []

    def test_a_failed_replacement_leaves_the_old_one(self, server: Served) -> None:
        dest = server.download()
        del server.files[GAMES]
        with pytest.raises(DownloadError, match="The link is dead"):
            server.download(force=True)
        assert verify_dataset(dest) == []


def test_a_mirror_is_asked_instead_and_held_to_the_checksums(server: Served) -> None:
    official = replace(server.manifest(checksums=True), homepage="https://example.org")
    gone = official.with_mirror("http://127.0.0.1:9")
    assert verify_dataset(download_dataset(gone, server.dest, mirror=server.url + "/")) == []
    server.files[GAMES] = archive({**PLAYED, "more": "x"})
    with pytest.raises(DownloadError, match="the checksum is wrong"):
        download_dataset(gone, server.dest.with_name("other"), mirror=server.url)


def test_a_folder_is_made_by_one_process_at_a_time(server: Served) -> None:
    with only_process(server.dest.parent / ".alf.download"):
        with pytest.raises(ValueError, match="Another process is downloading into .*alf"):
            server.download()
        assert server.requests == []
    assert verify_dataset(server.download()) == []


class TestVerify:
    def test_every_kind_of_change_is_found(self, server: Served) -> None:
        dest = server.download()
        missing, longer, changed, *_ = sorted(TREE)
        (dest / missing).unlink()
        (dest / longer).write_text(TREE[longer] + "!")
        (dest / changed).write_text(TREE[changed][::-1])
        found = verify_dataset(dest)
        assert [line.partition(":")[0] for line in found] == [missing, longer, changed]
        assert "missing" in found[0]
        assert "bytes, expected" in found[1]
        assert "sha256 differs" in found[2]
        assert len(verify_dataset(dest, quick=True)) == 2

    @pytest.mark.parametrize("text", ["{", "[]", '{"dataset": "x"}'])
    def test_a_damaged_receipt_is_named(self, tmp_path: Path, text: str) -> None:
        (tmp_path / RECEIPT).write_text(text)
        with pytest.raises(ValueError, match=f"{RECEIPT} is damaged"):
            verify_dataset(tmp_path)


@pytest.mark.parametrize("name", dataset_names())
def test_every_manifest_is_sound_and_pins_its_files(name: str) -> None:
    some = load_manifest(name)
    assert some.title and some.files and "{folder}" in some.use
    for file in some.files:
        assert all(url.startswith("https://") for url in file.urls)
        # by name, with its folder before it, or by the number that a file store gives it
        named = [url.replace("/", "_").endswith("_" + file.name) for url in file.urls]
        assert all(n or "id=" in url for n, url in zip(named, file.urls, strict=True))
        if file.sha256:
            assert re.fullmatch("[0-9a-f]{64}", file.sha256), file.name
        else:
            assert all(re.search("/[0-9a-f]{40}/", url) for url in file.urls), file.name


def extract(raw: bytes, folder: Path) -> None:
    (folder / "in").mkdir(exist_ok=True, parents=True)
    (folder / "a.zip").write_bytes(raw)
    unpack(folder / "a.zip", folder / "in", lambda name, done, total: None)


def test_a_file_that_says_it_is_small_does_not_grow(tmp_path: Path) -> None:
    """The size in the directory is a lie: no more than that is written, and the archive is refused."""
    raw = bytearray(archive({"zeros": bytes(500_000)}))
    at = raw.index(b"PK\x01\x02")
    raw[at + 24 : at + 28] = struct.pack("<I", 10)
    with pytest.raises(DownloadError, match="is damaged"):
        extract(bytes(raw), tmp_path)
    assert all(file.stat().st_size <= 10 for file in (tmp_path / "in").iterdir())


def test_an_encrypted_one_is_refused(tmp_path: Path) -> None:
    raw = bytearray(archive({"a": b"x" * 50}))
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        raw[raw.index(mark) + offset] |= 1
    with pytest.raises(DownloadError, match="encrypted"):
        extract(bytes(raw), tmp_path)


def test_a_member_without_a_name_is_damage(tmp_path: Path) -> None:
    raw = archive({"q.json": b"1"}).replace(b"q.json", b"\0.json")
    with pytest.raises(DownloadError, match=r"a\.zip is damaged"):
        extract(raw, tmp_path)


@given(st.data())
@settings(max_examples=80, suppress_health_check=list(HealthCheck), deadline=None)
def test_changed_bytes_extract_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    raw = bytearray(archive({"d/a.json": b'{"a": 1}' * 9, "b": b"", "d/c": bytes(200)}))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    folder = tmp_path_factory.mktemp("zip")
    try:
        extract(bytes(raw), folder)
    except (DownloadError, OSError) as error:
        assert str(error)
    assert sorted(path.name for path in folder.iterdir()) == ["a.zip", "in"]
    assert sum(file.stat().st_size for file in folder.rglob("in/**/*") if file.is_file()) < 10_000
