"""Every way to train keeps its tensors on one device, and waits for it rarely (without a GPU)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import claimed_device
import pytest
import torch

from paw_train.algorithms import update
from paw_train.training import local
from paw_train.training.local import train_from_recipe

SMALL = [
    *("updates=1", "cloning.episodes=0", "evaluation.tasks=0", "evaluation.every=0"),
    *(
        "optimizer.minibatches=1",
        "optimizer.measure_gradients=false",
        "rollout.max_response_tokens=4",
    ),
]
WINDOW = ["env.mode=window", "env.history_length=2", "objective.log_observations=false"]
REWARD = ["objective.kl_in=reward", "world_model.entropy=full", "objective.entropy_coef=0.01"]
PATHS = {
    "plain": ["world_model.enabled=false", "objective.kl_coef=0"],
    "conversation": ["optimizer.measure_gradients=true"],
    "window, reference offloaded, REINFORCE++": [
        *WINDOW,
        *("model.reference_offload=true", "algorithm.name=reinforce_pp", "world_model.horizon=3"),
    ],
    "bfloat16": ["model.dtype=bfloat16", "model.gradient_checkpointing=true"],
    "LoRA": ["model.lora.rank=2", "model.gradient_checkpointing=true"],
    "PPO by turn": [
        *("algorithm.name=ppo", "algorithm.critic.lr=1e-3"),
        *("rollout.group_size=1", "rollout.groups=4"),
    ],
    "PPO by token, bfloat16": [
        *("algorithm.name=ppo", "algorithm.level=token", "model.dtype=bfloat16"),
        *("env.mode=window", *REWARD),
    ],
    "GiGPO, two steps ahead": [
        *WINDOW,
        *("algorithm.name=gigpo", "world_model.horizon=2", "world_model.dedup=once"),
    ],
    "KL in the reward, full entropy, bonus": REWARD,
    "dynamic sampling, RLOO": [
        *("algorithm.dynamic_sampling=1", "algorithm.name=rloo", "world_model.preset=echo")
    ],
    "eager": ["model.attention=eager"],
    "world model by RWML": [
        *("world_model_learning.method=rwml", "world_model_learning.episodes=4"),
        *("world_model_learning.encoder=words", "world_model_learning.easy_samples=0"),
        *("world_model_learning.max_share=1.0", "world_model_learning.held_out_episodes=0"),
        *("world_model_learning.rwml.updates=1", "world_model_learning.rwml.transitions=3"),
        *("world_model_learning.rwml.group_size=3", "world_model_learning.rwml.max_tokens=8"),
    ],
    "world model by SFT": [
        *("world_model_learning.method=sft", "world_model_learning.episodes=4"),
        *("world_model_learning.sft.updates=2", "world_model_learning.easy_samples=0"),
        *("world_model_learning.max_share=1.0", "world_model_learning.held_out_episodes=0"),
    ],
}
SYNCS = 150
"""waits for the GPU in one update of 4 episodes of at most 6 turns: 48 for sampled tokens, one for each of
the 22 weights of a checkpoint, and a few for each micro-batch"""
TWICE = {"dynamic sampling, RLOO", "world model by RWML", "world model by SFT"}
"""paths with two rounds of episodes"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("base")
    few = ["updates=0", "cloning.steps=1", "evaluation.tasks=0"]
    run = train_from_recipe("smoke", [f"out={out}", *few], quiet=True)
    return run / "checkpoints" / "warm" / "model"


def _train(monkeypatch: pytest.MonkeyPatch, base: Path, out: Path, changes: Sequence[str]) -> Any:
    monkeypatch.setattr(local, "chosen_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(local, "memory_of", lambda device: None)
    monkeypatch.setattr(local, "_peak_memory", lambda device: 0.0)
    with claimed_device.ClaimedGpu() as gpu:
        train_from_recipe(
            "smoke", [f"out={out}", f"model.path={base}", *SMALL, *changes], quiet=True
        )
    return gpu


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_a_run_of_every_kind_learns_and_stays_on_its_gpu(
    monkeypatch: pytest.MonkeyPatch, base: Path, tmp_path: Path, path: str
) -> None:
    gpu = _train(monkeypatch, base, tmp_path, PATHS[path])
    assert not gpu.faults
    assert gpu.on_gpu > 1000  # the run was on the claimed GPU at all
    assert gpu.syncs.total() <= SYNCS * (1 + (path in TWICE)), gpu.syncs.most_common(12)
    (metrics,) = map(json.loads, (tmp_path / "smoke" / "metrics.jsonl").open())
    assert metrics["skipped"] == 0.0
    assert (metrics.get("wm_loss", -1) >= 0) == (path != "plain")
    assert ("value_loss" in metrics) == ("PPO" in path)


@pytest.mark.slow
def test_a_planted_fault_is_found(
    monkeypatch: pytest.MonkeyPatch, base: Path, tmp_path: Path
) -> None:
    whole = update.combined_loss

    def broken(logp, batch, *others):  # type: ignore[no-untyped-def]
        return whole(logp, replace(batch, ref_logprob=batch.ref_logprob.cpu()), *others)

    monkeypatch.setattr(update, "combined_loss", broken)
    gpu = _train(monkeypatch, base, tmp_path, [])
    assert any("losses/" in fault for fault in gpu.faults)
