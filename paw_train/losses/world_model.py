"""World-model losses of one observation token (Eq. 5, 7), and means over the tokens of a row.

Position `t` of a `[B, T]` tensor holds the log-probability of token `t` given all before it. Values outside
the mask are never read, NaN and infinities included.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from paw_gym.internals.registry import Registry
from paw_train.losses.tensor_inputs import FloatArray, as_float, as_mask
from paw_train.settings.world_model import WorldModelSettings

TokenLoss = Callable[[Tensor, WorldModelSettings], Tensor]
"""(log-probabilities, settings) -> the loss of each token, in the same shape, differentiable"""
WORLD_MODEL_LOSSES: Registry[TokenLoss] = Registry(
    "world-model loss", "paw_train.world_model_losses"
)
"""the losses by name; add yours with ``WORLD_MODEL_LOSSES.register``"""
WORLD_MODEL_LOSSES.add("cmae", lambda logp, settings: clipped_mae_tokens(logp, settings.rho))
WORLD_MODEL_LOSSES.add("mae", lambda logp, settings: 1 - logp.exp())
WORLD_MODEL_LOSSES.add("ce", lambda logp, settings: -logp)


def clipped_mae_tokens(logprobs: Tensor, rho: float) -> Tensor:
    """`1[p <= rho] (1 - p)` of each token (Eq. 7); the indicator has no gradient."""
    probabilities = logprobs.exp()
    return (1 - probabilities) * ~_above(probabilities.detach(), rho)


def token_losses(logprobs: Tensor, settings: WorldModelSettings) -> Tensor:
    """The loss that `settings.loss` names, of each token.

    Raises:
        ValueError: there is no such loss, or it did not return a number for each token.
    """
    losses = WORLD_MODEL_LOSSES[settings.loss](logprobs, settings)
    if not isinstance(losses, Tensor) or losses.shape != logprobs.shape:
        raise ValueError(
            f"The world-model loss {settings.loss!r} returned {type(losses).__name__} of shape "
            f"{tuple(getattr(losses, 'shape', ()))}; expected a tensor with one loss for each token, "
            f"{tuple(logprobs.shape)}."
        )
    return losses


def predicted_well(logprobs: FloatArray, mask: FloatArray, rho: float) -> Tensor:
    """[B, T] booleans: observation tokens with `p > rho`, left out by `clipped_mae` (Eq. 7)."""
    logp, tokens = masked(logprobs, mask)
    return _above(logp.detach().exp(), rho) & tokens


def masked(logprobs: FloatArray, mask: FloatArray) -> tuple[Tensor, Tensor]:
    """(`logprobs` with 0 where the mask is 0, the boolean mask), both [B, T].

    Replacing before any arithmetic keeps padding's NaN and infinities out of values and gradients
    alike.
    """
    logp = as_float(logprobs, "logprobs", ndim=2)
    tokens = as_mask(mask, "mask", like=logp)
    return torch.where(tokens, logp, torch.zeros((), dtype=logp.dtype, device=logp.device)), tokens


def mean_over(values: Tensor, tokens: Tensor) -> Tensor:
    """[B] mean of the [B, T] values at which `tokens` is set; 0 for a row without any."""
    return (values * tokens).sum(-1) / tokens.sum(-1).clamp(min=1)


def _above(probabilities: Tensor, rho: float) -> Tensor:
    if not 0.0 < rho <= 1.0:
        raise ValueError(f"`rho` is a probability threshold and must be in (0, 1], got {rho}.")
    # p comes back from a log-probability: exp(log(rho)) can exceed rho by an ulp or two, and a
    # token at p = rho is to be kept (Eq. 7).
    slack = 1 + 4 * torch.finfo(probabilities.dtype).eps
    return probabilities > rho * slack
