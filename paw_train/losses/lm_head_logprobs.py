"""Log-probabilities and entropies of selected tokens, straight from hidden states.

The logits of a whole batch, [B, T, V], are the largest tensor of a training step, and most of them
are of prompt tokens that are never scored. Here the language-model head is applied to the selected
positions only, a chunk of them at a time, and again in the backward pass; neither [B, T, V] nor the
[P, V] of the selected positions ever exists whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_LOG = logging.getLogger(__name__)
_CHUNK_ELEMENTS: dict[str, int] = {"cpu": 2**24, "cuda": 2**27}
"""logits that exist at one time: 64 MiB of float32 on a CPU, 512 MiB on a GPU, which needs larger
products to keep it busy"""


class TokenScores(NamedTuple):
    """Scores of P tokens."""

    logprobs: Tensor
    """[P] log-probability of each token, in nats"""
    entropy: Tensor
    """[E] Shannon entropy of the whole next-token distribution at the first E positions, in nats"""


def linear_scores(
    hidden: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    targets: Tensor,
    temperature: Tensor,
    entropies: int = 0,
    chunk_size: int | None = None,
) -> TokenScores:
    """Scores of tokens under ``softmax((hidden @ weight.T + bias) / temperature)``.

    Args:
        hidden: [P, H] last hidden state before each token.
        weight: [V, H] of the language-model head; ``None``: ``hidden`` holds logits already, [P, V].
        bias: [V] or ``None``.
        targets: [P] token ids.
        temperature: [P], positive.
        entropies: E, the number of leading positions whose entropy is wanted.
        chunk_size: positions handled at a time; ``None``: by the size of the vocabulary.

    Returns:
        Both float32 (float64 for float64 weights), differentiable once in ``hidden``, ``weight`` and
        ``bias``. The softmax is taken in that precision whatever the precision of the weights.
    """
    hidden = hidden if weight is None else hidden.to(weight.dtype)
    vocabulary = hidden.shape[1] if weight is None else len(weight)
    most = _CHUNK_ELEMENTS["cuda" if hidden.device.type == "cuda" else "cpu"]
    size = chunk_size or max(1, most // vocabulary)
    inverse = 1.0 / temperature.to(torch.promote_types(hidden.dtype, torch.float32))
    return TokenScores(*_Scores.apply(hidden, weight, bias, targets, inverse, entropies, size))


class _Scores(torch.autograd.Function):
    """LM head, tempered log-softmax and gather, recomputed chunk by chunk in backward."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        targets: Tensor,
        inverse: Tensor,
        entropies: int,
        size: int,
    ) -> tuple[Tensor, Tensor]:
        values, norms = torch.empty_like(inverse), torch.empty_like(inverse)
        entropy = inverse.new_empty(entropies)
        for start in range(0, len(targets), size):
            part = slice(start, start + size)
            scores = _tempered(hidden[part], weight, bias, inverse[part])
            norms[part] = scores.logsumexp(-1)
            values[part] = scores.gather(-1, targets[part, None]).squeeze(-1) - norms[part]
            few = len(entropy[part])
            shares = scores[:few].sub_(norms[part][:few, None]).exp_()
            entropy[part] = torch.special.entr(shares).sum(-1)
            del scores, shares  # or the next chunk would be computed beside this one
        ctx.save_for_backward(hidden, weight, bias, targets, inverse, norms, entropy)
        ctx.size = size
        return values, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_entropy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, inverse, norms, entropy = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        to_hidden = torch.zeros_like(hidden) if wants_hidden else None
        # sums over chunks stay in the wide type: rounded to bfloat16 each, they would drift
        to_weight = torch.zeros_like(weight, dtype=norms.dtype) if wants_weight else None
        to_bias = torch.zeros_like(bias, dtype=norms.dtype) if wants_bias else None
        # tokens that are only measured (observations that are not selected, say) cost nothing here
        live, entropies = _live(grad, grad_entropy)
        for rows in live.split(ctx.size):
            own = hidden[rows]
            share = _tempered(own, weight, bias, inverse[rows])
            share.sub_(norms[rows, None]).exp_()
            first = rows[: max(0, entropies)]
            entropies -= len(rows)
            few = share[: len(first)]
            # dH / dz_v = -p_v log p_v - p_v H
            more = torch.special.entr(few).sub_(few * entropy[first, None])
            more.mul_(grad_entropy[first, None])
            # d log p_y / dz_v = 1[v = y] - p_v
            share.mul_(-grad[rows, None]).scatter_add_(-1, targets[rows, None], grad[rows, None])
            few += more
            share.mul_(inverse[rows, None])
            if to_bias is not None:
                to_bias += share.sum(0)
            share = share.to(hidden.dtype)
            if to_hidden is not None:
                to_hidden.index_copy_(0, rows, share if weight is None else share @ weight)
            if to_weight is not None and to_weight.dtype == share.dtype:
                to_weight.addmm_(share.T, own)
            elif to_weight is not None:
                to_weight += share.T @ own
            del share, few, more  # or the next chunk would be computed beside this one
        sums = (None if x is None else x.to(hidden.dtype) for x in (to_weight, to_bias))
        return to_hidden, *sums, None, None, None, None


def _tempered(
    hidden: Tensor, weight: Tensor | None, bias: Tensor | None, inverse: Tensor
) -> Tensor:
    """Tempered logits of some positions, in new memory and in the wide type."""
    if weight is None:
        return hidden.to(inverse.dtype) * inverse[:, None]
    with torch.autocast(hidden.device.type, enabled=False):
        return nn.functional.linear(hidden, weight, bias).to(inverse.dtype).mul_(inverse[:, None])


