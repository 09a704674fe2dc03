"""Sums gradients of micro-batches under DeepSpeed: `python sum_of_gradients.py STAGE PORT [plain]`.

Prints the sum of the gradients 256, 1 and 1 of a bfloat16 weight: 258, or 256 where it is taken in bfloat16,
as by ``plain`` DeepSpeed; then the type that gradients are averaged in, and the size of a bucket of them.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import paw_cpu_standin
import torch

paw_cpu_standin.install()

import deepspeed  # noqa: E402
from deepspeed.utils import safe_get_full_grad  # noqa: E402
from openrlhf.utils.deepspeed import DeepspeedStrategy  # noqa: E402

from paw_train.training.openrlhf.actor import average_in_float32  # noqa: E402
from paw_train.training.openrlhf.learning import sum_in_float32  # noqa: E402


def main() -> None:
    stage, port = int(sys.argv[1]), sys.argv[2]
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ds = SimpleNamespace(param_dtype="bf16", zero_stage=stage, grad_accum_dtype="fp32")
    train = SimpleNamespace(dynamic_batch_enable=False)
    args = SimpleNamespace(local_rank=-1, ds=ds, train=train)
    strategy = DeepspeedStrategy(
        micro_train_batch_size=1, train_batch_size=1, zero_stage=stage, args=args
    )
    strategy.setup_distributed()
    if "plain" not in sys.argv:
        average_in_float32(strategy)
    adam = {"type": "Adam", "params": {"lr": 0.0, "torch_adam": True}}
    model = torch.nn.Linear(1, 1, bias=False)
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config=strategy.get_ds_train_config(adam, max_norm=1e9),
    )
    if "plain" not in sys.argv:
        sum_in_float32(engine)
    for number, factor in enumerate((256.0, 1.0, 1.0)):
        engine.set_gradient_accumulation_boundary(number == 2)
        engine.backward(engine(torch.full((1, 1), factor, dtype=torch.bfloat16)).sum())
    print("sum", safe_get_full_grad(engine.module.weight).item(), flush=True)
    print("averages", engine.optimizer.communication_data_type, flush=True)
    print("bucket", engine.optimizer.reduce_bucket_size, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
