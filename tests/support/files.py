"""Modules that belong to no package: benchmarks, examples, scripts."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

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


def unpinned(manifest: Manifest) -> Manifest:
    """A manifest that takes files which a test makes."""
    return replace(manifest, files=tuple(replace(file, sha256="") for file in manifest.files))
