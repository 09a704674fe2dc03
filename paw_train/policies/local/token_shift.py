"""A small transformer whose tokens know the two tokens before them, at each of its layers.

A module of its own, because Transformers' modelling code takes seconds to import.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, Lfm2Config, Lfm2ForCausalLM


class TokenShift(torch.nn.Module):
    """Adds to each token's vector [H] a linear map of each of the two before it: a layer of a model.

    To copy a number from what is in view ("take cloth 3"), attention has to find what came after the name. In
    a plain transformer that takes two layers that must learn it together, which in a few minutes they do not;
    with the previous token mixed into each, a single layer does it (Olsson et al. 2022,
    https://arxiv.org/abs/2209.11895, section "smeared keys"). The one before that tells a place that the room
    lists ("a shelf 3") from one that was visited ("to shelf 3").
    """

    def __init__(self, width: int, index: int) -> None:
        super().__init__()
        self.index = index
        linears = [torch.nn.Linear(width, width, bias=False) for _ in range(2)]
        for linear in linears:
            torch.nn.init.orthogonal_(linear.weight, 0.5)
        self.previous = torch.nn.ModuleList(linears)

    def forward(self, hidden_states: Tensor, past_key_values: Any = None, **_: Any) -> Tensor:
        """[B, t, H] to [B, t, H]; a cache keeps the last two vectors, as it does for a convolution."""
        states, reach = hidden_states.transpose(1, 2), len(self.previous)
        if past_key_values is not None:
            states = past_key_values.update_conv_state(
                states, self.index, conv_kernel_size=reach + 1
            )
        before = torch.nn.functional.pad(states, (reach, 0)).transpose(1, 2)
        shifted = hidden_states
        for distance, linear in enumerate(self.previous, 1):
            shifted = shifted + linear(before[:, -hidden_states.shape[1] - distance : -distance])
        return shifted


class TokenShiftConfig(Lfm2Config):
    """The configuration of ``TokenShiftForCausalLM``."""

    model_type = "lfm2_token_shift"


class TokenShiftForCausalLM(Lfm2ForCausalLM):
    """LFM2 with a ``TokenShift`` in the place of each convolution.

    Its attention layers have grouped queries, normalised queries and keys, and SwiGLU. Transformers loads
    its checkpoints once this module is imported, as ``load_tokenizer`` does.
    """

    config_class = TokenShiftConfig

    def __init__(self, config: TokenShiftConfig) -> None:
        super().__init__(config)
        for index, kind in enumerate(config.layer_types or ()):
            if kind == "conv":
                self.model.layers[index] = TokenShift(config.hidden_size, index)


AutoConfig.register(TokenShiftConfig.model_type, TokenShiftConfig)
AutoModelForCausalLM.register(TokenShiftConfig, TokenShiftForCausalLM)