def _live(grad: Tensor, grad_entropy: Tensor) -> tuple[Tensor, int]:
    """Numbers of the positions with a gradient, and how many of them have an entropy (they come first)."""
    some = grad != 0
    some[: len(grad_entropy)] |= grad_entropy != 0
    return some.nonzero().squeeze(1), int(some[: len(grad_entropy)].sum())


class TokenScorer:
    """Scores selected tokens under a Hugging Face causal language model, with or without an adapter.

    The model is called as a whole. During the call its LM head returns scores instead of logits, so that
    hooks on it (ZeRO-3 gathers its weight there, forward and backward) run as usual. If the head is more
    than a plain linear layer, or the model changes what it returns (capped or scaled logits), scores are
    made from the logits of the selected tokens, which takes more memory; a warning says so.
    """

    def __init__(self, model: Any) -> None:
        self.model = model

    @cached_property
    def fallback_reason(self) -> str | None:
        """Why the model's own logits are used; ``None``: they are not."""
        reason = _more_than_linear(self.model)
        if reason is not None:
            _LOG.warning(
                "Log-probabilities go through whole logits, which takes more memory: %s.", reason
            )
        return reason

    def __call__(
        self, input_ids: Tensor, tokens: Tensor, temperature: Tensor, entropies: int = 0
    ) -> TokenScores:
        """Scores the given tokens.

        Args:
            input_ids: [B, T], padded on the right.
            tokens: [P] numbers ``b * T + t`` of the tokens, t > 0.
            temperature: [P].
            entropies: E, the number of leading tokens whose entropy is wanted.
        """
        targets = input_ids.flatten()[tokens]
        if self.fallback_reason is not None:
            logits = self.logits(input_ids, tokens)
            return linear_scores(logits, None, None, targets, temperature, entropies)
        return self.during(
            lambda: self._called(input_ids), tokens - 1, targets, temperature, entropies
        )

    def during(
        self,
        forward: Callable[[], Tensor],
        positions: Tensor,
        targets: Tensor,
        temperature: Tensor,
        entropies: int = 0,
    ) -> TokenScores:
        """Scores the tokens [P] that follow the given positions, during a call of the model.

        Args:
            forward: calls the model and returns its logits, [..., V].
            positions: [P] in the flattened leading dimensions of the logits.

        Raises:
            ValueError: the model's own logits are needed (``fallback_reason``).
        """
        if self.fallback_reason is not None:
            raise ValueError(
                "This model's tokens can be scored by its whole logits only, which take gigabytes on each "
                f"GPU: {self.fallback_reason}. Train it with engine=local, which does that for small models."
            )
        lm_head = self.model.get_output_embeddings()

        def score(hidden: Tensor) -> Tensor:
            selected = hidden.flatten(0, -2).index_select(0, positions)
            weight, bias = lm_head.weight, lm_head.bias
            return torch.cat(linear_scores(selected, weight, bias, targets, temperature, entropies))

        with _replaced_forward(lm_head, score):
            found = forward()
        return TokenScores(*found.split([len(targets), entropies]))

    def logits(self, input_ids: Tensor, tokens: Tensor) -> Tensor:
        """[P, V] logits that predict the given tokens (numbered as above): meant for few tokens."""
        if self.fallback_reason is not None:
            return self._called(input_ids).flatten(0, 1).index_select(0, tokens - 1)
        lm_head = self.model.get_output_embeddings()

        def project(hidden: Tensor) -> Tensor:
            selected = hidden.flatten(0, -2).index_select(0, tokens - 1)
            return nn.functional.linear(selected, lm_head.weight, lm_head.bias)

        with _replaced_forward(lm_head, project):
            return self._called(input_ids)

    def _called(self, input_ids: Tensor) -> Tensor:
        # causal attention never looks to the right, where the padding is: no mask is needed
        logits: Tensor = self.model(input_ids=input_ids, use_cache=False).logits
        return logits


@contextmanager
def _replaced_forward(module: nn.Module, forward: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Within it, calls of the module compute something else; its hooks stay."""
    module.forward = forward
    try:
        yield
    finally:
        del module.forward


def _more_than_linear(model: Any) -> str | None:
    """The reason why scores cannot take the place of a model's logits, if there is one."""
    lm_head = model.get_output_embeddings()
    if type(lm_head) is not nn.Linear:
        return f"the LM head is a {type(lm_head).__name__}, not a plain linear layer"
    hooks = [*lm_head._forward_hooks.values(), *lm_head._forward_pre_hooks.values()]
    if not all(hook.__module__.startswith("deepspeed.") for hook in hooks):
        return "the LM head has hooks"
    count, weight = lm_head.out_features, lm_head.weight
    ids = torch.arange(min(4, count), device=weight.device)[None]
    # large enough for any cap to show, whatever the model's own logits are
    probe = torch.linspace(-100, 100, count, dtype=weight.dtype, device=weight.device)
    # one flag per module: layers that recompute have theirs set while dropout inside them is off
    flags = [(module, module.training) for module in model.modules()]
    model.eval()  # dropout would draw random numbers: a continued run has its own first pass
    try:
        with torch.no_grad(), _replaced_forward(lm_head, lambda x: probe.repeat(*x.shape[:-1], 1)):
            logits = model(input_ids=ids, use_cache=False).logits
    finally:
        for module, flag in flags:
            module.training = flag
    if (logits.float() == probe.float()).all():
        return None
    return "the model changes the logits after its LM head (a cap or a scale)"
