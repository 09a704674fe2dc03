"""A stub of the part of verl 0.9.1 that our agent loop touches, as recorded from its sources.

Put in verl's place where verl is not installed: names, fields and defaults are verl's; nothing else is here.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ConfigDict

NAME = "verl.experimental.agent_loop.agent_loop"


class AgentLoopMetrics(BaseModel):
    model_config = ConfigDict(extra="forbid")

    generate_sequences: float = 0.0
    tool_calls: float = 0.0
    compute_score: float = 0.0
    num_preempted: int = -1


class AgentLoopOutput(BaseModel):
    model_config = ConfigDict(extra="forbid")

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float] | None = None
    routed_experts: Any = None
    multi_modal_data: dict[str, Any] | None = None
    reward_score: float | None = None
    num_turns: int = 0
    metrics: AgentLoopMetrics
    extra_fields: dict[str, Any] = {}
    mm_processor_kwargs: dict[str, Any] | None = None
    mm_processor_output: list[dict[str, Any]] | None = None


class AgentLoopBase:
    def __init__(
        self, trainer_config: Any, server_manager: Any, tokenizer: Any, **kwargs: Any
    ) -> None:
        self.config = trainer_config.config
        self.rollout_config = self.config.actor_rollout_ref.rollout
        self.server_manager = server_manager
        self.tokenizer = tokenizer


class DictConfigWrap:
    def __init__(self, config: Any) -> None:
        self.config = config


def modules() -> dict[str, ModuleType]:
    """The stub under verl's names, for ``sys.modules``."""
    parts = NAME.split(".")
    found = {".".join(parts[:n]): ModuleType(".".join(parts[:n])) for n in range(1, len(parts))}
    return {**found, NAME: sys.modules[__name__]}
