"""Our additions to OpenRLHF's extension of vLLM's workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import torch
from openrlhf.trainer.ray import vllm_engine
from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap

from paw_train.training.openrlhf.weights import sums_of

_Upstream: Any = vllm_engine.RolloutRayActor.__ray_metadata__.modified_class

WATCH_SECONDS = 5.0
"""between looks at whether the engine still lives, during a call to it"""


class PaWWorker(WorkerWrap):
    """vLLM's worker: takes weights as upstream does, and can report sums over them."""

    model_runner: Any

    def weight_sums(self) -> list[float]:
        total = sums_of(self.model_runner.model.parameters())
        torch.cuda.empty_cache()  # the key-value cache wakes next and takes what is free
        return list(total)


def _unless_dead(method: Callable[..., Coroutine[Any, Any, Any]]) -> Any:
    """The method; while it runs, an engine that died raises vLLM's ``EngineDeadError``.

    vLLM 0.29 never answers a call that was under way when its engine process died.
    """

    @wraps(method)
    async def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        task = asyncio.ensure_future(method(self, *args, **kwargs))
        while not task.done():
            await asyncio.wait({task}, timeout=WATCH_SECONDS)
            if not task.done() and self.llm.errored:
                task.cancel()
                raise self.llm.dead_error
        return task.result()

    return watched


class PaWRollout(_Upstream):
    """OpenRLHF's engine actor with our worker extension."""

    worker_extension = "paw_train.training.openrlhf.vllm_worker.PaWWorker"

    async def __init__(  # type: ignore[misc]
        self, *args: Any, **kwargs: Any
    ) -> None:
        kwargs["worker_extension_cls"] = self.worker_extension
        kwargs["agent_func_path"] = None  # episodes run in processes of their own
        await super().__init__(*args, **kwargs)

    init_process_group = _unless_dead(_Upstream.init_process_group)
    update_weight = _unless_dead(_Upstream.update_weight)
    update_weight_cuda_ipc = _unless_dead(_Upstream.update_weight_cuda_ipc)
    reset_prefix_cache = _unless_dead(_Upstream.reset_prefix_cache)
    sleep = _unless_dead(_Upstream.sleep)
    wake_up = _unless_dead(_Upstream.wake_up)

    @_unless_dead
    async def weight_sums(self) -> list[list[float]]:
        sums: list[list[float]] = await self.llm.collective_rpc("weight_sums")
        return sums
