"""A type of numbers that the processor is slow at is named."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from paw_train.policies.local import processor
from paw_train.policies.local.policy import LocalPolicy
from paw_train.policies.local.scratch import scratch_model, word_tokenizer
from paw_train.settings.scratch import ScratchModelSettings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model")
    tokenizer = word_tokenizer(["go north"])
    size = ScratchModelSettings(hidden=32, layers=1, heads=2, kv_heads=1, intermediate=64)
    LocalPolicy(scratch_model(size, len(tokenizer), seed=0), tokenizer).save(place)
    return place


@pytest.mark.parametrize(
    ("dtype", "native", "warned"),
    [("bfloat16", False, True), ("bfloat16", True, False), ("float32", False, False)],
)
def test_bfloat16_without_instructions_for_it_is_warned_of(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    dtype: str,
    native: bool,
    warned: bool,
) -> None:
    monkeypatch.setattr(processor, "bfloat16_is_native", lambda: native)
    LocalPolicy.load(folder, dtype=dtype)
    assert ("model.dtype=float32" in caplog.text) == warned


def test_the_processor_is_asked() -> None:
    assert processor.bfloat16_is_native() in (True, False)
