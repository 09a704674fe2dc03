"""A rank of the learning step in OpenRLHF's own actor and DeepSpeed, in float32, without Ray.

`python one_deepspeed_rank.py RANK RANKS FOLDER PORT` reads from FOLDER/given.pt cases and layouts (ZeRO
stage, packing), or (ZeRO stage, plain) of sums, and writes what came out of each to FOLDER/rank<RANK>.pt.
"""

from __future__ import annotations

import copy
import os
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import paw_cpu_standin
import torch

paw_cpu_standin.install()

import deepspeed  # noqa: E402
import openrlhf.utils.utils  # noqa: E402
import torch.distributed as dist  # noqa: E402
from deepspeed.utils import safe_get_full_grad  # noqa: E402
from openrlhf.utils.config import hierarchize  # noqa: E402
from openrlhf.utils.deepspeed import DeepspeedStrategy  # noqa: E402

from paw_train.training.cluster_options import worker_environment  # noqa: E402
from paw_train.training.openrlhf.chunked_actor import ChunkedActor  # noqa: E402
from paw_train.training.openrlhf.learning import sum_in_float32  # noqa: E402
from paw_train.training.openrlhf.ranks import (  # noqa: E402
    PaWActorTrainer,
    PaWCriticTrainer,
    average_in_float32,
    critic_from_zero,
)


def arguments(stage: int, packing: bool) -> Any:
    """What OpenRLHF's strategy and actor trainer read of its command line."""
    flat = {
        "local_rank": -1,
        "ds.param_dtype": "fp32",
        "ds.zero_stage": stage,
        "ds.packing_samples": packing,
        "ds.ring_attn_size": 1,
        "ds.tensor_parallel_size": 1,
        "train.max_epochs": 1,
        "train.dynamic_batch_enable": False,
        "train.colocate_all": False,
        "train.async_enable": False,
        "actor.eps_clip_low_high": (0.2, 0.2),
        "actor.dual_clip": None,
        "actor.loss_agg_mode": "token-mean",
        "actor.policy_loss_type": "ppo",
        "actor.aux_loss_coef": 0.0,
        "algo.advantage.is_correction_level": "token",
        "algo.advantage.is_correction_mode": "mask",
        "algo.advantage.is_correction_gating": "ratio",
        "algo.advantage.is_correction_threshold": [0.5, 5.0],
        "vllm.sync_backend": "gloo",
    }
    return hierarchize(Namespace(**flat))


def _strategy(stage: int, ranks: int, args: Any) -> DeepspeedStrategy:
    strategy = DeepspeedStrategy(
        max_norm=1e9, micro_train_batch_size=1, train_batch_size=ranks, zero_stage=stage, args=args
    )
    strategy.setup_distributed()
    return strategy


def sum_of_gradients(stage: int, plain: bool) -> tuple[float, torch.dtype, int]:
    """Sums the gradients 256, 1 and 1 of a bfloat16 weight.

    Returns:
        258, or 256 where the sum is taken in bfloat16, as by ``plain`` DeepSpeed; the type that gradients
        are averaged in; the size of a bucket of them.
    """
    args = arguments(stage, packing=False)
    args.ds.param_dtype, args.ds.grad_accum_dtype = "bf16", "fp32"
    strategy = _strategy(stage, 1, args)
    if not plain:
        average_in_float32(strategy)
    adam = {"type": "Adam", "params": {"lr": 0.0, "torch_adam": True}}
    config = strategy.get_ds_train_config(adam, max_norm=1e9)
    model = torch.nn.Linear(1, 1, bias=False)
    engine, optimizer, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    if not plain:
        sum_in_float32(engine)
    for number, factor in enumerate((256.0, 1.0, 1.0)):
        engine.set_gradient_accumulation_boundary(number == 2)
        engine.backward(engine(torch.full((1, 1), factor, dtype=torch.bfloat16)).sum())
    total = safe_get_full_grad(engine.module.weight).item()
    return total, optimizer.communication_data_type, optimizer.reduce_bucket_size


def run(case: dict[str, Any], rank: int, ranks: int, stage: int, packing: bool) -> dict[str, Any]:
    """Metrics of the update, and the gradient of each optimiser step."""
    os.environ.update(worker_environment(case["settings"]))
    strategy = _strategy(stage, ranks, arguments(stage, packing))
    learns = _critic if "folder" in case else _actor
    trainer, model = learns(case, strategy, stage, packing)
    trainer.micro_batches = case["micro_batches"][rank]
    gradients: list[Any] = []
    step = trainer._step

    def kept() -> float:
        found = [safe_get_full_grad(p) for p in model.parameters()]
        gradients.append(torch.cat([g.flatten() for g in found]).clone())
        return step()

    trainer._step = kept
    metrics = trainer.ppo_train(*([] if "folder" in case else [0.0]))
    return {"steps": [metrics], "gradients": gradients}


OPTIMIZER = {
    "optim": "adam",
    "muon": {},
    "adam": {"lr": 0.0, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0},
    "lr_scheduler": "constant",
    "lr_warmup_ratio": 0.0,
    "max_norm": 1e9,
    "scheduler_steps": 10,
}


def _critic(case: dict[str, Any], strategy: Any, stage: int, packing: bool) -> tuple[Any, Any]:
    """OpenRLHF's critic, made by its own function from a saved model."""
    openrlhf.utils.utils.convert_to_torch_dtype = lambda name: torch.float32  # it has no float32
    critic = critic_from_zero(
        case["folder"],
        "critic",
        param_dtype="fp32",
        attn_implementation="sdpa",
        ds_config=strategy.get_ds_train_config(),
        init_value_head=True,
        packing_samples=packing,
    )
    with deepspeed.zero.GatheredParameters(
        [critic.score.weight], modifier_rank=0, enabled=stage == 3
    ):
        assert not critic.score.weight.any()
        critic.score.weight.data.copy_(case["head"])
    critic, optimizer, scheduler = strategy.prepare((critic, OPTIMIZER))
    return PaWCriticTrainer(strategy, critic, optimizer, scheduler), critic.module


def _actor(case: dict[str, Any], strategy: Any, stage: int, packing: bool) -> tuple[Any, Any]:
    model = copy.deepcopy(case["model"])
    model.set_attn_implementation("sdpa")
    model.config.use_cache = False  # as OpenRLHF does; with a cache, packed sequences would mix
    actor = ChunkedActor(model, temperature=case["settings"].rollout.temperature)
    actor.packing_samples = packing
    actor, optimizer, scheduler = strategy.prepare((actor, OPTIMIZER))
    trainer = PaWActorTrainer(
        strategy, actor, None, optimizer, scheduler, tokenizer=SimpleNamespace(pad_token_id=0)
    )
    trainer.rate = 0.0
    return trainer, actor.model.module


def main() -> None:
    rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": sys.argv[4],
    }
    given = torch.load(folder / "given.pt", weights_only=False)
    results = [sum_of_gradients(*sum_) for sum_ in given.get("sums", ())] or [
        [run(case, rank, ranks, *layout) for case in given["cases"]] for layout in given["layouts"]
    ]
    torch.save(results, folder / f"rank{rank}.pt")
    dist.barrier()
    # gloo's threads may still be ending: Python's own shutdown would abort on them now and then
    os._exit(0)


if __name__ == "__main__":
    main()
