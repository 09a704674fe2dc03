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
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

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
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: Tensor,
    entropies: int = 0,
    chunk_size: int | None = None,
) -> TokenScores:
    """Scores of tokens under ``softmax((hidden @ weight.T + bias) / temperature)``.

    Args:
        hidden: [P, H] last hidden state before each token.
        weight: [V, H] of the language-model head.
        bias: [V] or ``None``.
        targets: [P] token ids.
        temperature: [P], positive.
        entropies: E, the number of leading positions whose entropy is wanted.
        chunk_size: positions handled at a time; ``None``: by the size of the vocabulary.

    Returns:
        Both float32 (float64 for float64 weights), differentiable once in ``hidden``, ``weight`` and
        ``bias``. The softmax is taken in that precision whatever the precision of the weights.
    """
    size = chunk_size or _chunk_size(weight.shape[0], weight.device)
    inverse = 1.0 / temperature.to(torch.promote_types(weight.dtype, torch.float32))
    return TokenScores(
        *_LinearScores.apply(
            hidden.to(weight.dtype), weight, bias, targets, inverse, entropies, size
        )
    )


class _LinearScores(torch.autograd.Function):
    """LM head, tempered log-softmax and gather, recomputed chunk by chunk in backward."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        inverse: Tensor,
        entropies: int,
        chunk_size: int,
    ) -> tuple[Tensor, Tensor]:
        values = inverse.new_empty(len(targets))
        norms = torch.empty_like(values)
        entropy = inverse.new_empty(entropies)
        for part in _parts(len(targets), chunk_size):
            scores = _tempered(hidden[part], weight, bias, inverse[part])
            norms[part] = scores.logsumexp(-1)
            values[part] = scores.gather(-1, targets[part, None]).squeeze(-1) - norms[part]
            first = _within(part, entropies)
            if first:
                probabilities = scores[:first].sub_(norms[part][:first, None]).exp_()
                start = part.start
                entropy[start : start + first] = torch.special.entr(probabilities).sum(-1)
                del probabilities
            del scores  # or the next chunk would be computed beside this one
        ctx.save_for_backward(hidden, weight, bias, targets, inverse, norms, entropy)
        ctx.chunk_size = chunk_size
        return values, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_entropy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, inverse, norms, entropy = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        count = len(targets)
        # tokens that are only measured (observations that are not selected, say) cost nothing here
        live, entropies = _live(grad, grad_entropy)
        grad, grad_entropy = grad[live], grad_entropy[live[:entropies]]
        hidden, targets, inverse, norms = (x[live] for x in (hidden, targets, inverse, norms))
        entropy = entropy[live[:entropies]]
        to_hidden = torch.empty_like(hidden) if wants_hidden else None
        # sums over chunks stay in the wide type: rounded to bfloat16 each, they would drift
        to_weight = torch.zeros_like(weight, dtype=norms.dtype) if wants_weight else None
        to_bias = torch.zeros_like(bias, dtype=norms.dtype) if wants_bias else None
        for part in _parts(len(targets), ctx.chunk_size):
            scores = _tempered(hidden[part], weight, bias, inverse[part])
            share = scores.sub_(norms[part, None]).exp_()
            entropy_grad = None
            first = _within(part, len(entropy))
            if first:
                # dH / dz_v = -p_v log p_v - p_v H
                rows = slice(part.start, part.start + first)
                entropy_grad = torch.special.entr(share[:first]).sub_(
                    share[:first] * entropy[rows, None]
                )
                entropy_grad.mul_(grad_entropy[rows, None])
            # d log p_y / dz_v = 1[v = y] - p_v
            share.mul_(-grad[part, None])
            share.scatter_add_(-1, targets[part, None], grad[part, None])
            if entropy_grad is not None:
                share[:first] += entropy_grad
            share.mul_(inverse[part, None])
            if to_bias is not None:
                to_bias += share.sum(0)
            share = share.to(weight.dtype)
            if to_hidden is not None:
                torch.mm(share, weight, out=to_hidden[part])
            if to_weight is not None and to_weight.dtype == share.dtype:
                to_weight.addmm_(share.T, hidden[part])
            elif to_weight is not None:
                to_weight += share.T @ hidden[part]
            del scores, share, entropy_grad  # or the next chunk would be computed beside this one
        if to_hidden is not None:
            whole = to_hidden.new_zeros(count, to_hidden.shape[1])
            to_hidden = whole.index_copy_(0, live, to_hidden)
        return (
            to_hidden,
            None if to_weight is None else to_weight.to(weight.dtype),
            None if to_bias is None else to_bias.to(weight.dtype),
            None,
            None,
            None,
            None,
        )


def _tempered(hidden: Tensor, weight: Tensor, bias: Tensor | None, inverse: Tensor) -> Tensor:
    with torch.autocast(hidden.device.type, enabled=False):
        return nn.functional.linear(hidden, weight, bias).to(inverse.dtype).mul_(inverse[:, None])


def _live(grad: Tensor, grad_entropy: Tensor) -> tuple[Tensor, int]:
    """Numbers of the positions with a gradient, and how many of them have an entropy (they come first)."""
    some = grad != 0
    some[: len(grad_entropy)] |= grad_entropy != 0
    return some.nonzero().squeeze(1), int(some[: len(grad_entropy)].sum())


def _chunk_size(vocabulary: int, device: torch.device) -> int:
    elements: int = _CHUNK_ELEMENTS["cuda" if device.type == "cuda" else "cpu"]
    return max(1, elements // vocabulary)


def _parts(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def _within(part: slice, count: int) -> int:
    """How many positions of ``part`` are among the first ``count``."""
    return max(0, min(int(part.stop), count) - int(part.start))


def logits_scores(
    logits: Tensor,
    targets: Tensor,
    temperature: Tensor,
    entropies: int = 0,
    chunk_size: int | None = None,
) -> TokenScores:
    """Like ``linear_scores``, for logits that exist already, [P, V]."""
    size = chunk_size or _chunk_size(logits.shape[-1], logits.device)
    parts = [
        checkpoint(
            _chunk_scores,
            logits[part],
            targets[part],
            temperature[part],
            _within(part, entropies),
            use_reentrant=False,
        )
        for part in _parts(len(targets), size)
    ]
    # even without positions, the result belongs to the graph
    empty = logits.flatten()[:0].to(torch.promote_types(logits.dtype, torch.float32))
    return TokenScores(
        torch.cat([empty, *(values for values, _ in parts)]),
        torch.cat([empty, *(entropy for _, entropy in parts)]),
    )


def _chunk_scores(
    logits: Tensor, targets: Tensor, temperature: Tensor, entropies: int
) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(logits.dtype, torch.float32)
    logprobs = torch.log_softmax(logits.to(wide) / temperature[:, None].to(wide), dim=-1)
    few = logprobs[:entropies]
    # a probability of 0 adds 0, whereas 0 * log 0 would not be a number
    entropy = -(few.exp() * few.clamp(min=torch.finfo(wide).min)).sum(-1)
    return logprobs.gather(-1, targets[:, None]).squeeze(-1), entropy


class ForwardScorer:
    """Scores tokens with a model that must be called as a whole, such as one that DeepSpeed shards.

    During the call the LM head returns scores instead of logits, so that hooks on it (ZeRO-3 gathers
    its weight there, forward and backward) run as usual.

    Args:
        model: a Hugging Face causal language model, with or without an adapter of peft.

    Raises:
        ValueError: the model has more than a linear layer behind its decoder.
    """

    def __init__(self, model: Any) -> None:
        self.lm_head: Any = model.get_output_embeddings()
        reason = _more_than_linear(model, self.lm_head, through_hooks=True)
        if reason is not None:
            raise ValueError(
                f"This model's tokens can be scored by its whole logits only, which take gigabytes on each "
                f"GPU: {reason}. Train it with engine=local, which does that for small models."
            )

    def __call__(
        self,
        forward: Callable[[], Tensor],
        positions: Tensor,
        targets: Tensor,
        temperature: Tensor,
        entropies: int = 0,
    ) -> TokenScores:
        """Scores the tokens that follow the given positions.

        Args:
            forward: calls the model and returns its logits, [..., V].
            positions: [P] in the flattened leading dimensions of the logits.
            targets: [P] ids of the tokens.
            temperature: [P].
            entropies: E, the number of leading positions whose entropy is wanted.
        """

        def score(hidden: Tensor) -> Tensor:
            selected = hidden.flatten(0, -2).index_select(0, positions)
            weight, bias = self.lm_head.weight, self.lm_head.bias
            return torch.cat(linear_scores(selected, weight, bias, targets, temperature, entropies))

        with _replaced_forward(self.lm_head, score):
            found = forward()
        return TokenScores(*found.split([len(targets), entropies]))


@contextmanager
def _replaced_forward(module: nn.Module, forward: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Within it, calls of the module compute something else; its hooks stay."""
    module.forward = forward
    try:
        yield
    finally:
        del module.forward


