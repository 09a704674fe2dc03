"""Every setting reaches OpenRLHF, is read by our own classes, or is refused by its name."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from paw_train.settings import Settings, load_settings
from paw_train.training import cluster_options
from paw_train.training.cluster_options import (
    arguments,
    command_line,
    options,
    require_possible,
    setting_names,
)
from paw_train.training.openrlhf.launch import require_no_code

RECIPE = "alfworld_qwen2.5-1.5b_grpo_paw"


def _settings(*overrides: str) -> Settings:
    return load_settings(RECIPE, ["engine=openrlhf", *overrides])


def test_whatever_is_mapped_is_a_setting() -> None:
    names = setting_names()
    assert "world_model.alpha" in names
    mapped = cluster_options
    known = {*mapped.NAMES, *mapped.REFUSED, *mapped.INSTEAD, *mapped.READ}
    assert [k for k in known if not any(f"{n}.".startswith(f"{k}.") for n in names)] == []


def test_a_setting_that_is_not_mapped_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    rest = tuple(
        name for name in cluster_options.READ if name not in ("rollout.top_k", "world_model")
    )
    monkeypatch.setattr(cluster_options, "READ", rest)
    require_possible(_settings())
    said = r"rollout\.top_k is not read[\s\S]*world_model\.alpha is not"
    with pytest.raises(ValueError, match=said):
        require_possible(_settings("world_model.alpha=0.5", "rollout.top_k=5"))


@pytest.mark.parametrize(
    ("override", "option", "value"),
    [
        ("rollout.groups=24", "rollout.batch_size", 24),
        ("rollout.max_response_tokens=100", "rollout.max_new_tokens", 100),
        ("optimizer.lr=3e-6", "actor.adam.lr", 3e-6),
        ("model.attention=sdpa", "ds.attn_implementation", "sdpa"),
        ("evaluation.every=7", "eval.steps", 7),
        ("rollout.vllm.gpu_memory=0.3", "vllm.gpu_memory_utilization", 0.3),
        ("openrlhf.extra={ds.packing_samples: false}", "ds.packing_samples", False),
        ("openrlhf.colocate=none", "train.colocate_all", False),
        ("openrlhf.colocate=actor_ref", "train.colocate_actor_ref", True),
        ("openrlhf.gpus_per_node=4", "train.batch_size", 4),
        ("openrlhf.nodes=2", "ref.num_nodes", 2),
        ("model.attention=null", "ds.packing_samples", True),
        ("model.attention=flash_attention_3", "ds.packing_samples", True),
        ("model.attention=sdpa", "ds.packing_samples", False),
    ],
)
def test_a_setting_becomes_an_option(override: str, option: str, value: Any) -> None:
    assert options(_settings(override))[option] == value


@pytest.mark.parametrize(
    "override",
    [
        "threads=2",
        "warm_starts=shared",
        "model.path=null",
        "model.revision=main",
        "model.device=cpu",
        "model.dtype=float32",
        "cloning.episodes=10",
        "rollout.vllm.extra={seed: 1}",
        "algorithm.name=ppo model.lora.rank=8",
        "world_model.entropy=full",
        "optimizer.measure_gradients=true",
        "openrlhf.checksum_every=1 openrlhf.tensor_parallel=2",
        "model.lora.rank=8 openrlhf.zero_stage=3",
        "openrlhf.engines=3",
        "openrlhf.tensor_parallel=3",
        "openrlhf.zero_stage=1",
    ],
)
def test_what_cannot_be_done_is_refused_by_name(override: str) -> None:
    with pytest.raises(ValueError, match=override.partition("=")[0].replace(".", r"\.")):
        require_possible(_settings(*override.split()))


def test_all_refusals_come_at_once_and_too_many_ranks_are_one() -> None:
    given = ("threads=1", "world_model.entropy=full", "rollout.groups=1", "openrlhf.nodes=4")
    with pytest.raises(ValueError, match=r"threads[\s\S]*entropy[\s\S]*fewer GPUs"):
        require_possible(_settings(*given))


def test_a_critic_becomes_options() -> None:
    ppo = ("algorithm.name=ppo", "algorithm.critic.lr=2e-5")
    chosen = options(_settings(*ppo, "openrlhf.gpus_per_node=4"))
    assert chosen["algo.advantage.estimator"] == "gae"  # which makes OpenRLHF start a critic
    assert chosen["critic.adam.lr"] == 2e-5
    assert chosen["critic.num_gpus_per_node"] == 4
    # its trainer lets the policy learn in update u, counted from 0, if u > freezing_steps
    assert chosen["critic.freezing_steps"] < 0
    assert not [name for name in options(_settings()) if name.startswith("critic.")]


def test_an_extra_option_must_not_contradict_a_setting() -> None:
    with pytest.raises(ValueError, match=r"extra\.actor\.adam\.lr"):
        options(_settings("openrlhf.extra={actor.adam.lr: 1.0}"))
    with pytest.raises(ValueError, match=r"extra\.train\.async_enable"):
        options(_settings("openrlhf.extra={train.async_enable: true}"))


def test_switches_that_are_off_are_left_out_of_the_command_line() -> None:
    found = arguments({"b": False, "c": None, "a": True, "d": (1, 2), "e": 0})
    assert found == ["--a", "--d", "1", "2", "--e", "0"]
    text = command_line(_settings("name=with space", "model.attention=sdpa"))
    assert "--ds.packing_samples" not in text
    assert "'runs/with space/episodes.jsonl'" in text


def test_openrlhf_knows_every_option() -> None:
    spec = importlib.util.find_spec("openrlhf")
    if spec is None or spec.origin is None:
        pytest.skip("OpenRLHF is not installed here (make test-openrlhf)")
    program = Path(spec.origin).parent / "cli" / "train_ppo_ray.py"
    named = re.findall(r'"--([\w.{}]+)"', program.read_text(encoding="utf-8"))
    known = {name.replace("{prefix}", one) for name in named for one in ("actor", "critic")}
    assert "ds.zero_stage" in known
    assert set(options(_settings())) <= known


def test_a_model_that_brings_code_is_refused_before_openrlhf_would_run_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    require_no_code(str(tmp_path))
    code = '{"auto_map": {"AutoTokenizer": "x.Tokenizer"}}'
    (tmp_path / "tokenizer_config.json").write_text(code)
    with pytest.raises(ValueError, match="brings code of its own"):
        require_no_code(str(tmp_path))
