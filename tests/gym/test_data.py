"""Downloads against a real HTTP server that cuts, corrupts, forgets and refuses."""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from files import unpinned

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
from paw_gym.data.dataset import RECEIPT

SPLITS = ("train", "valid_seen", "valid_unseen")
TREE = {
    f"json_2.1.1/{split}/task-{i}/trial/traj_data.json": f"{split}{i}"
    for split in SPLITS
    for i in (1, 2)
}
GAMES = {name.replace("traj_data.json", "game.tw-pddl"): "{}" for name in TREE}
PADDING = hashlib.shake_256(b"padding").hexdigest(200_000)
"""makes an archive of several chunks, which compression does not shrink away"""


def archive(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as target:
        for name, text in files.items():
            target.writestr(name, text)
    return buffer.getvalue()


@dataclass
class Served:
    """What the server has, and how it misbehaves."""

    files: dict[str, bytes] = field(default_factory=dict)
    etag: str | None = '"v1"'
    modified: str | None = None
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


class Handler(BaseHTTPRequestHandler):
    served: Served

    def do_GET(self) -> None:
        served, asked = self.served, self.headers.get("Range")
        served.requests.append((self.path, asked))
        if served.status:
            self.send_error(served.status.pop(0))
            return
        body = served.files.get(self.path.lstrip("/"))
        if body is None:
            self.send_error(404)
            return
        start = self._start(asked, len(body))
        if start is None:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(body)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self._send(body, start)

    def _start(self, asked: str | None, size: int) -> int | None:
        served = self.served
        validator = self.headers.get("If-Range")
        current = validator is None or validator in (served.etag, served.modified)
        if asked is None or not served.ranges or not current:
            return 0
        start = int(asked.removeprefix("bytes=").rstrip("-"))
        return start if start < size else None

    def _send(self, body: bytes, start: int) -> None:
        served = self.served
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(body) - start))
        for name, value in (("ETag", served.etag), ("Last-Modified", served.modified)):
            if value:
                self.send_header(name, value)
        self.end_headers()
        rest = body[start:]
        if served.cut_after is not None and served.cuts > 0 and len(rest) > served.cut_after:
            served.cuts -= 1
            self.wfile.write(rest[: served.cut_after])
            self.close_connection = True
            return
        self.wfile.write(rest)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow each other without a pause."""
    monkeypatch.setattr(fetch, "time", SimpleNamespace(sleep=lambda seconds: None))


@pytest.fixture
def server() -> Iterator[Served]:
    served = Served(
        files={
            "json_2.1.1_json.zip": archive({**TREE, "json_2.1.1/padding.txt": PADDING}),
            "json_2.1.3_tw-pddl.zip": archive(GAMES),
        }
    )
    http = ThreadingHTTPServer(("127.0.0.1", 0), type("H", (Handler,), {"served": served}))
    served.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield served
    http.shutdown()
    thread.join()
    http.server_close()


def manifest(server: Served, **changes: Any) -> Manifest:
    """The manifest of ALFWorld, its addresses those of the server."""
    return replace(unpinned(load_manifest("alfworld")).with_mirror(server.url), **changes)


def download(some: Manifest, dest: Path, **settings: Any) -> Path:
    return download_dataset(some, dest, **settings)


def with_checksums(some: Manifest, files: dict[str, bytes]) -> Manifest:
    sums = {name: hashlib.sha256(body).hexdigest() for name, body in files.items()}
    return replace(some, files=tuple(replace(f, sha256=sums[f.name]) for f in some.files))


def leftovers(dest: Path) -> list[str]:
    return sorted(path.name for path in dest.parent.iterdir() if path != dest)


class TestDownload:
    def test_brings_every_file_and_a_receipt(self, server: Served, tmp_path: Path) -> None:
        dest = download(manifest(server), tmp_path / "alf")
        for name, text in {**TREE, **GAMES}.items():
            assert (dest / name).read_text() == text
        receipt = read_receipt(dest)
        assert receipt is not None
        assert set(receipt["files"]) == {*TREE, *GAMES, "json_2.1.1/padding.txt"}
        first = receipt["archives"][0]
        body = server.files["json_2.1.1_json.zip"]
        assert first["origin"] == f"{server.url}/json_2.1.1_json.zip"
        assert first["sha256"] == hashlib.sha256(body).hexdigest()
        assert (first["bytes"], first["sha256_was_known"]) == (len(body), False)
        assert leftovers(dest) == []

    def test_archives_are_kept_on_request(self, server: Served, tmp_path: Path) -> None:
        dest = download(manifest(server), tmp_path / "alf", keep_archives=True)
        assert leftovers(dest) == [".alf.download"]
        kept = tmp_path / ".alf.download" / "json_2.1.1_json.zip"
        assert kept.read_bytes() == server.files["json_2.1.1_json.zip"]

    def test_files_that_are_no_archives_are_kept_as_they_are(
        self, server: Served, tmp_path: Path
    ) -> None:
        server.files["items.json"] = b"[1, 2]"
        plain = DataFile("items.json", (f"{server.url}/items.json",), unpack="none")
        dest = download(Manifest("shop", "A shop", (plain,)), tmp_path / "shop")
        assert (dest / "items.json").read_bytes() == b"[1, 2]"
        assert verify_dataset(dest) == []


class TestResume:
    def test_a_cut_connection_goes_on_where_it_stopped(
        self, server: Served, tmp_path: Path
    ) -> None:
        server.cut_after, server.cuts = 90_000, 3
        dest = download(manifest(server), tmp_path / "alf")
        assert (dest / "json_2.1.1/padding.txt").read_text() == PADDING
        ranges = server.asked_for("json_2.1.1_json.zip")
        assert ranges == [None, "bytes=90000-", "bytes=180000-", "bytes=270000-"]

    def stop_halfway(self, server: Served, dest: Path, some: Manifest) -> Path:
        server.cut_after, server.cuts = 90_000, 1
        server.status = []

        def give_up(seconds: float) -> None:
            raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(fetch, "time", SimpleNamespace(sleep=give_up))
            download_dataset(some, dest)
        part = dest.parent / f".{dest.name}.download" / "json_2.1.1_json.zip.part"
        assert part.stat().st_size == 90_000
        assert not dest.exists()
        return part

    @pytest.mark.parametrize(
        ("changes", "asked"),
        [
            ({}, "bytes=90000-"),
            ({"etag": None, "modified": "Sat, 01 Jan 2022 00:00:00 GMT"}, "bytes=90000-"),
            ({"etag": None, "known": True}, "bytes=90000-"),
            ({"etag": None}, None),
            ({"etag": 'W/"weak"'}, None),
            ({"ranges": False}, "bytes=90000-"),
        ],
        ids=["etag", "date", "checksum", "no validator", "weak", "server without ranges"],
    )
    def test_a_second_run_goes_on_where_it_is_sure_of_the_file(
        self, server: Served, tmp_path: Path, changes: dict[str, Any], asked: str | None
    ) -> None:
        some = manifest(server)
        if changes.pop("known", False):
            some = with_checksums(some, server.files)
        for name, value in changes.items():
            setattr(server, name, value)
        self.stop_halfway(server, tmp_path / "alf", some)
        dest = download(some, tmp_path / "alf")
        assert server.asked_for("json_2.1.1_json.zip") == [None, asked]
        assert (dest / "json_2.1.1/padding.txt").read_text() == PADDING
        assert leftovers(dest) == []

    @pytest.mark.parametrize("whole", [True, False])
    def test_a_part_that_is_whole_is_taken_and_a_longer_one_thrown_away(
        self, server: Served, tmp_path: Path, whole: bool
    ) -> None:
        part = self.stop_halfway(server, tmp_path / "alf", manifest(server))
        part.write_bytes(server.files["json_2.1.1_json.zip"] if whole else b"x" * 900_000)
        dest = download(manifest(server), tmp_path / "alf")
        assert (dest / "json_2.1.1/padding.txt").read_text() == PADDING

    def test_a_file_that_changed_on_the_server_begins_anew(
        self, server: Served, tmp_path: Path
    ) -> None:
        self.stop_halfway(server, tmp_path / "alf", manifest(server))
        changed = PADDING[::-1]
        server.files["json_2.1.1_json.zip"] = archive({**TREE, "json_2.1.1/padding.txt": changed})
        server.etag = '"v2"'
        dest = download(manifest(server), tmp_path / "alf")
        assert (dest / "json_2.1.1/padding.txt").read_text() == changed

    def test_a_server_that_always_cuts_is_given_up_when_nothing_comes(
        self, server: Served, tmp_path: Path
    ) -> None:
        server.cut_after, server.cuts = 0, 99
        with pytest.raises(DownloadError, match=r"no connection .it ended after 0 of"):
            download(manifest(server), tmp_path / "alf")
        assert len(server.requests) == 3

    def test_a_busy_server_is_asked_again(self, server: Served, tmp_path: Path) -> None:
        server.status = [503, 429]
        assert download(manifest(server), tmp_path / "alf").is_dir()

    def test_a_file_that_is_there_is_not_fetched_again(
        self, server: Served, tmp_path: Path
    ) -> None:
        games = server.files.pop("json_2.1.3_tw-pddl.zip")
        with pytest.raises(DownloadError, match="404"):
            download(manifest(server), tmp_path / "alf")
        server.files["json_2.1.3_tw-pddl.zip"] = games
        download(manifest(server), tmp_path / "alf")
        assert server.asked_for("json_2.1.1_json.zip") == [None]


class TestFailures:
    def test_a_dead_link_says_what_else_there_is(self, server: Served, tmp_path: Path) -> None:
        del server.files["json_2.1.1_json.zip"]
        with pytest.raises(DownloadError) as caught:
            download(manifest(server), tmp_path / "alf")
        text = str(caught.value)
        assert f"{server.url}/json_2.1.1_json.zip: the server answered 404" in text
        assert "The link is dead." in text
        assert "--mirror" in text
        assert "--from-folder" in text
        assert not (tmp_path / "alf").exists()

    def test_no_server_at_all_says_so(self, tmp_path: Path) -> None:
        some = load_manifest("alfworld").with_mirror("http://127.0.0.1:9")
        with pytest.raises(DownloadError, match="no connection"):
            download(some, tmp_path / "alf")

    def test_the_next_address_is_tried(self, server: Served, tmp_path: Path) -> None:
        some = manifest(server)
        urls = (f"{server.url}/gone.zip", some.files[0].urls[0])
        dest = download(
            replace(some, files=(replace(some.files[0], urls=urls), some.files[1])),
            tmp_path / "alf",
        )
        receipt = read_receipt(dest)
        assert receipt is not None
        assert receipt["archives"][0]["origin"] == urls[1]

    def test_a_page_in_place_of_a_file_leads_to_the_next_address(
        self, server: Served, tmp_path: Path
    ) -> None:
        """As file stores answer when too many have asked."""
        page = b"\n<!DOCTYPE html><html><body>Too many users have viewed this file.</body></html>"
        server.files |= {"quota/items.json": page, "ok/items.json": b"[1, 2]"}
        for places, said in ((("gone", "quota", "ok"), None), (("gone", "quota"), "web page")):
            urls = tuple(f"{server.url}/{place}/items.json" for place in places)
            shop = Manifest("shop", "A shop", (DataFile("items.json", urls, unpack="none"),))
            if said is None:
                dest = download(shop, tmp_path / "shop")
                assert (dest / "items.json").read_bytes() == b"[1, 2]"
            else:
                with pytest.raises(DownloadError, match=rf"(?s)404.*{said}"):
                    download(shop, tmp_path / "other")

    def test_a_wrong_checksum_is_refused(self, server: Served, tmp_path: Path) -> None:
        some = with_checksums(manifest(server), server.files)
        body = bytearray(server.files["json_2.1.1_json.zip"])
        body[1000] ^= 1
        server.files["json_2.1.1_json.zip"] = bytes(body)
        with pytest.raises(DownloadError, match="the checksum is wrong: expected sha256"):
            download(some, tmp_path / "alf")
        assert not (tmp_path / "alf").exists()

    @pytest.mark.parametrize("place", [1000, -40])
    def test_damage_is_found_without_a_checksum(
        self, server: Served, tmp_path: Path, place: int
    ) -> None:
        good = server.files["json_2.1.1_json.zip"]
        body = bytearray(good)
        body[place] ^= 255
        server.files["json_2.1.1_json.zip"] = bytes(body)
        with pytest.raises(DownloadError, match=r"json_2\.1\.1_json\.zip"):
            download(manifest(server), tmp_path / "alf")
        assert leftovers(tmp_path / "alf") == [".alf.download"]
        server.files["json_2.1.1_json.zip"] = good
        assert verify_dataset(download(manifest(server), tmp_path / "alf")) == []

    def test_what_a_killed_run_left_goes_in_time(self, server: Served, tmp_path: Path) -> None:
        for age, name in ((2 * 86_400, "old"), (60, "new")):
            left = tmp_path / f".alf.staging-{name}"
            left.mkdir()
            os.utime(left, (time.time() - age,) * 2)
        download(manifest(server), tmp_path / "alf")
        assert leftovers(tmp_path / "alf") == [".alf.staging-new"]

    @pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "C:/evil", "a\\evil"])
    def test_paths_that_lead_out_are_refused(
        self, server: Served, tmp_path: Path, name: str
    ) -> None:
        server.files["json_2.1.3_tw-pddl.zip"] = archive({**GAMES, name: "x"})
        with pytest.raises(DownloadError, match="leads out of the data folder"):
            download(manifest(server), tmp_path / "in" / "alf")
        assert not list(tmp_path.rglob("*evil*"))
        assert not (tmp_path / "in" / "alf").exists()

    def test_links_are_refused(self, server: Served, tmp_path: Path) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as target:
            link = zipfile.ZipInfo("json_2.1.1/train")
            link.external_attr = 0o120777 << 16
            target.writestr(link, "/etc")
        server.files["json_2.1.3_tw-pddl.zip"] = buffer.getvalue()
        with pytest.raises(DownloadError, match="or is a link"):
            download(manifest(server), tmp_path / "alf")

    def test_a_set_without_what_it_should_hold_is_refused(
        self, server: Served, tmp_path: Path
    ) -> None:
        with pytest.raises(DownloadError, match=r"hold no json_2.1.1/test"):
            download(manifest(server, expect=("json_2.1.1/test",)), tmp_path / "alf")
        assert not (tmp_path / "alf").exists()

    def test_a_full_disk_is_noticed_before(
        self, server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=64 * 2**20))
        with pytest.raises(DownloadError, match=r"needed for the next step. Free some"):
            download(manifest(server), tmp_path / "alf")
        assert server.asked_for("json_2.1.3_tw-pddl.zip") == []
        assert not (tmp_path / "alf").exists()


class TestExisting:
    def test_a_folder_with_something_else_is_left_alone(
        self, server: Served, tmp_path: Path
    ) -> None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.txt").write_text("years of work")
        with pytest.raises(FileExistsError, match="holds something else"):
            download(manifest(server), tmp_path / "mine")
        assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
        assert server.requests == []

    def test_a_damaged_copy_is_replaced_on_request(self, server: Served, tmp_path: Path) -> None:
        dest = download(manifest(server), tmp_path / "alf")
        (dest / next(iter(TREE))).unlink()
        with pytest.raises(FileExistsError, match=r"damaged copy .*missing.*--force"):
            download(manifest(server), dest)
        assert verify_dataset(download(manifest(server), dest, force=True)) == []
        assert leftovers(dest) == []

    def test_a_failed_replacement_leaves_the_old_one(self, server: Served, tmp_path: Path) -> None:
        dest = download(manifest(server), tmp_path / "alf")
        server.files["json_2.1.3_tw-pddl.zip"] = archive({**GAMES, "more": "x"})
        with pytest.raises(DownloadError, match="than the one that came first.* Remove .*alf to"):
            download(manifest(server), dest, force=True)
        assert verify_dataset(dest) == []
        shutil.rmtree(dest)
        assert (download(manifest(server), dest) / "more").read_text() == "x"


class TestOtherSources:
    def test_a_mirror_with_checksums_is_held_to_them(self, server: Served, tmp_path: Path) -> None:
        lines = [
            f"{hashlib.sha256(body).hexdigest()}  {name}" for name, body in server.files.items()
        ]
        server.files["SHA256SUMS"] = "\n".join(lines).encode()
        official = unpinned(load_manifest("alfworld"))
        dest = download(official, tmp_path / "alf", mirror=server.url + "/")
        receipt = read_receipt(dest)
        assert receipt is not None
        assert all(a["sha256_was_known"] for a in receipt["archives"])
        server.files["json_2.1.3_tw-pddl.zip"] = archive({**GAMES, "more": "x"})
        with pytest.raises(DownloadError, match="the checksum is wrong"):
            download(official, tmp_path / "other", mirror=server.url)

    def test_a_checksum_file_of_another_form_is_an_error(
        self, server: Served, tmp_path: Path
    ) -> None:
        server.files["SHA256SUMS"] = b"<html>welcome</html>"
        with pytest.raises(DownloadError, match="is not a list of"):
            download(load_manifest("alfworld"), tmp_path / "alf", mirror=server.url)

    def test_a_folder_that_lacks_a_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match=r"holds no json_2\.1\.1_json\.zip"):
            download(load_manifest("alfworld"), tmp_path / "alf", from_folder=tmp_path)


class TestVerify:
    def test_every_kind_of_change_is_found(self, server: Served, tmp_path: Path) -> None:
        dest = download(manifest(server), tmp_path / "alf")
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

    def test_a_folder_without_a_receipt_cannot_be_verified(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="was not made by `paw data download`"):
            verify_dataset(tmp_path)

    @pytest.mark.parametrize("text", ["{", "[]", '{"dataset": "x"}'])
    def test_a_damaged_receipt_is_named(self, tmp_path: Path, text: str) -> None:
        (tmp_path / RECEIPT).write_text(text)
        with pytest.raises(ValueError, match=f"{RECEIPT} is damaged"):
            verify_dataset(tmp_path)


class TestManifests:
    @pytest.mark.parametrize("name", dataset_names())
    def test_every_one_is_sound(self, name: str) -> None:
        some = load_manifest(name)
        assert some.title
        assert some.files
        assert all(url.startswith("https://") for file in some.files for url in file.urls)
        # by name, with its folder before it, or by the number that a file store gives it
        assert all(
            url.replace("/", "_").endswith("_" + file.name) or "id=" in url
            for file in some.files
            for url in file.urls
        )
        assert "{folder}" in some.use

    @pytest.mark.parametrize("name", dataset_names())
    def test_every_file_is_pinned_by_its_checksum_or_its_revision(self, name: str) -> None:
        for file in load_manifest(name).files:
            if file.sha256:
                assert re.fullmatch("[0-9a-f]{64}", file.sha256), file.name
            else:
                assert all(re.search("/[0-9a-f]{40}/", url) for url in file.urls), file.name

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("title = ", "not valid TOML"),
            ("title = 'x'", "lacks 'files'"),
            ("titel = 'x'\nfiles = []", "unknown key 'titel'. Did you mean 'title'"),
            ("title = 'x'\n[[files]]\nname = 'a.zip'", "file 0 lacks 'urls'"),
            ("title = 'x'\n[[files]]\nname = '../a'\nurls = []", "not a plain file name"),
            (
                "title = 'x'\n[[files]]\nname = 'a'\nurls = []\nunpack = 'rar'",
                "unpack is 'zip' or 'none', got 'rar'",
            ),
        ],
    )
    def test_damaged_ones_say_what_is_wrong(self, text: str, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Manifest.parse(text, "mine")
