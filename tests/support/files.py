"""Modules that belong to no package (benchmarks, examples, scripts), and what runs leave behind."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from paw_gym.data import Manifest

ROOT = Path(__file__).resolve().parents[2]


def load(place: str) -> ModuleType:
    """The module in a file, such as ``benchmarks/memory.py``, run anew."""
    path = ROOT / place
    spec = importlib.util.spec_from_file_location(f"loaded_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def measured(run: Path) -> list[dict[str, Any]]:
    """By update, what a run would measure again: no times and no memory."""
    varying = {"time", "seconds_rollout", "seconds_train", "peak_memory_mb"}
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in line.items() if k not in varying} for line in lines]


def unpinned(manifest: Manifest) -> Manifest:
    """A manifest that takes files which a test makes."""
    return replace(manifest, files=tuple(replace(file, sha256="") for file in manifest.files))


def archive(files: Mapping[Any, str | bytes]) -> bytes:
    """A zip archive by name (or ``ZipInfo``) of what it holds; the same bytes each time."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as target:
        for name, content in files.items():
            member = name if isinstance(name, zipfile.ZipInfo) else zipfile.ZipInfo(name)
            target.writestr(member, content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def archives(folder: Path) -> None:
    """Small archives of playable games, named as ALFWorld's official ones."""
    from paw_gym.envs.alfworld.procedural.generate import generate_game

    folder.mkdir()
    game = json.dumps(generate_game("train", "pick_and_place_simple", 0))
    trial = "pick_and_place_simple-Mug-None-Desk-1/trial_T1"
    for file, inside, text in (
        ("json_2.1.1_json.zip", "traj_data.json", "{}"),
        ("json_2.1.3_tw-pddl.zip", "game.tw-pddl", game),
    ):
        places = [
            f"json_2.1.1/{split}/{trial}" for split in ("train", "valid_seen", "valid_unseen")
        ]
        (folder / file).write_bytes(archive({f"{place}/{inside}": text for place in places}))
