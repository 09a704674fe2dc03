"""Log-probabilities of given tokens from a model's logits, without a float32 copy of the logits."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from paw_train.losses.tensor_inputs import as_mask


def token_logprobs(
    logits: Tensor, ids: Tensor, mask: Tensor | None = None, chunk_size: int = 1024
) -> Tensor:
    """Log-probability of each token given everything before it in its row.

    Log-probabilities of a 150,000-word vocabulary in float32 are the largest tensor of a training
    step. Here they exist for `chunk_size` positions at a time, in the forward and again in the
    backward pass; what stays is the logits themselves and, in backward, their gradient, both in the
    model's own precision.

    Args:
        logits: [B, T, V] the model's output; position `t` predicts token `t + 1`.
        ids: [B, T] token ids, integers; read only where wanted, so padding may hold any value.
        mask: [B, T] 1 where a log-probability is wanted; None: every token but the first of each
            row.
        chunk_size: positions handled at a time.

    Returns:
        [B, T] in nats, aligned with `ids`, float32 (float64 for float64 logits); 0 where not
        wanted. Differentiable once, in `logits`.

    Raises:
        ValueError: shapes do not fit, or the mask marks the first token of a row.
    """
    if logits.ndim != 3 or ids.shape != logits.shape[:2]:
        raise ValueError(
            f"`logits` must be [B, T, V] and `ids` [B, T]; "
            f"got {tuple(logits.shape)} and {tuple(ids.shape)}."
        )
    if chunk_size < 1:
        raise ValueError(f"`chunk_size` must be 1 or more, got {chunk_size}.")
    if mask is None:
        wanted = torch.ones(ids.shape, dtype=torch.bool, device=ids.device)
        wanted[:, :1] = False
    else:
        wanted = as_mask(mask, "mask", like=ids)
        if wanted[:, :1].any():
            raise ValueError("`mask` marks the first token of a row, which no logits predict.")
    rows, columns = wanted.nonzero(as_tuple=True)
    values: Tensor = _TokenLogprobs.apply(logits, ids[rows, columns], rows, columns - 1, chunk_size)
    result = values.new_zeros(ids.shape)
    result[rows, columns] = values
    return result


class _TokenLogprobs(torch.autograd.Function):
    """log_softmax and gather at P chosen positions, recomputed chunk by chunk in backward."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, rows: Tensor, columns: Tensor, chunk_size: int
    ) -> Tensor:
        wide = torch.promote_types(logits.dtype, torch.float32)
        values = torch.empty(len(rows), dtype=wide, device=logits.device)
        norms = torch.empty_like(values)
        for start in range(0, len(rows), chunk_size):
            part = slice(start, start + chunk_size)
            scores = logits[rows[part], columns[part]].to(wide)
            norms[part] = scores.logsumexp(-1)
            values[part] = scores.gather(-1, targets[part, None]).squeeze(-1) - norms[part]
        ctx.save_for_backward(logits, targets, rows, columns, norms)
        ctx.chunk_size = chunk_size
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        logits, targets, rows, columns, norms = ctx.saved_tensors
        result = torch.zeros_like(logits)
        for start in range(0, len(rows), ctx.chunk_size):
            part = slice(start, start + ctx.chunk_size)
            # d log p_y / d z_v = 1[v = y] - p_v
            share = (logits[rows[part], columns[part]].to(norms.dtype) - norms[part, None]).exp_()
            share.mul_(-grad[part, None])
            share.scatter_add_(-1, targets[part, None], grad[part, None])
            result[rows[part], columns[part]] = share.to(result.dtype)
        return result, None, None, None, None
