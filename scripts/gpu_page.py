"""Writes ``docs/gpu.md``: what was measured on a GPU, from the file of ``benchmarks/gpu_evidence.py``.

    python scripts/gpu_page.py            # writes the page
    python scripts/gpu_page.py --check    # writes nothing; exit status 1 if the page is not current

Copy ``evidence.json`` of a run to ``benchmarks/gpu/evidence.json`` first. Without it, or where a part was not
run, the page says so.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "gpu.md"
EVIDENCE = ROOT / "benchmarks" / "gpu" / "evidence.json"
PARTS = {
    "correctness": "One update on the GPU, compared with float32 on the CPU: losses, log-probabilities and "
    "gradients of GRPO with PaW, for a small model in float32 and bfloat16.",
    "throughput": "Qwen2.5-1.5B's shape with random weights in bfloat16; 64 episodes with prompts of 2,048, "
    "responses of 512 and observations of 100 tokens: tokens/s, what PaW costs, and peak memory against "
    "the preflight of `paw train --plan`.",
    "learning": "The first updates of `paw train embedded`.",
    "vllm": "vLLM beside the trainer: weight updates, their checksums, sleeping and waking.",
}
"""each part's sentence"""
OPENING = """\
# On a GPU

<!-- Written by scripts/gpu_page.py from benchmarks/gpu/evidence.json. -->

```bash
make gpu-evidence
```

This is for the first hour on a machine with a GPU. It measures what could not be tested without one and
writes `runs/gpu-evidence/evidence.json`. It needs no network and installs nothing. `GPU_PYTHON` (default:
`python3`) must have torch with CUDA, transformers, annotated-types, gymnasium, numpy, pydantic, pyyaml, rich,
safetensors and tokenizers; the part `learning` also needs jinja2 and tensorboard, and the part `vllm` needs
vLLM. Wheels of missing packages can be brought along (`pip download` where there is a network, `pip install
--no-index --find-links FOLDER` where there is none). Each part has its own time limit and process. After an
interruption, the same command resumes; it writes nothing outside its folder:

```bash
make gpu-evidence ARGS="--parts correctness throughput --out FOLDER --minutes 9"
make gpu-evidence ARGS="--device cpu --small"      # the same code without a GPU: the figures mean nothing
```
"""


def page(evidence: Mapping[str, Any] | None) -> str:
    """The whole page.

    Args:
        evidence: the content of ``evidence.json``; ``None``: nothing was measured.
    """
    return OPENING + "".join(_part(name, evidence) for name in PARTS)


def _part(name: str, evidence: Mapping[str, Any] | None) -> str:
    found = (evidence or {}).get("parts", {}).get(name, {"status": "not run"})
    lines = [f"\n## {name.capitalize() if name != 'vllm' else 'vLLM'}\n", f"\n{PARTS[name]}\n\n"]
    if "checks" not in found:
        reason = f" ({found['reason']})" if "reason" in found else ""
        return "".join([*lines, f"**{found['status'].capitalize()}**{reason}.\n"])
    machine, request = found["machine"], found["request"]
    device = machine.get("gpu", "CPU")
    versions = ", ".join(
        f"{k} {machine[k]}" for k in ("torch", "transformers", "vllm") if k in machine
    )
    lines.append(
        f"**{found['status'].capitalize()}** on {device}, {versions}, commit {request['commit']}, "
        f"{found['started'][:10]}, {found['minutes']:.1f} minutes.\n"
    )
    if request["small"]:
        lines.append("\nReduced sizes: the figures mean nothing.\n")
    lines.append("\n| check | measured | bounds | |\n| --- | ---: | --- | --- |\n")
    lines += [_check(check) for check in found["checks"]]
    lines.append("\n| measurement | value |\n| --- | ---: |\n")
    lines += [f"| {key} | {value} |\n" for key, value in _flat(found["values"])]
    return "".join(lines)


def _check(check: Mapping[str, Any]) -> str:
    sides = (("at least", check["low"]), ("at most", check["high"]))
    bounds = [f"{words} {bound:g}" for words, bound in sides if bound is not None]
    verdict = "passed" if check["passed"] else "**failed**"
    return f"| {check['name']} | {_number(check['value'])} | {', '.join(bounds)} | {verdict} |\n"


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        name = f"{above}{key}".replace("_", " ")
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}, ")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for row in value:
                first, *others = row.items()
                about = ", ".join(f"{k} {_number(v)}" for k, v in others)
                yield f"{name}, {first[0]} {first[1]}", about.replace("_", " ")
        elif isinstance(value, list):
            yield name, ", ".join(_number(item) for item in value)
        else:
            yield name, _number(value)


def _number(value: Any) -> str:
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"


def files() -> dict[Path, str]:
    """The page, and its text."""
    evidence = json.loads(EVIDENCE.read_text(encoding="utf-8")) if EVIDENCE.exists() else None
    return {PAGE: page(evidence)}


if __name__ == "__main__":
    from generated import write_or_check

    sys.exit(write_or_check(__doc__, files()))
