"""A quarter of an hour on a GPU: what cannot be tested without one, in one command and one JSON file.

    make gpu-evidence                                        # all parts, 12 minutes on one GPU
    python benchmarks/gpu_evidence.py --parts correctness throughput --out FOLDER
    python benchmarks/gpu_evidence.py --device cpu --small   # the code alone, in a minute

Needs no network and no installation of this project: a Python with torch and transformers, and the packages
in ``NEEDED``. Parts run by priority, each in a process of its own with a time limit, so that none can bring
down the others; the last gets the remaining time. Results are written after every part. The same command
continues where it was stopped: finished parts are kept, training runs resume. Nothing is written outside the
output folder. docs/gpu.md shows what was measured.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import os
import platform
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("annotated_types", "gymnasium", "numpy", "pydantic", "rich", "safetensors", "tokenizers",
          "torch", "transformers", "yaml")  # fmt: skip
"""modules that every part imports"""
FINISHED = ("passed", "failed")


@dataclass(frozen=True)
class Part:
    """One measurement.

    Args:
        module: a file beside this one, with ``run(Task) -> Findings``.
        minutes: the time that it may take; infinite: all that is left.
        needed: modules beyond ``NEEDED``.
    """

    module: str
    minutes: float
    needed: tuple[str, ...] = ()


PARTS: Mapping[str, Part] = MappingProxyType(
    {
        "correctness": Part("gpu_correctness", 1.5),
        "throughput": Part("gpu_throughput", 3),
        "learning": Part("gpu_learning", math.inf, ("jinja2", "tensorboard", "peft", "gguf")),
    }
)
MARGIN = 8.0
"""seconds that a part has after its own time to write what it found"""


@dataclass(frozen=True)
class Request:
    """One run of the program: output folder, device, sizes and commit."""

    out: Path
    device: str
    small: bool
    commit: str

    def result_file(self, name: str) -> Path:
        """The file with a part's result."""
        return self.out / "parts" / f"{name}.json"

    def key(self) -> dict[str, Any]:
        """Values that must be the same for a finished part to be kept."""
        return {"device": self.device, "small": self.small, "commit": self.commit}


def measure(request: Request, names: Sequence[str], again: bool, minutes: float) -> bool:
    """Runs the parts that are not finished; returns True if all that ran passed.

    Args:
        request: what is to be measured.
        names: the parts.
        again: whether finished parts are run again.
        minutes: the time for all parts together.
    """
    ends = time.monotonic() + 60 * minutes
    for name in [name for name in PARTS if name in names]:
        kept = None if again else _finished(request, name)
        left = ends - time.monotonic()
        result = kept or _supervised(request, name, min(60 * PARTS[name].minutes, left))
        _write(request.result_file(name), result)
        write_evidence(request)
        print(f"{name}: {result['status']}{' (from before)' if kept else ''}{_why(result)}")
    return not {"failed", "error", "timed out"} & {_read(request, n)["status"] for n in names}


def _finished(request: Request, name: str) -> dict[str, Any] | None:
    found = _read(request, name)
    return found if found.get("status") in FINISHED and found["request"] == request.key() else None


def _read(request: Request, name: str) -> dict[str, Any]:
    path = request.result_file(name)
    if not path.exists():
        return {"status": "not run"}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _why(result: Mapping[str, Any]) -> str:
    if "reason" in result:
        return f": {result['reason']}"
    wrong = [check["name"] for check in result.get("checks", ()) if not check["passed"]]
    return f": {', '.join(wrong)}" if wrong else ""


