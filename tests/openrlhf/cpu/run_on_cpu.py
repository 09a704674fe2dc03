"""Test only: `paw train smoke engine=openrlhf ...` on a machine without CUDA.

usage: python run_on_cpu.py OUT [KEY=VALUE ...], in the environment of `make test-openrlhf`; makes a tiny
model in OUT/model where there is none.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # idle workers would import torch and OpenRLHF on the few cores there are
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_worker_niceness": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}
SETTINGS = (
    "engine=openrlhf",
    "threads=null",
    "model.device=auto",
    "optimizer.measure_gradients=false",
    "model.dtype=bfloat16",
    "model.attention=eager",
    "cloning.episodes=0",
    "rollout.groups=2",
    "rollout.group_size=4",
    "objective.kl_coef=0",
    "evaluation.every=0",
    "openrlhf.gpus_per_node=1",
    "openrlhf.colocate=none",
    "openrlhf.engines=1",
    "rollout.vllm.gpu_memory=0.3",
    "openrlhf.extra={vllm.sync_backend: gloo, vllm.enforce_eager: true, vllm.enable_prefix_caching: false}",
    "openrlhf.checksum_every=1",  # faults are planted where weights are compared
)


def make_model(folder: Path) -> None:
    """A tiny model that has seen experts of procedural ALFWorld: its actions are mostly valid."""
    import numpy as np

    from paw_gym.pool import EnvPool
    from paw_train.policies.local.policy import LocalPolicy
    from paw_train.policies.local.scratch import scratch_model, word_tokenizer
    from paw_train.rollouts.rollout import demonstrations
    from paw_train.settings import CloningSettings
    from paw_train.settings.model import ScratchModelSettings
    from paw_train.training.cloning import clone, expert_rows

    pool = EnvPool("paw_gym/ALFWorld-v0", split="train", template="compact", mode="conversation")
    texts, few = [], pool.tasks.ids[:40]
    for trajectory in demonstrations(pool, None, few, 0.2, np.random.default_rng(0)):
        texts.append(trajectory.episode.instruction)
        for t in trajectory.episode.transitions:
            texts += [t.prompt, t.response, t.next_observation]
    tokenizer = word_tokenizer(texts)
    shape = ScratchModelSettings(hidden=64, layers=2, heads=2, kv_heads=1, intermediate=128)
    policy = LocalPolicy(scratch_model(shape, len(tokenizer), 0), tokenizer)
    rows = expert_rows(pool, policy.chat, few, CloningSettings(noise=0.1), 0)
    clone(policy, rows, CloningSettings(steps=120, batch_tokens=1024, lr=1e-2), 0)
    policy.model.bfloat16()
    policy.save(folder)


def keep_attention(name: str | None) -> None:
    """OpenRLHF's program packs with flash-attn only; torch's own keeps packed rows apart too."""
    import openrlhf.utils

    upstream = openrlhf.utils.get_strategy

    def get_strategy(args: Any) -> Any:
        args.ds.attn_implementation = name
        return upstream(args)

    openrlhf.utils.get_strategy = get_strategy


def main() -> None:
    os.environ.update(ENVIRONMENT)
    out, overrides = Path(sys.argv[1]).resolve(), sys.argv[2:]
    if not (out / "model").exists():
        make_model(out / "model")
    import paw_cpu_standin

    paw_cpu_standin.install()
    import ray

    from paw_train.settings import Settings, load_settings
    from paw_train.training.cluster_options import worker_environment
    from paw_train.training.openrlhf import launch

    settings = load_settings(
        "smoke", [*SETTINGS, f"out={out}", f"model.path={out / 'model'}", *overrides]
    )

    def start_ray(settings: Settings) -> None:
        given: dict[str, Any] = {
            "num_cpus": 8,
            "num_gpus": 8,
            "include_dashboard": False,
            "object_store_memory": 200 * 2**20,
            "runtime_env": {
                "env_vars": worker_environment(settings),
                "worker_process_setup_hook": "paw_cpu_standin.install",
            },
        }
        for left in reversed(range(5)):
            try:
                ray.init(**given)
                return
            except Exception as error:
                # Ray's own limit of 30 s, which a busy machine does not keep
                if not left or "timed out during startup" not in str(error):
                    raise
                ray.shutdown()

    launch.start_ray = start_ray
    ours = launch.put_in_place

    def put_in_place() -> None:
        ours()
        import paw_cpu_worker
        from openrlhf.trainer.ray import vllm_engine

        vllm_engine.RolloutRayActor = ray.remote(paw_cpu_worker.CpuRollout)
        keep_attention(settings.model.attention)

    launch.put_in_place = put_in_place
    folder = launch.train(settings)
    print(f"The run is in {folder}", flush=True)
    os._exit(0)  # what the libraries do at exit takes longer than the run


if __name__ == "__main__":
    main()
