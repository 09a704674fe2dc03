"""A call to an engine that dies while it is under way."""

from __future__ import annotations

import asyncio
import inspect
import os
from typing import Any

import pytest

if not os.environ.get("PAW_CLUSTER_TESTS"):
    pytest.skip("OpenRLHF is imported: make test-openrlhf", allow_module_level=True)

from paw_train.training.openrlhf import vllm_worker


class Client:
    """vLLM's, whose every call takes a while or, with an engine that dies, for ever."""

    def __init__(self, dies: bool) -> None:
        self.dies, self.errored, self.dead_error = dies, False, RuntimeError("engine died")
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(args[0] if name == "collective_rpc" else name)
            self.errored = self.dies
            await (asyncio.Event().wait() if self.dies else asyncio.sleep(0.05))
            return [[1.0, 2.0, 3.0]]

        return call


CALLS: dict[str, tuple[Any, ...]] = {
    "init_process_group": ("host", 1, 1, 2, "group", "nccl", False),
    "update_weight": ("name", None, (1,)),
    "update_weight_cuda_ipc": ("name", None, (1,), {}),
    "reset_prefix_cache": (),
    "sleep": (),
    "wake_up": (["weights"],),
    "weight_sums": (),
}
"""the calls to an engine that training waits for, beside responses, and arguments for them"""


@pytest.mark.parametrize("name", CALLS)
def test_a_late_answer_is_waited_for_and_an_engine_that_died_is_not(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(vllm_worker, "WATCH_SECONDS", 0.01)
    engine = vllm_worker.PaWRollout.__new__(vllm_worker.PaWRollout)

    def asked(dies: bool) -> Any:
        engine.llm = Client(dies)
        return asyncio.run(asyncio.wait_for(getattr(engine, name)(*CALLS[name]), timeout=60))

    answer = asked(dies=False)
    assert engine.llm.calls == [name]
    if name == "weight_sums":
        assert answer == [[1.0, 2.0, 3.0]]
    with pytest.raises(RuntimeError, match="engine died"):
        asked(dies=True)


def test_no_other_call_of_upstream_waits_for_its_engine() -> None:
    """Those that this engine makes; generation ends by itself, with vLLM's error."""
    upstream = vllm_worker._Upstream
    waiting = {
        name for name, method in vars(upstream).items() if inspect.iscoroutinefunction(method)
    }
    not_called = {"pause_generation", "resume_generation"}
    assert waiting - not_called - {"__init__", "generate", "generate_responses"} <= set(CALLS)
