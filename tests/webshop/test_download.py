"""`paw data download webshop` against a local server: dead links, pages in place of files, local folders."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from files import unpinned

from paw_gym.data import DownloadError, Manifest, download_dataset, load_manifest, verify_dataset
from paw_gym.envs.webshop.env import WebShopEnv

QUOTA = b"\n<!DOCTYPE html><html><body>Too many users have viewed this file.</body></html>"


@pytest.fixture
def site(record: Any) -> Iterator[dict[str, Any]]:
    extra = {"attributes": ["safe"], "instruction": "Buy it", "instruction_attributes": ["safe"]}
    files = {
        "items_shuffle_1000.json": [record(f"B{n}") for n in range(30)],
        "items_ins_v2_1000.json": {f"B{n}": extra for n in range(30)},
        "items_human_ins.json": {},
    }
    served: dict[str, Any] = {f"/ok/{name}": json.dumps(v).encode() for name, v in files.items()}
    served |= {f"/quota/{name}": QUOTA for name in files}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = served.get(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    served["url"] = f"http://127.0.0.1:{http.server_port}"
    yield served
    http.shutdown(), thread.join(), http.server_close()


def with_addresses(manifest: Manifest, *bases: str) -> Manifest:
    """A manifest for the files of the test, which have no checksums."""
    urls = {file.name: tuple(f"{base}/{file.name}" for base in bases) for file in manifest.files}
    files = (replace(file, urls=urls[file.name]) for file in unpinned(manifest).files)
    return replace(manifest, files=tuple(files))


def test_a_page_in_place_of_a_file_leads_to_the_next_address(
    site: dict[str, Any], tmp_path: Path
) -> None:
    url = site["url"]
    manifest = with_addresses(load_manifest("webshop"), f"{url}/gone", f"{url}/quota", f"{url}/ok")
    folder = download_dataset(manifest, tmp_path / "webshop")
    assert verify_dataset(folder) == []
    env = WebShopEnv(data_dir=folder, goals="synthetic", nouns="rules")
    assert len(env.shop.catalogue) == 30


def test_dead_links_are_explained_and_a_local_folder_is_taken(
    site: dict[str, Any], tmp_path: Path
) -> None:
    url = site["url"]
    manifest = with_addresses(load_manifest("webshop"), f"{url}/gone", f"{url}/quota")
    with pytest.raises(DownloadError) as caught:
        download_dataset(manifest, tmp_path / "webshop")
    said = str(caught.value)
    for words in ("404", "web page", "--mirror", "--from-folder", "princeton-nlp/WebShop"):
        assert words in said
    assert not (tmp_path / "webshop").exists()
    own = tmp_path / "own"
    own.mkdir()
    for name, body in site.items():
        if name.startswith("/ok/"):
            (own / name.removeprefix("/ok/")).write_bytes(body)
    folder = download_dataset(manifest, tmp_path / "webshop", from_folder=own)
    assert verify_dataset(folder) == []
    shutil.rmtree(folder)
    sums = "".join(
        f"{hashlib.sha256(body).hexdigest()}  {name.removeprefix('/ok/')}\n"
        for name, body in site.items()
        if name.startswith("/ok/")
    )
    site["/ok/SHA256SUMS"] = sums.encode()
    assert verify_dataset(download_dataset(manifest, folder, mirror=f"{url}/ok")) == []


@pytest.mark.parametrize("name", ["webshop", "webshop-full"])
def test_the_manifests(name: str) -> None:
    manifest = load_manifest(name)
    assert set(manifest.expect) <= {file.name for file in manifest.files}
    for file in manifest.files:
        assert file.unpack == "none" and file.about
        assert all(url.startswith("https://") for url in file.urls)
