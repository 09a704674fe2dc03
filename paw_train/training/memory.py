"""Bytes of GPU memory that a model takes in training and scoring, by formulas on its shape.

The terms are what autograd keeps of a bfloat16 decoder layer with a fused attention kernel (flash
attention or PyTorch's), counted in bytes a token. ``benchmarks/memory.py`` runs the project's own
forward and backward passes at real shapes on tensors that have no storage and counts what is alive;
``tests/train/test_memory.py`` holds these formulas to it. Workspaces inside kernels are not in them.
"""

from __future__ import annotations

from dataclasses import dataclass

from paw_train.training.model_shape import ModelShape

LOGITS_AT_A_TIME = 2**27
"""elements of a chunk of logits on a GPU, as in ``paw_train.losses.lm_head_logprobs``"""


@dataclass(frozen=True)
class Micro:
    """One micro-batch.

    Args:
        tokens: that it reads, padding included.
        recompute: whether activations are computed again in the backward pass.
        scored: tokens whose log-probabilities are asked for; ``None``: all.
    """

    tokens: int
    recompute: bool = True
    scored: int | None = None

    def logits(self, shape: ModelShape) -> int:
        """Elements of the logits that exist at a time."""
        scored = self.tokens if self.scored is None else self.scored
        return min(scored * shape.vocabulary, LOGITS_AT_A_TIME)


def kept_bytes(shape: ModelShape, micro: Micro) -> float:
    """What the forward pass keeps for the backward pass."""
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
    return 6.0 * micro.logits(shape) + 6.0 * shape.vocabulary * shape.hidden


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
