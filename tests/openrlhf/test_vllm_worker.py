"""A call to an engine that dies while it is under way."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
if not os.environ.get("PAW_CLUSTER_TESTS"):
    pytest.skip("OpenRLHF is imported: make test-openrlhf", allow_module_level=True)

from paw_train.training.openrlhf import vllm_worker


def _asked(monkeypatch: pytest.MonkeyPatch, answer: Any, dies: bool) -> Any:
    monkeypatch.setattr(vllm_worker, "WATCH_SECONDS", 0.01)
    engine = vllm_worker.PaWRollout.__new__(vllm_worker.PaWRollout)
    engine.llm = SimpleNamespace(errored=False, dead_error=RuntimeError("engine died"))

    async def collective_rpc(name: str) -> Any:
        engine.llm.errored = dies
        return await answer()

    engine.llm.collective_rpc = collective_rpc
    return asyncio.run(engine.weight_sums())


async def _late() -> list[list[float]]:
    await asyncio.sleep(0.05)
    return [[1.0, 2.0, 3.0]]


async def _never() -> None:
    await asyncio.Event().wait()


def test_a_late_answer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _asked(monkeypatch, _late, dies=False) == [[1.0, 2.0, 3.0]]


def test_an_engine_that_died_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="engine died"):
        _asked(monkeypatch, _never, dies=True)
