"""Test only: what OpenRLHF asks of CUDA, answered on a machine without it.

Ray runs ``install`` in every worker (``worker_process_setup_hook``); no source of OpenRLHF is changed.
PAW_FAIL_EPISODE: the number of the episode, in the order in which they begin, whose environment raises.
"""

from __future__ import annotations

import itertools
import os
from typing import Any


class CpuDevice(str):
    """The "current CUDA device": the CPU, and ``f"cuda:{device}"`` can still be parsed."""

    def __new__(cls) -> CpuDevice:
        return super().__new__(cls, "cpu")

    def __format__(self, spec: str) -> str:
        return "0"


class GlooChannel:
    """Sends weights to vLLM over gloo, with the surface of vLLM's NCCL communicator."""

    def __init__(self, host: str, port: int, rank: int, ranks: int) -> None:
        from vllm.distributed.utils import stateless_init_torch_distributed_process_group

        self.group = stateless_init_torch_distributed_process_group(
            host, port, rank, ranks, backend="gloo"
        )

    def broadcast(self, tensor: Any, src: int = 0, stream: Any = None) -> None:
        import torch

        options = torch.distributed.BroadcastOptions()
        options.rootRank, options.rootTensor = src, 0
        self.group.broadcast([tensor.detach().contiguous()], options).wait()


def install() -> None:
    """Puts the stand-ins in place; does nothing where there is CUDA."""
    import torch

    break_an_episode()

    if torch.cuda.is_available():
        return
    torch.cuda.set_device = lambda *_: None
    torch.cuda.current_device = CpuDevice
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_stream = lambda *_: None
    from openrlhf.utils import distributed_util

    distributed_util.stateless_init_process_group = lambda host, port, rank, ranks, _: GlooChannel(
        host, port, rank, ranks
    )


def break_an_episode() -> None:
    """Makes the planned episode's environment raise at its second step."""
    planned = int(os.environ.get("PAW_FAIL_EPISODE", 0))
    if not planned:
        return
    from paw_gym.wrappers import AgentInterface

    reset, step = AgentInterface.reset, AgentInterface.step
    begun = itertools.count(1)
    left: dict[int, int] = {}
    """steps of the planned episode until it fails"""

    def counted_reset(self: Any, *args: Any, **kwargs: Any) -> Any:
        if next(begun) == planned:
            left[id(self)] = 2
        return reset(self, *args, **kwargs)

    def failing_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        left[id(self)] = left.get(id(self), 0) - 1
        if left[id(self)] == 0:
            raise RuntimeError("the simulator crashed")
        return step(self, *args, **kwargs)

    AgentInterface.reset, AgentInterface.step = counted_reset, failing_step  # type: ignore[method-assign]
