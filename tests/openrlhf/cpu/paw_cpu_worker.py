"""Test only: our extension of vLLM's worker, and OpenRLHF's engine actor, for a CPU, with planned faults.

PAW_BREAK_SYNC: the weights that a worker loses.
PAW_FAULTS: ``FOLDER;2:die;1:hang`` kills the engine after the second update of the process that runs
it; the next process, after its first update, stands still. Each fault leaves a file ``fault-N`` in
FOLDER, so that it comes once.
"""

from __future__ import annotations

import importlib
import os
import time
from pathlib import Path
from typing import Any

import paw_cpu_standin
import psutil
import torch

from paw_train.training.openrlhf.vllm_worker import PaWRollout, PaWWorker


def _plain_product(layer: Any, remove_weight: bool) -> None:
    # vLLM on a CPU repacks the weights once and drops the originals: new ones could not be loaded
    layer.cpu_linear = torch.nn.functional.linear


for _name in ("layers.utils", "layers.linear", "layers.vocab_parallel_embedding"):
    _module = importlib.import_module(f"vllm.model_executor.{_name}")
    if hasattr(_module, "dispatch_cpu_unquantized_gemm"):
        _module.dispatch_cpu_unquantized_gemm = _plain_product


class CpuWorker(PaWWorker):
    def init_process_group(self, *args: Any, **kwargs: Any) -> Any:
        paw_cpu_standin.install()
        return super().init_process_group(*args, **kwargs)

    def update_weight(self, name: str, dtype: Any, shape: Any, empty_cache: bool = False) -> None:
        weight = torch.empty(shape, dtype=dtype)
        self._model_update_group.broadcast(weight, src=0)
        if name not in os.environ.get("PAW_BREAK_SYNC", "").split(","):
            self.model_runner.model.load_weights(weights=[(name, weight)])


class CpuRollout(PaWRollout):
    worker_extension = "paw_cpu_worker.CpuWorker"

    async def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["max_num_seqs"] = 16
        self.updates = 0
        await super().__init__(*args, **kwargs)

    async def weight_sums(self) -> list[list[float]]:
        """Sums over the weights, asked for after every update; a planned fault comes before."""
        self.updates += 1
        after_update(self.updates)
        return await super().weight_sums()


def after_update(number: int) -> None:
    """The next planned fault, if it is of this update."""
    folder, *faults = os.environ.get("PAW_FAULTS", "").split(";")
    for index, fault in enumerate(faults):
        mark = Path(folder) / f"fault-{index}"
        if mark.exists():
            continue
        update, action = fault.split(":")
        if number == int(update):
            mark.parent.mkdir(exist_ok=True)
            mark.touch()
            if action == "hang":
                time.sleep(3600)
            for child in psutil.Process().children(recursive=True):
                child.kill()
        return
