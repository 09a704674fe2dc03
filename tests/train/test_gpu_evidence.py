"""``make gpu-evidence``: its parts find faults, run without a network, and go on where they were stopped."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def evidence(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program; its parts can be imported by their names."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    for name in [name for name in sys.modules if name.startswith("gpu_")]:
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module("gpu_evidence")


def _part(name: str) -> Any:
    return importlib.import_module(name)


def _task(folder: Path, device: str = "cpu") -> Any:
    return _part("gpu_findings").Task(device, True, folder)


# --- the parts ------------------------------------------------------------------------------------


def test_a_device_that_computes_right_passes(evidence: ModuleType, tmp_path: Path) -> None:
    found = _part("gpu_correctness").run(_task(tmp_path))
    assert found.passed
    names = [check.name for check in found.checks]
    for dtype in ("float32", "bfloat16"):
        assert f"{dtype}, gradients, relative difference" in names
        assert f"{dtype}, grad_norm_wm" in names


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_device_that_computes_wrong_does_not(
    evidence: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    correctness = _part("gpu_correctness")
    whole, calls = correctness._prepared, iter(["expected", "float32", "bfloat16"])

    def broken(*given: Any) -> Any:
        experience = whole(*given)
        if next(calls) == dtype:  # the world-model term is lost
            for row in experience.rows:
                row.wm_weight = [0.0] * len(row.ids)
        return experience

    monkeypatch.setattr(correctness, "_prepared", broken)
    found = correctness.run(_task(tmp_path))
    failed = [check.name for check in found.checks if not check.passed]
    assert f"{dtype}, wm_term" in failed and f"{dtype}, grad_norm_wm" in failed
    assert all(name.startswith(dtype) for name in failed)


# --- the program ----------------------------------------------------------------------------------


def test_without_a_gpu_it_says_so(
    evidence: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert evidence.main(["--out", str(tmp_path / "out")]) == 2
    assert "--device cpu --small" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


WATCH = """
import os, sys
allowed, log = os.environ["EVIDENCE_OUT"], os.environ["EVIDENCE_LOG"]
def watch(event, arguments):
    if event == "socket.connect" or event == "socket.getaddrinfo":
        note(event + repr(arguments))
    if event == "open" and isinstance(arguments[0], str) and isinstance(arguments[1], str):
        path = os.path.realpath(arguments[0])
        writes = any(letter in arguments[1] for letter in "wax+")
        if writes and not path.startswith((allowed, "/dev/", "/proc/")) and path != log:
            note("write " + path)
def note(what):
    descriptor = os.open(log, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    os.write(descriptor, (what + "\\n").encode())
    os.close(descriptor)
sys.addaudithook(watch)
"""


@pytest.mark.slow
def test_the_whole_program_without_a_network(tmp_path: Path) -> None:
    """In its reduced form; what is connected to or written elsewhere is recorded."""
    out, log = tmp_path / "out", tmp_path / "log"
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "gpu_evidence.py"), "--device", "cpu", "--small",
         "--out", str(out), "--commit", "abc", "--parts", "throughput", "learning"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1",
             "EVIDENCE_OUT": str(out), "EVIDENCE_LOG": str(log)},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert not log.exists(), log.read_text()
    parts = json.loads((out / "evidence.json").read_text())["parts"]
    assert parts["throughput"]["values"]["update_tokens_per_second"].keys() == {"off", "paw"}
    arms = parts["learning"]["values"]["arms"]
    assert arms.keys() == {"smoke grpo+paw"}
    for arm in arms.values():
        assert [row["update"] for row in arm["updates"]] == [1, 2]
        assert [row["update"] for row in arm["validation"]] == [0, 2]
        assert arm["before"]["n"] == arm["after"]["n"] == 6
    assert parts["learning"]["machine"]["torch"] == torch.__version__
