"""Logits, and tokens from them: temperature, truncation, and one random number a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paw_train.rollouts.policy import Sampling


def logits_of(model: Any, hidden: Tensor) -> Tensor:
    """[n, V] float32 logits of [n, H] last hidden states, as the model's own head gives them."""
    logits: Tensor = model.get_output_embeddings()(hidden).float()
    config = model.get_decoder().config
    # Gemma 2, RecurrentGemma, Cohere and Granite change them after the output layer
    for name in ("logit_scale", "lm_head_multiplier"):
        logits = logits * (getattr(config, name, None) or 1.0)
    scaling = getattr(config, "logits_scaling", None) or 1.0
    logits = logits * scaling if config.model_type == "hyperclovax" else logits / scaling
    for name in ("final_logit_softcapping", "logits_soft_cap"):
        if cap := getattr(config, name, None):
            logits = torch.tanh(logits / cap) * cap
    return logits


def uniforms(seeds: Sequence[int], count: int) -> Tensor:
    """[B, count] float64 numbers in [0, 1), row b by ``seeds[b]`` alone.

    Philox is counter-based: a row's numbers do not depend on other rows, threads or the device.
    """
    rows = [np.random.Generator(np.random.Philox(seed)).random(count) for seed in seeds]
    return torch.from_numpy(np.stack(rows)) if rows else torch.zeros((0, count))


def sample_tokens(logits: Tensor, sampling: Sampling, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """One token a row and its log-probability under the distribution it was sampled from.

    Args:
        logits: [B, V].
        sampling: temperature and truncation; at temperature 0 the most likely token is taken, and
            its log-probability is the one at temperature 1.
        uniform: [B] in [0, 1): where in the cumulative distribution each row's token is (inverse
            transform sampling), so a token costs one random number however large V is.

    Returns:
        ids [B] and log-probabilities [B].
    """
    if sampling.temperature == 0:
        logprobs = torch.log_softmax(logits, dim=-1)
        ids = logits.argmax(-1)
    else:
        scaled = logits / sampling.temperature
        if sampling.truncated:
            scaled = filter_logits(scaled, sampling)
        logprobs = torch.log_softmax(scaled, dim=-1)
        ids = _invert(logprobs, uniform.to(logits.device))
    return ids, logprobs.gather(-1, ids[:, None]).squeeze(-1)


def _invert(logprobs: Tensor, uniform: Tensor) -> Tensor:
    # float64: float32 sums over a large vocabulary would shift the rare tokens' shares
    cumulative = logprobs.double().exp_().cumsum(-1)
    total = cumulative[:, -1]
    # rounding must not reach the total, where tokens of probability 0 may lie
    target = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target[:, None], right=True).squeeze(-1)


def filter_logits(logits: Tensor, sampling: Sampling) -> Tensor:
    """[B, V] tempered logits with -inf where ``top_k``, then ``top_p``, rule a token out.

    ``top_p`` counts among the tokens that ``top_k`` left (Holtzman et al. 2020, "The Curious Case of
    Neural Text Degeneration"). At least one token stays.
    """
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    allowed = torch.ones_like(ordered, dtype=torch.bool)
    if sampling.top_k:
        allowed[:, sampling.top_k :] = False
    if sampling.top_p < 1:
        probs = ordered.masked_fill(~allowed, -torch.inf).softmax(-1)
        allowed &= probs.cumsum(-1) - probs < sampling.top_p
    allowed[:, 0] = True
    keep = torch.zeros_like(allowed).scatter(-1, order, allowed)
    return logits.masked_fill(~keep, -torch.inf)
