"""Writes the pinned sets in ``requirements/``, with hashes, or checks that they still resolve.

``make lock`` keeps every pin that still fits; ``make lock ARGS=--upgrade`` takes the newest versions.
``make check-locks`` resolves each set again from the package index's metadata (no wheel is downloaded)
and fails if the result differs from the set, so a dependency that was added without its pin, or a
version that the index no longer has, is noticed.
"""

from __future__ import annotations

import difflib
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path("requirements")
CPU_EXTRAS = [
    *["train", "eval", "server", "retrieval", "dense", "webshop", "lucene", "babyai"],
    *["export", "sft", "tau2", "jvm", "skyrl", "mcp", "test", "dev", "docs"],
]
PURE_PYTHON = ["func-timeout", "pyserini"]
"""packages without a wheel that build without a compiler"""
COMPILED = ["fast-downward-textworld", "jericho"]
"""packages without a wheel that need a C and a C++ compiler: only the original engines use them"""


def _built(names: list[str]) -> list[str]:
    return [word for name in names for word in ("--no-binary", name)]


LINUX = ["--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28"]
UNIVERSAL = ["--python-version", "3.11", "--universal"]
# scripts/install_torch.py chooses the torch. Everything else is a wheel, except what is named.
CPU = [*UNIVERSAL, "--no-emit-package", "torch", "--excludes", "requirements/cuda.in"]
CPU += ["--only-binary", ":all:", *_built(PURE_PYTHON), "--emit-build-options"]
PART = [*CPU, "-c", "requirements/cpu.txt"]
SOURCE = ["--no-deps", *LINUX]
# Each set: the extras that it pins (none: what NAME.in lists), and options. Later ones build on earlier ones.
SETS: dict[str, tuple[list[str], list[str]]] = {
    "cpu": (CPU_EXTRAS, CPU),
    "install": ([], PART),
    "train": (["train", "server"], PART),
    "servers": (["server", "retrieval"], PART),
    "original": (["alfworld", "textworld"], [*PART, *_built(COMPILED)]),
    "gpu": (["train", "eval", "vllm"], LINUX),
    "build": ([], SOURCE),
    "deepspeed": ([], SOURCE),
    "flash-attn": ([], SOURCE),
    "cluster": (
        ["train", "openrlhf"],
        [
            *LINUX,
            *["-c", "requirements/build.txt"],
            *["-c", "requirements/deepspeed.txt", "--no-emit-package", "deepspeed"],
            *["-c", "requirements/flash-attn.txt", "--no-emit-package", "flash-attn"],
        ],
    ),
    "cluster-cpu": ([], SOURCE),
    "audit": ([], UNIVERSAL),
    "inspect": (["inspect", "test"], UNIVERSAL),
    "openenv": (["openenv", "test"], UNIVERSAL),
    "verifiers": (["verifiers", "test"], UNIVERSAL),
}
INDEX = "https://pypi.org/simple"


def arguments(name: str) -> list[str]:
    """The arguments of ``uv pip compile`` for a set of ``SETS``, except the output."""
    extras, options = SETS[name]
    chosen = [word for extra in extras for word in ("--extra", extra)]
    source = "pyproject.toml" if extras else f"{FOLDER}/{name}.in"
    return [source, *chosen, "-c", f"{FOLDER}/torch.txt", *options, "--generate-hashes"]


def compile_set(name: str, out: Path, *more: str) -> None:
    """Resolves a set into ``out``; pins that ``out`` already holds are kept if they fit.

    Raises:
        subprocess.CalledProcessError: It cannot be resolved; uv has printed why.
    """
    command = f"make lock: uv pip compile {' '.join(arguments(name))}"
    style = ["--annotation-style", "line", "--custom-compile-command", command, "--quiet"]
    _uv(*arguments(name), *style, "--output-file", str(out), *more)


def _uv(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "uv", "pip", "compile", *words], cwd=ROOT, check=True)


def difference(name: str, folder: Path) -> list[str]:
    """Lines of a unified diff from the recorded set to what it resolves to now; none if they are equal."""
    recorded = ROOT / FOLDER / f"{name}.txt"
    again = folder / recorded.name
    shutil.copy(recorded, again)
    compile_set(name, again)
    before, after = (pins(path.read_text(encoding="utf-8")) for path in (recorded, again))
    changes = difflib.unified_diff(
        before, after, str(FOLDER / recorded.name), "resolved", "", "", 0, ""
    )
    return list(changes)


def pins(text: str) -> list[str]:
    """The lines of a set without its comments, which also name what requires a package."""
    return [line for raw in text.splitlines() if (line := raw.partition("#")[0].strip())]


def index_answers() -> bool:
    """True if the package index that uv asks is reachable."""
    index = os.environ.get("UV_DEFAULT_INDEX", INDEX)
    try:
        with urllib.request.urlopen(f"{index.rstrip('/')}/packaging/", timeout=20):
            return True
    except (urllib.error.URLError, TimeoutError):
        return False


def check() -> int:
    """Resolves every set; returns 0 if each equals its file, or if there is no index to ask."""
    if not index_answers():
        print(
            "NOT CHECKED: the package index cannot be reached; the locked sets were not resolved."
        )
        return 0
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for name in SETS:
            changed = difference(name, Path(folder))
            failed |= bool(changed)
            print(f"{FOLDER}/{name}.txt: " + ("run make lock:" if changed else "resolves"))
            print("\n".join(changed), end="\n" if changed else "")
    return int(failed)


def main(words: list[str]) -> int:
    """``lock.py --check``, or ``lock.py`` with further words for ``uv pip compile``."""
    try:
        if words == ["--check"]:
            return check()
        for name in SETS:
            compile_set(name, FOLDER / f"{name}.txt", *words)
    except subprocess.CalledProcessError as error:
        print(f"uv ended with exit code {error.returncode}; its reason is above.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
