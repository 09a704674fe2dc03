"""How large a decoder-only model is, and what GPU memory it takes in training and scoring, in bytes.

The terms are what autograd keeps of a bfloat16 decoder layer with a fused attention kernel (flash
attention or PyTorch's), counted in bytes a token. ``benchmarks/memory.py`` runs the project's own
forward and backward passes at real shapes on tensors that have no storage and counts what is alive;
``tests/train/test_gpu.py`` holds these formulas to it. Workspaces inside kernels are not in them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from paw_gym.internals.files import user_path
from paw_gym.internals.naming import did_you_mean


@dataclass(frozen=True)
class ModelShape:
    """A transformer with grouped-query attention and a gated feed-forward layer (Llama, Qwen)."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    tied: bool
    """whether the LM head is the embedding matrix"""
    head_dim: int
    qkv_bias: bool = False
    qk_norm: bool = False

    @property
    def parameters(self) -> int:
        """Weights in all."""
        inner = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        biases = self.head_dim * (self.heads + 2 * self.kv_heads) * self.qkv_bias
        norms = 2 * self.hidden + 2 * self.head_dim * self.qk_norm
        layer = inner + biases + norms + 3 * self.hidden * self.intermediate
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return embeddings + self.layers * layer + self.hidden

    @property
    def cache_values(self) -> int:
        """Numbers that a key-value cache holds for one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim


def _qwen25(
    hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int, vocabulary: int
) -> ModelShape:
    tied = vocabulary == 151936
    return ModelShape(
        hidden, layers, heads, kv_heads, intermediate, vocabulary, tied, hidden // heads, True
    )


KNOWN: Mapping[str, ModelShape] = MappingProxyType(
    {
        "Qwen/Qwen2.5-0.5B-Instruct": _qwen25(896, 24, 14, 2, 4864, 151936),
        "Qwen/Qwen2.5-1.5B-Instruct": _qwen25(1536, 28, 12, 2, 8960, 151936),
        "Qwen/Qwen2.5-3B-Instruct": _qwen25(2048, 36, 16, 2, 11008, 151936),
        "Qwen/Qwen2.5-7B-Instruct": _qwen25(3584, 28, 28, 4, 18944, 152064),
        "Qwen/Qwen2.5-14B-Instruct": _qwen25(5120, 48, 40, 8, 13824, 152064),
        "Qwen/Qwen3-1.7B": ModelShape(2048, 28, 16, 8, 6144, 151936, True, 128, qk_norm=True),
        "Qwen/Qwen3-8B": ModelShape(4096, 36, 32, 8, 12288, 151936, False, 128, qk_norm=True),
        "meta-llama/Llama-3.2-3B-Instruct": ModelShape(3072, 28, 24, 8, 8192, 128256, True, 128),
    }
)
"""shapes of the models of our recipes, as their ``config.json`` give them, by name on the hub"""


def model_shape(path: str) -> ModelShape:
    """The shape of a model by its folder, or by a hub name in ``KNOWN``."""
    config = user_path(path) / "config.json"
    if config.is_file():
        try:
            return shape_of(json.loads(config.read_text(encoding="utf-8")))
        except (AttributeError, ValueError) as error:
            raise ValueError(f"{config} does not describe a model: {error}") from error
    if path not in KNOWN:
        raise ValueError(
            f"The size of {path!r} is not known here, and nothing is downloaded to find out: give the "
            f"folder of the model. {did_you_mean(path, KNOWN)}"
        )
    return KNOWN[path]


def shape_of(config: Mapping[str, object]) -> ModelShape:
    """The shape of a model by what its ``config.json`` holds."""

    def number(name: str, default: int | None = None) -> int:
        value = default if config.get(name) is None else config[name]
        if not isinstance(value, int):
            raise ValueError(f"config.json has no {name!r}: the model is not of a known kind.")
        return value

    heads, kind = number("num_attention_heads"), config.get("model_type")
    return ModelShape(
        number("hidden_size"),
        number("num_hidden_layers"),
        heads,
        number("num_key_value_heads", heads),
        number("intermediate_size"),
        number("vocab_size"),
        bool(config.get("tie_word_embeddings", False)),
        number("head_dim", number("hidden_size") // heads),
        kind == "qwen2",
        kind == "qwen3",
    )


def memory_of(device: torch.device) -> float | None:
    """GiB of a GPU; ``None`` for a CPU."""
    if device.type != "cuda":
        return None
    return float(torch.cuda.get_device_properties(device).total_memory / 2**30)


LOGITS_AT_A_TIME = 2**27
"""elements of a chunk of logits on a GPU, as in ``paw_train.losses.lm_head_logprobs``"""


@dataclass(frozen=True)
class Micro:
    """One micro-batch."""

    tokens: int
    recompute: bool = True
    scored: int | None = None
    """tokens whose log-probabilities are asked for; ``None``: all"""
    entropy: bool = False
    """whether their entropies are asked for as well (``objective.entropy_coef``)"""

    def logits(self, shape: ModelShape) -> int:
        """Elements of the logits that exist at a time."""
        scored = self.tokens if self.scored is None else self.scored
        return min(scored * shape.vocabulary, LOGITS_AT_A_TIME)


def kept_bytes(shape: ModelShape, micro: Micro) -> float:
    """Bytes that the forward pass keeps for the backward pass."""
    if micro.recompute:
        layers = 2.0 * shape.hidden * shape.layers  # each layer's input
    else:
        layers = shape.layers * (
            20.0 * shape.hidden + 4 * _kv(shape) + 8 * shape.intermediate + 8 * shape.heads
        )
    # the last norm computes in float32
    return micro.tokens * (layers + 6.2 * shape.hidden)


def backward_bytes(shape: ModelShape, micro: Micro) -> float:
    """The most that the layers' backward passes take beside what was kept."""
    if micro.recompute:
        a_token = 15.6 * shape.hidden + 7.3 * _kv(shape) + 12 * shape.intermediate
    else:
        a_token = 10.0 * shape.hidden + 2 * shape.intermediate
    # the LM head's share of a tied embedding's gradient waits for the embedding's
    waiting = 2.0 * shape.vocabulary * shape.hidden if shape.tied else 0.0
    return micro.tokens * a_token + waiting


def lm_head_bytes(shape: ModelShape, micro: Micro) -> float:
    """The most that the LM head's backward pass takes: a chunk of logits, and its weight's gradient.

    The gradient is summed in float32 over chunks and rounded at the end.
    """
    a_logit = 10.0 if micro.entropy else 6.0
    return a_logit * micro.logits(shape) + 6.0 * shape.vocabulary * shape.hidden


def training_bytes(shape: ModelShape, micro: Micro) -> float:
    """The most that a forward and backward pass of a policy takes, gradients of its weights left out."""
    return kept_bytes(shape, micro) + max(backward_bytes(shape, micro), lm_head_bytes(shape, micro))


def critic_bytes(shape: ModelShape, micro: Micro) -> float:
    """As ``training_bytes``, of a critic: a decoder with a value head."""
    waiting = 2.0 * shape.vocabulary * shape.hidden if shape.tied else 0.0
    return kept_bytes(shape, micro) + backward_bytes(shape, micro) - waiting


def scoring_bytes(shape: ModelShape, micro: Micro) -> float:
    """The most that a forward pass without gradients takes."""
    layer = micro.tokens * (7.7 * shape.hidden + 2.2 * _kv(shape) + 6 * shape.intermediate)
    return max(layer, 6.0 * micro.tokens * shape.hidden + 6.0 * micro.logits(shape))


def _kv(shape: ModelShape) -> int:
    return shape.kv_heads * shape.head_dim
