"""A rank of the learning step in OpenRLHF's own actor and DeepSpeed, in float32, without Ray.

`python one_deepspeed_rank.py RANK RANKS FOLDER PORT` reads cases and layouts (ZeRO stage, packing) from
FOLDER/cases.pt and writes what came out of each to FOLDER/rank<RANK>.pt.
"""

from __future__ import annotations

import os
import sys
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
from openrlhf.utils.deepspeed import DeepspeedStrategy  # noqa: E402

from paw_train.policies.local.scratch import scratch_model  # noqa: E402
from paw_train.settings.model import ScratchModelSettings  # noqa: E402
from paw_train.training.openrlhf.actor import PaWActorTrainer  # noqa: E402
from paw_train.training.openrlhf.chunked_actor import ChunkedActor  # noqa: E402
from paw_train.training.openrlhf.critic import PaWCriticTrainer, critic_from_zero  # noqa: E402
from paw_train.training.openrlhf.worker_settings import worker_environment  # noqa: E402


def arguments(stage: int, packing: bool) -> Any:
    """What OpenRLHF's strategy and actor trainer read of its command line."""
    return SimpleNamespace(
        local_rank=-1,
        ds=SimpleNamespace(
            param_dtype="fp32",
            zero_stage=stage,
            packing_samples=packing,
            ring_attn_size=1,
            tensor_parallel_size=1,
        ),
        train=SimpleNamespace(
            max_epochs=1, dynamic_batch_enable=False, colocate_all=False, async_enable=False
        ),
        actor=SimpleNamespace(
            eps_clip_low_high=(0.2, 0.2),
            dual_clip=None,
            loss_agg_mode="token-mean",
            policy_loss_type="ppo",
            aux_loss_coef=0.0,
        ),
        algo=SimpleNamespace(
            advantage=SimpleNamespace(
                is_correction_level="token",
                is_correction_mode="mask",
                is_correction_gating="ratio",
                is_correction_threshold=[0.5, 5.0],
            )
        ),
        vllm=SimpleNamespace(sync_backend="gloo"),
    )


def run(case: dict[str, Any], rank: int, ranks: int, stage: int, packing: bool) -> dict[str, Any]:
    """Metrics of the update, and the gradient of each optimiser step."""
    os.environ.update(worker_environment(case["settings"]))
    args = arguments(stage, packing)
    strategy = DeepspeedStrategy(
        max_norm=1e9, micro_train_batch_size=1, train_batch_size=ranks, zero_stage=stage, args=args
    )
    strategy.setup_distributed()
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
    model = scratch_model(ScratchModelSettings(**case["shape"]), case["vocabulary"], 0)
    model.load_state_dict(case["model"])
    model.set_attn_implementation("sdpa")
    model.config.use_cache = False  # as OpenRLHF does; with a cache, packed sequences would mix
    actor = ChunkedActor(model, temperature=case["temperature"])
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
    torch.set_num_threads(1)
    given = torch.load(folder / "cases.pt", weights_only=False)
    results = [
        [run(case, rank, ranks, stage, packing) for case in given["cases"]]
        for stage, packing in given["layouts"]
    ]
    torch.save(results, folder / f"rank{rank}.pt")
    dist.barrier()
    os._exit(0)  # gloo's threads may still be ending: see one_rank.py


if __name__ == "__main__":
    main()
