"""Launches, questions to the host and memory of a GPU; the program that measures on one."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import claimed_device
import hostile
import pytest
import torch
from files import load
from programs import ROOT, python
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from paw_train.policies.local import decoder
from paw_train.policies.local.decoder import Advance, BatchDecoder
from paw_train.policies.local.policy import LocalPolicy
from paw_train.policies.local.sampling import EVERY, TokenLoop, uniforms
from paw_train.rollouts.policy import Sampling
from paw_train.training.memory import KNOWN, Micro, critic_bytes, scoring_bytes, training_bytes

BENCHMARKS = ROOT / "benchmarks"


TOKENIZER = hostile.byte_tokenizer()
NO_KERNEL = ("empty", "view", "unbind", "detach")


class Launches(TorchDispatchMode):
    """Counts operations that compute or copy something: about one kernel each."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        self.count += not (func.is_view or name.startswith(NO_KERNEL) or name == "_unsafe_view")
        return func(*args, **(kwargs or {}))


def _model(layers: int) -> Any:
    """A Llama whose size does not matter: kernels are counted, not timed."""
    config = LlamaConfig(
        vocab_size=len(TOKENIZER), hidden_size=36, num_hidden_layers=layers, num_attention_heads=9,
        num_key_value_heads=3, intermediate_size=48, max_position_embeddings=1024,
    )  # fmt: skip
    torch.manual_seed(0)
    return LocalPolicy(LlamaForCausalLM(config), TOKENIZER).model.eval()


@contextmanager
def _begun(model: Any, rows: int) -> Iterator[tuple[BatchDecoder, Advance]]:
    """Responses to contexts of unequal lengths, of which the first token is sampled."""
    held = BatchDecoder(model, rows, 2**16, fixed=True)
    contexts = {row: [7 + row % 11] * (5 + row) for row in range(rows)}
    yield held, held.sample(contexts, Sampling(1.0, 32), uniforms(range(rows), 32))
    decoder._fixed.clear()


@pytest.mark.parametrize(
    ("layers", "most"), [(3, 160), (4, 200), (30, 1250)], ids=["0.7M", "3.2M", "SmolLM2"]
)
def test_launches_depend_on_the_layers_alone(layers: int, most: int) -> None:
    """Of a token step, and of new tokens, unequally many a row, which are one pass."""
    counts = []
    for rows in (4, 16):
        with _begun(_model(layers), rows) as (held, advance):
            with Launches() as step:
                advance(list(range(rows)))
            with Launches() as feed:
                held.feed({row: [9] * (3 + 5 * (row % 4)) for row in range(rows)})
        # besides the steps: where rows go on, and what is brought to the host
        counts.append((step.count / EVERY, feed.count))
    assert counts[0] == counts[1]
    assert counts[0][0] <= most and counts[0][1] <= 60 * layers


def test_a_token_step_asks_the_host_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question in between could not be captured in a graph."""
    once, asked = TokenLoop._once, []

    def watched(self: TokenLoop, *arguments: Any) -> None:
        before = gpu.syncs.copy()
        once(self, *arguments)
        asked.append(gpu.syncs - before)

    monkeypatch.setattr(TokenLoop, "_once", watched)
    with claimed_device.ClaimedGpu() as gpu:
        model = _model(2).to("cuda")
        with _begun(model, 4) as (_, advance):
            advance([0, 1, 2, 3])
            advance([0, 2])
    assert len(asked) == 2 * EVERY
    assert not any(asked)
    assert not gpu.faults
    assert gpu.syncs  # the tokens themselves, and those are seen


TOKENS = 16384
SHAPES = [
    "Qwen/Qwen2.5-0.5B-Instruct",  # one matrix for embedding and head
    pytest.param("Qwen/Qwen2.5-7B-Instruct", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def peaks() -> ModuleType:
    return load("benchmarks/memory.py")


@pytest.mark.parametrize("name", SHAPES)
def test_a_pass_takes_what_the_plan_says(peaks: ModuleType, name: str) -> None:
    shape, micro = KNOWN[name], Micro(TOKENS, scored=int(TOKENS * peaks.SCORED))
    assert peaks.policy_peak(shape, TOKENS) == pytest.approx(training_bytes(shape, micro), rel=0.15)
    assert peaks.policy_peak(shape, TOKENS, gradients=False) == pytest.approx(
        scoring_bytes(shape, micro), rel=0.15
    )
    assert peaks.critic_peak(shape, TOKENS) == pytest.approx(critic_bytes(shape, micro), rel=0.15)


@pytest.mark.parametrize(
    ("change", "within"), [({"recompute": False}, 0.15), ({"entropy": True}, 0.05)]
)
def test_a_pass_of_another_kind_takes_what_the_plan_says(
    peaks: ModuleType, change: dict[str, bool], within: float
) -> None:
    shape = KNOWN["Qwen/Qwen2.5-0.5B-Instruct"]
    found = peaks.policy_peak(shape, TOKENS, **change)
    assert found == pytest.approx(training_bytes(shape, Micro(TOKENS, **change)), rel=within)


@pytest.mark.slow
def test_paw_adds_hardly_any_memory(peaks: ModuleType) -> None:
    assert 0 <= peaks.added_by_paw("Qwen/Qwen2.5-1.5B-Instruct", TOKENS) <= 0.024


@pytest.fixture
def evidence(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program; its parts can be imported by their names."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    for name in [name for name in sys.modules if name.startswith("gpu_")]:
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module("gpu_evidence")


@pytest.mark.parametrize("wrong", [None, "float32", "bfloat16"])
def test_a_device_passes_unless_it_computes_wrong(
    evidence: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str | None
) -> None:
    correctness, findings = map(importlib.import_module, ("gpu_correctness", "gpu_model"))
    whole, calls = correctness._prepared, iter(["expected", "float32", "bfloat16"])

    def broken(*given: Any) -> Any:
        experience = whole(*given)
        if next(calls) == wrong:  # the world-model term is lost
            for row in experience.rows:
                row.wm_weight = [0.0] * len(row.ids)
        return experience

    monkeypatch.setattr(correctness, "_prepared", broken)
    found = correctness.run(findings.Task("cpu", True, tmp_path))
    names = {check.name for check in found.checks}
    for dtype in ("float32", "bfloat16"):
        assert {f"{dtype}, gradients, relative difference", f"{dtype}, grad_norm_wm"} <= names
    failed = {check.name for check in found.checks if not check.passed}
    assert found.passed == (wrong is None)
    assert {f"{wrong}, wm_term", f"{wrong}, grad_norm_wm"} <= failed or wrong is None
    assert all(name.startswith(str(wrong)) for name in failed)


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
    done = python(
        BENCHMARKS / "gpu_evidence.py", "--device", "cpu", "--small", "--out", out, "--commit", "abc",
        "--parts", "throughput", "learning", folder=tmp_path, path=tmp_path, OMP_NUM_THREADS="1",
        EVIDENCE_OUT=str(out), EVIDENCE_LOG=str(log),
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
