"""Installs the build of PyTorch that fits the machine, into the environment that runs this script.

A bare ``pip install torch`` on Linux brings several gigabytes of CUDA libraries, which a machine
without an NVIDIA GPU cannot use. If there is such a GPU, that is right; otherwise a CPU build is
looked for first: in the folders that pip is configured with, then in PyTorch's own index. The
version is that of ``requirements/torch.txt``, as in every pinned set.
"""

from __future__ import annotations

import importlib.util
import platform
import subprocess
import sys
from pathlib import Path

PINNED = Path(__file__).resolve().parents[1] / "requirements" / "torch.txt"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PIP = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]


def has_cuda() -> bool:
    """True if an NVIDIA driver answers."""
    try:
        answer = subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0


def attempts() -> list[list[str]]:
    """Arguments of ``pip install``, to be tried in order; only the last may fail for good."""
    pinned = PINNED.read_text(encoding="utf-8").split()[-1]
    # the registry's builds for macOS and Windows are CPU builds
    if has_cuda() or platform.system() != "Linux":
        return [[pinned]]
    from_index = ["--no-deps", "--index-url", CPU_INDEX, "--retries", "0", "--timeout", "15"]
    return [["--no-deps", "--no-index", pinned], [*from_index, f"{pinned}+cpu"], [pinned]]


def main() -> int:
    """Installs torch unless some version is there; its requirements come with the project's."""
    if importlib.util.find_spec("torch") is not None:
        return 0
    tries = attempts()
    for arguments in tries[:-1]:
        if subprocess.run([*PIP, *arguments], capture_output=True, check=False).returncode == 0:
            return 0
    return subprocess.run([*PIP, *tries[-1]], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
