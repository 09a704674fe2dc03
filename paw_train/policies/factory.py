"""A policy from a model's name: ``openai:MODEL``, ``vllm:MODEL``, or weights that run in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paw_train.rollouts.policy import Policy
from paw_train.settings.model import LoraSettings

if TYPE_CHECKING:
    from paw_train.policies.local.policy import LocalPolicy
    from paw_train.policies.vllm import FollowingVLLM
    from paw_train.settings.rollout import VLLMSettings

SOURCES = {"openai": "endpoint", "vllm": "vllm"}
"""prefix of a model's name: the group of settings that belongs to it"""


def source_of(model: str) -> str | None:
    """``openai`` or ``vllm`` for a name with that prefix; ``None``: weights for this process."""
    prefix, sign, name = model.partition(":")
    if not sign or prefix not in SOURCES or Path(model).exists():
        return None
    if not name:
        raise ValueError(f"{model!r} names no model: expected {prefix}:MODEL.")
    return prefix


def split_overrides(model: str, overrides: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """The overrides of the evaluation, and the settings of the model's source as nested values."""
    from paw_train.settings import apply_override

    own, data = [], {}  # type: list[str], dict[str, Any]
    source = source_of(model)
    group = SOURCES.get(source or "")
    for override in overrides:
        head = override.partition("=")[0].partition(".")[0]
        if head == group:
            apply_override(data, override)
        elif head in SOURCES.values():
            prefix = next(p for p, g in SOURCES.items() if g == head)
            raise ValueError(
                f"{override.partition('=')[0]} is a setting of models behind {prefix}:MODEL, but the "
                f"model is {model!r}. Did you mean {prefix}:{model}?"
            )
        else:
            own.append(override)
    return own, data.get(group or "", {})


def open_policy(
    model: str,
    source_settings: dict[str, Any],
    weights: str | Path,
    device: str = "cpu",
    dtype: str = "float32",
    base: str | None = None,
    revision: str | None = None,
) -> Policy:
    """The policy that a name means; one that runs in this process has ``weights``, a folder or hub name.

    ``base`` is the model below an adapter (``model.lora.base``), ``revision`` that of a model on the hub.
    """
    source = source_of(model)
    name = model.partition(":")[2]
    if source == "openai":
        if revision is not None:
            raise ValueError(f"model.revision={revision}: a server's models have none.")
        from paw_train.policies.endpoint.policy import EndpointPolicy
        from paw_train.settings.endpoint import EndpointSettings

        return EndpointPolicy(name, EndpointSettings.read(source_settings, "endpoint"))
    if source == "vllm":
        from paw_train.policies.vllm import VLLMPolicy
        from paw_train.settings.rollout import VLLMSettings

        return VLLMPolicy(name, VLLMSettings.read(source_settings, "vllm"), revision)
    from paw_train.policies.local.policy import LocalPolicy

    adapter = LoraSettings(base=base)
    policy: Policy = LocalPolicy.load(weights, device, dtype, adapter=adapter, revision=revision)
    return policy


def rollout_policy(
    local: LocalPolicy, engine: str, vllm: VLLMSettings, reserved: int = 0
) -> LocalPolicy | FollowingVLLM:
    """The policy of rollouts: the local one, or an engine that follows it and leaves ``reserved`` bytes."""
    if engine == "vllm":
        from paw_train.policies.vllm import FollowingVLLM

        return FollowingVLLM(local, vllm, reserved)
    return local