class TokenScorer:
    """Scores selected tokens of a batch under a Hugging Face causal language model.

    If the LM head is a plain linear layer, ``linear_scores`` is used. This is tested: the head must be
    given the decoder's hidden states, and the model must return what the head answers, both within
    ``TOLERANCE``. Capped or scaled logits and adapters on the LM head fail that, and take the path through
    the model's own logits, which needs more memory; a warning says so.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._checked: tuple[int, str | None] | None = None

    def __call__(
        self,
        input_ids: Tensor,
        tokens: Tensor,
        temperature: Tensor,
        entropies: int = 0,
    ) -> TokenScores:
        """Scores the given tokens.

        Args:
            input_ids: [B, T], padded on the right.
            tokens: [P] numbers ``b * T + t`` of the tokens, t > 0.
            temperature: [P].
            entropies: E, the number of leading tokens whose entropy is wanted.
        """
        targets = input_ids.flatten()[tokens]
        if self.fallback_reason() is not None:
            logits = self.logits(input_ids, tokens)
            return logits_scores(logits, targets, temperature, entropies)
        lm_head = self.model.get_output_embeddings()
        hidden = self._hidden(input_ids, tokens)
        return linear_scores(hidden, lm_head.weight, lm_head.bias, targets, temperature, entropies)

    def logits(self, input_ids: Tensor, tokens: Tensor) -> Tensor:
        """[P, V] logits that predict the given tokens (numbered as above): meant for few tokens."""
        if self.fallback_reason() is None:
            logits: Tensor = self.model.get_output_embeddings()(self._hidden(input_ids, tokens))
            return logits
        whole: Tensor = self.model(input_ids=input_ids, use_cache=False).logits
        return whole.flatten(0, 1).index_select(0, tokens - 1)

    def _hidden(self, input_ids: Tensor, tokens: Tensor) -> Tensor:
        # causal attention never looks to the right, where the padding is: no mask is needed
        output = self.model.get_decoder()(input_ids=input_ids, use_cache=False)
        hidden: Tensor = output.last_hidden_state
        return hidden.flatten(0, 1).index_select(0, tokens - 1)

    def fallback_reason(self) -> str | None:
        """Why the model's own logits are used; ``None``: they are not."""
        lm_head = self.model.get_output_embeddings()
        if self._checked is None or self._checked[0] != id(lm_head):
            reason = _more_than_linear(self.model, lm_head)
            self._checked = id(lm_head), reason
            if reason is not None:
                _LOG.warning(
                    "Log-probabilities go through whole logits, which takes more memory: %s.",
                    reason,
                )
        return self._checked[1]


