"""vLLM and a trainer on one GPU: who has its memory when.

The engine is a recording stand-in; tests/train/test_vllm.py has the real one on a CPU.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY, MagicMock, call

import hostile
import pytest
import torch

from paw_train.policies import vllm as vllm_engine
from paw_train.policies.vllm import FollowingVLLM
from paw_train.rollouts.policy import Sampling
from paw_train.settings import load_settings
from paw_train.settings.rollout import VLLMSettings
from paw_train.training import local as training
from paw_train.training.memory import KNOWN
from paw_train.training.phases import local_phases

GIB = 2**30


def _engine(settings: VLLMSettings) -> Any:
    """Stands for ``vllm.LLM``: it records what it is asked for, and has weights."""
    model = torch.nn.Linear(3, 2)
    engine = MagicMock(settings=settings, weight=model.weight)
    engine.llm_engine.model_config.max_model_len = 64
    engine.get_tokenizer.return_value = hostile.byte_tokenizer()
    engine.apply_model.side_effect = lambda function: [function(model)]
    engine.collective_rpc.side_effect = lambda name, kwargs: model.load_state_dict(
        dict(kwargs["weights_iterator"])
    )
    return engine


def _asked(engine: Any) -> list[Any]:
    """Calls that an engine got, in order."""
    counted = ("sleep", "wake_up", "collective_rpc", "reset_prefix_cache")
    return [call for call in engine.method_calls if call[0] in counted]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The engines that were started; a GPU of 80 GiB has 60 free."""
    engines: list[Any] = []

    def start(model: str, settings: VLLMSettings, revision: str | None) -> Any:
        engines.append(_engine(settings))
        return engines[-1]

    monkeypatch.setattr(vllm_engine, "_start", start)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    return engines


def _following(device: str, *more: Any, **reserved: Any) -> FollowingVLLM:
    model = torch.nn.Linear(3, 2)
    model.dtype, model.peft_config = torch.bfloat16, None
    save = lambda folder: Path(folder, "saved").touch()  # noqa: E731
    local = SimpleNamespace(model=model, device=torch.device(device), save=save, chat=None)
    return FollowingVLLM(local, *more, **reserved)


def _session(following: FollowingVLLM) -> None:
    following.session(Sampling(1.0, 4), growing=True)


WEIGHTS = [call.collective_rpc("reload_weights", kwargs=ANY), call.reset_prefix_cache()]


def test_it_sleeps_between_rollouts_and_wakes_with_new_weights(
    started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    following = _following("cuda")
    assert os.environ["VLLM_USE_V2_MODEL_RUNNER"] == "0"
    _session(following)
    _session(following)  # awake: only newer weights
    following.rest()
    following.rest()
    with torch.no_grad():
        following.local.model.weight.add_(1.0)
    _session(following)
    (engine,) = started
    wake = [call.wake_up(tags=["weights"]), *WEIGHTS, call.wake_up(tags=["kv_cache"])]
    assert _asked(engine) == [*WEIGHTS, *WEIGHTS, call.sleep(level=2), *wake]
    assert torch.equal(engine.weight, following.local.model.weight)
    assert engine.settings.extra["enable_sleep_mode"]


def test_it_takes_what_training_leaves_free(started: list[Any]) -> None:
    _following("cuda", reserved=20 * GIB)
    _following("cuda", VLLMSettings(gpu_memory=0.3), reserved=20 * GIB)
    assert [e.settings.gpu_memory for e in started] == [pytest.approx(0.95 * 0.5), 0.3]
    with pytest.raises(
        ValueError, match=r"60\.0 GiB free.*still takes 61\.0.*rollout.engine=local"
    ):
        _following("cuda", reserved=61 * GIB)


def test_without_a_gpu_or_by_setting_it_stays_awake(started: list[Any]) -> None:
    for device, settings in (("cpu", None), ("cuda", VLLMSettings(gpu_memory=0.3))):
        following = _following(device, settings)
        _session(following)
        following.rest()
        _session(following)
        assert _asked(started[-1]) == [*WEIGHTS, *WEIGHTS]
        assert "enable_sleep_mode" not in started[-1].settings.extra


def test_weights_that_did_not_arrive_are_noticed(started: list[Any]) -> None:
    following = _following("cuda")
    (engine,) = started
    engine.collective_rpc.side_effect = None
    with pytest.raises(RuntimeError, match="weight differs"):
        _session(following)


def test_a_run_rests_after_rollouts_and_validations(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[str] = []

    def following(policy: Any, engine: str, settings: Any, reserved: int) -> Any:
        """The trained policy itself, which says when it samples and rests."""
        said.append(f"reserved {reserved}")
        session = policy.session
        policy.session = lambda *args, **more: said.append("sample") or session(*args, **more)
        policy.rest = lambda: said.append("rest")
        return policy

    monkeypatch.setattr(training, "rollout_policy", following)
    settings = [f"out={tmp_path}", "updates=2", "evaluation.every=2", "evaluation.tasks=2"]
    training.train_from_recipe("smoke", settings, quiet=True)
    compact = [x for i, x in enumerate(said) if i == 0 or x != said[i - 1]]
    # evaluations before and after, validations of start and end, and two rollouts
    assert compact == ["reserved 0", *["sample", "rest"] * 6]


def test_an_engine_leaves_training_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ["engine=local", "rollout.engine=vllm", "model.reference_offload=true"]
    settings = load_settings("alfworld_qwen2.5-1.5b_grpo", own)
    shape = KNOWN["Qwen/Qwen2.5-1.5B-Instruct"]
    held = int(2.9 * GIB)  # when the engine starts, the weights
    monkeypatch.setattr(training, "shape_of", lambda config: shape)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: held)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    run = training.Run.__new__(training.Run)
    run.settings, run.device = settings, torch.device("cuda")
    config = SimpleNamespace(to_dict=dict)
    run.policy = SimpleNamespace(model=SimpleNamespace(config=config))
    found = (run._to_come() + held) / GIB
    phases = {phase.name: phase for phase in local_phases(settings, shape, 80.0)}
    assert phases["rollout"].parts["vLLM"] == pytest.approx(80.0 - found)
    parts = phases["training"].parts
    assert found == pytest.approx(parts["weights"] + parts["optimiser"] + parts["reserved"])
    assert "vLLM" not in parts
    awake = settings.rollout.vllm.replace(gpu_memory=0.25)
    kept = settings.replace(rollout=settings.rollout.replace(vllm=awake))
    (training_phase, *_) = local_phases(kept, shape, 80.0)
    assert training_phase.parts["vLLM"] == 20.0  # it never sleeps