def _supervised(request: Request, name: str, seconds: float) -> dict[str, Any]:
    """The result of a part, from a process of its own that is ended when its time is up."""
    if seconds <= 0:
        return _unmeasured(request, "not run", "no time was left")
    absent = [n for n in (*NEEDED, *PARTS[name].needed) if importlib.util.find_spec(n) is None]
    if absent:
        return _unmeasured(request, "not run", f"not installed here: {', '.join(absent)}")
    arguments = ["--part", name, "--out", str(request.out), "--device", request.device]
    arguments += ["--commit", request.commit, "--seconds", str(max(1.0, seconds - MARGIN))]
    arguments += ["--small"] if request.small else []
    result, log = request.result_file(name), request.out / f"{name}.log"
    request.out.mkdir(parents=True, exist_ok=True)
    result.unlink(missing_ok=True)
    with log.open("w", encoding="utf-8") as output:
        child = subprocess.Popen(
            [sys.executable, __file__, *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(request.out),
            start_new_session=True,
        )
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            return _unmeasured(request, "timed out", f"longer than {seconds:.0f} s; see {log}")
        finally:
            _end(child)
    if result.exists():
        return _read(request, name)
    return _unmeasured(request, "error", f"the process ended with {child.returncode}; see {log}")


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends a part and the processes that it started, which would otherwise keep the GPU's memory."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    child.wait()


def environment(out: Path) -> dict[str, str]:
    """Environment variables of a part: no network, and every cache inside the output folder."""
    cache = (out / "cache").resolve()
    cache.mkdir(parents=True, exist_ok=True)
    places = ("HF_HOME", "TMPDIR", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR",
              "XDG_CACHE_HOME")  # fmt: skip
    found = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {
        **os.environ,
        **dict.fromkeys(places, str(cache)),
        "CUDA_CACHE_PATH": str(cache),
        "HF_HUB_OFFLINE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": found,
        "TOKENIZERS_PARALLELISM": "false",
    }


def run_part(request: Request, name: str, seconds: float) -> dict[str, Any]:
    """Runs a part in this process and returns its result."""
    from gpu_model import Task

    folder = request.out.resolve() / name
    folder.mkdir(parents=True, exist_ok=True)
    started = time.time()
    try:
        module = importlib.import_module(PARTS[name].module)
        findings = module.run(Task(request.device, request.small, folder, seconds))
    except Exception as error:  # whatever a part raises is its result; the log has all of it
        traceback.print_exc()
        return _unmeasured(request, "error", f"{type(error).__name__}: {error}")
    return {
        "status": "passed" if findings.passed else "failed",
        "request": request.key(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "minutes": (time.time() - started) / 60,
        "machine": machine(request.device),
        **findings.to_dict(),
    }


def _unmeasured(request: Request, status: str, reason: str) -> dict[str, Any]:
    return {"status": status, "request": request.key(), "reason": reason}


def machine(device: str) -> dict[str, Any]:
    """The device and the versions that a part ran with."""
    import torch

    found: dict[str, Any] = {"python": platform.python_version(), "cpus": os.cpu_count()}
    for name in ("torch", "transformers", "numpy"):
        found[name] = importlib.import_module(name).__version__
    if device.startswith("cuda"):
        properties = torch.cuda.get_device_properties(device)
        found["gpu"] = properties.name
        found["gpu_gib"] = properties.total_memory / 2**30
        found["cuda"] = torch.version.cuda
    return found


def write_evidence(request: Request) -> None:
    """Writes all parts' results into one file."""
    parts = {name: _read(request, name) for name in PARTS}
    _write(request.out / "evidence.json", {**request.key(), "parts": parts})


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def commit() -> str:
    """The commit of the code, with ``+`` if it was changed since; ``unknown`` outside a clone."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(ROOT), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + "+" * bool(git("status", "--porcelain"))
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def main(argv: Sequence[str] | None = None) -> int:
    """Measures what is asked for; returns the exit code."""
    args = _arguments(argv)
    request = Request(args.out, args.device, args.small, args.commit or commit())
    if args.part is not None:
        _write(request.result_file(args.part), run_part(request, args.part, args.seconds))
        return 0
    import torch

    if args.device.startswith("cuda") and not torch.cuda.is_available():
        print("PyTorch sees no CUDA device here. --device cpu --small runs the code without one.")
        return 2
    return 0 if measure(request, args.parts, args.again, args.minutes) else 1


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--out", type=Path, default=Path("runs/gpu-evidence"))
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--small", action="store_true", help="sizes for a look at the code")
    parser.add_argument("--minutes", type=float, default=12.0, help="for all parts together")
    parser.add_argument("--again", action="store_true", help="run finished parts again, too")
    parser.add_argument("--commit", help="of the code, where there is no clone to ask")
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=600.0, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
