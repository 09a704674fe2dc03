"""Logits from hidden states, as a model's own head gives them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def logits_of(model: Any, hidden: Tensor) -> Tensor:
    """[n, V] float32 logits of [n, H] last hidden states."""
    logits = model.get_output_embeddings()(hidden).float()
    return finish_logits(logits, model.config)


def finish_logits(logits: Tensor, config: Any) -> Tensor:
    """Logits as some models change them after the output layer (Gemma 2, RecurrentGemma, Cohere, Granite)."""
    if scale := getattr(config, "logit_scale", None):
        logits = logits * scale
    if divisor := getattr(config, "logits_scaling", None):
        logits = logits / divisor
    for name in ("final_logit_softcapping", "logits_soft_cap"):
        if cap := getattr(config, name, None):
            logits = torch.tanh(logits / cap) * cap
    return logits