TOLERANCE = 0.02
"""share of the largest value by which two passes that compute the same may differ, in other kernels too"""


def _more_than_linear(model: Any, lm_head: Any, through_hooks: bool = False) -> str | None:
    """The reason why ``linear_scores`` cannot take the LM head's place, if there is one.

    Args:
        model: a Hugging Face causal language model.
        lm_head: its output layer.
        through_hooks: whether the layer is called with its hooks, on the states that the model gives it.
            Hooks of DeepSpeed may be there, which only gather its weight.
    """
    if type(lm_head) is not nn.Linear:
        return f"the LM head is a {type(lm_head).__name__}, not a plain linear layer"
    hooks = [*lm_head._forward_hooks.values(), *lm_head._forward_pre_hooks.values()]
    if any(not (through_hooks and hook.__module__.startswith("deepspeed.")) for hook in hooks):
        return "the LM head has hooks"
    weight = lm_head.weight
    ids = torch.arange(min(4, lm_head.out_features), device=weight.device)[None]
    # large enough for any cap to show, whatever the model's own logits are
    probe = torch.linspace(
        -100, 100, lm_head.out_features, dtype=weight.dtype, device=weight.device
    )
    given: list[Tensor] = []

    def answer(hidden: Tensor) -> Tensor:
        given.append(hidden)
        return probe.repeat(*hidden.shape[:-1], 1)

    # one flag per module: layers that recompute have theirs set while dropout inside them is off
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            with _replaced_forward(lm_head, answer):
                logits = model(input_ids=ids, use_cache=False).logits
            if not _near(logits, probe):
                return "the model changes the logits after its LM head (a cap or a scale)"
            if through_hooks:
                return None
            hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
            return None if _near(given[0], hidden) else "the model changes its LM head's input"
    finally:
        for module, flag in flags:
            module.training = flag


def _near(found: Tensor, wanted: Tensor) -> bool:
    difference = (found.float() - wanted.float()).abs().max()
    return bool(difference <= TOLERANCE * wanted.float().abs().max())
