"""Peak memory of forward and backward passes at real shapes, on tensors that have no storage.

The project's own code runs under PyTorch's ``FakeTensorMode``: every operation gives a tensor of the right
shape and nothing is computed, so a pass of a 14-billion model takes seconds on a laptop. What is alive
is summed after each operation. Workspaces inside kernels are not counted.

    python benchmarks/memory.py                 # the table of docs/benchmarks.md
    python benchmarks/memory.py --tokens 8192 --models Qwen/Qwen2.5-0.5B-Instruct
"""

from __future__ import annotations

import argparse
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from paw_train.losses import lm_head_logprobs
from paw_train.losses.lm_head_logprobs import TokenScorer
from paw_train.policies.local.loading import enable_recomputation, recomputed
from paw_train.training.memory import KNOWN, LOGITS_AT_A_TIME, ModelShape

GIB = 2**30
ROW = 2048
"""tokens of a row"""
SCORED = 0.15
"""share of the tokens whose log-probabilities are asked for without PaW: those of responses"""


class LiveBytes(TorchDispatchMode):
    """Sums the bytes of all tensors that are alive, and remembers the largest sum."""

    def __init__(self) -> None:
        super().__init__()
        self.live, self.peak = 0, 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, Tensor):
                self.add(value)
        return result

    def add(self, tensor: Tensor) -> None:
        """Counts a tensor's storage until it is freed."""
        storage = tensor.untyped_storage()
        if id(storage) in self._sizes:
            return
        self._sizes[id(storage)] = storage.nbytes()
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, id(storage))

    def _free(self, number: int) -> None:
        self.live -= self._sizes.pop(number)

    def above(self, work: Callable[[], Any]) -> float:
        """The most bytes alive at once during ``work``, beyond those alive now."""
        start = self.peak = self.live
        work()
        return float(self.peak - start)


class FlashAttention(torch.autograd.Function):
    """The allocations of a fused attention kernel; its values are never read here."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = torch.empty_like(query)
        norms = query.new_empty(query.shape[:3], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, output, norms)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        query, key, _, _, norms = ctx.saved_tensors
        grad.contiguous()
        torch.empty_like(norms)
        groups = (key.shape[1], query.shape[1] // key.shape[1])
        # the gradients of keys and values for each query head, before they are summed
        wide = [torch.empty_like(query).unflatten(1, groups) for _ in range(2)]
        return torch.empty_like(query), wide[0].sum(2), wide[1].sum(2)


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any
) -> tuple[Tensor, None]:
    output: Tensor = FlashAttention.apply(query, key, value)
    return output.transpose(1, 2).contiguous(), None


def _all_live(grad: Tensor, grad_entropy: Tensor) -> tuple[Tensor, int]:
    return torch.arange(len(grad)), len(grad_entropy)


@contextmanager
def counted() -> Iterator[LiveBytes]:
    """Tensors without storage, and chunks of logits as large as on a GPU."""
    with ExitStack() as stack:
        chunks = {"cpu": LOGITS_AT_A_TIME}
        stack.enter_context(mock.patch.dict(lm_head_logprobs._CHUNK_ELEMENTS, chunks))
        # tensors without storage cannot tell which tokens have a gradient: all are assumed to
        stack.enter_context(mock.patch.object(lm_head_logprobs, "_live", _all_live))
        stack.enter_context(FakeTensorMode())
        yield stack.enter_context(LiveBytes())


def make_model(shape: ModelShape, live: LiveBytes) -> Any:
    """A model of the given shape; its weights are counted as alive."""
    from transformers import AttentionInterface, Qwen2Config, Qwen2ForCausalLM
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register("counted", _attend)
    AttentionMaskInterface.register("counted", lambda *_, **__: None)
    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=32768,
        attn_implementation="counted",
    )
    model = Qwen2ForCausalLM._from_config(config, dtype=torch.bfloat16).eval()
    for parameter in model.parameters():
        live.add(parameter)
        parameter.register_post_accumulate_grad_hook(_forget)
    return model


def _forget(parameter: Tensor) -> None:
    """Gradients of weights are counted by the plan, not here."""
    parameter.grad = None


def policy_peak(
    shape: ModelShape,
    tokens: int,
    recompute: bool = True,
    scored: float = SCORED,
    gradients: bool = True,
    entropy: bool = False,
) -> float:
    """Bytes of one pass of a policy, above its weights and their gradients.

    Args:
        shape: of the model.
        tokens: of the micro-batch.
        recompute: activations are computed again in the backward pass.
        scored: share of the tokens whose log-probabilities are asked for.
        gradients: whether there is a backward pass; without one, this is the scoring of a reference.
        entropy: the entropy of the tokens is asked for as well (``objective.entropy_coef``).
    """
    with counted() as live:
        model = make_model(shape, live)
        if recompute:
            enable_recomputation(model)
        scorer = TokenScorer(model)
        scorer.fallback_reason = None  # the check reads values
        ids, picked = torch.zeros(tokens // ROW, ROW, dtype=torch.long), int(tokens * scored)
        places, ones = torch.ones(picked, dtype=torch.long), torch.ones(picked)

        def work() -> None:
            with recomputed(model), torch.set_grad_enabled(gradients):
                scores = scorer(ids, places, ones, picked if entropy else 0)
                found = torch.cat(list(scores))
            if gradients:
                found.sum().backward()

        return live.above(work)


def critic_peak(shape: ModelShape, tokens: int) -> float:
    """Bytes of one pass of PPO's critic, above its weights and their gradients."""
    with counted() as live:
        model = make_model(shape, live)
        enable_recomputation(model)
        decoder, head = model.get_decoder(), torch.nn.Linear(shape.hidden, 1)
        ids = torch.zeros(tokens // ROW, ROW, dtype=torch.long)
        places = torch.ones(int(tokens * SCORED), dtype=torch.long)

        def work() -> None:
            with recomputed(decoder):
                hidden = decoder(input_ids=ids, use_cache=False).last_hidden_state
            head(hidden.flatten(0, 1).index_select(0, places).float()).sum().backward()

        return live.above(work)


# --- the table ------------------------------------------------------------------------------------

MODELS = ("Qwen/Qwen2.5-1.5B-Instruct", "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-14B-Instruct")


def rows(model: str, tokens: int) -> dict[str, float]:
    """GiB of each pass of a model; for the pass alone, without weights."""
    shape = KNOWN[model]
    return {
        "policy": policy_peak(shape, tokens) / GIB,
        "critic of PPO": critic_peak(shape, tokens) / GIB,
        "reference": policy_peak(shape, tokens, gradients=False) / GIB,
    }


def added_by_paw(model: str, tokens: int) -> float:
    """Share by which PaW raises the peak of a training step on one GPU, including states.

    Every token of every next observation is scored; the worst case is a micro-batch whose rest consists
    of nothing but observations.
    """
    shape = KNOWN[model]
    states = 18.0 * shape.parameters  # weights, float32 weights, two moments, gradients
    without = states + policy_peak(shape, tokens)
    return (states + policy_peak(shape, tokens, scored=1.0)) / without - 1


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=16384, help="of a micro-batch")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=sorted(KNOWN))
    chosen = parser.parse_args(arguments)
    print(f"| model | pass of {chosen.tokens:,} tokens | GiB |\n| --- | --- | ---: |")
    for model in chosen.models:
        for what, gib in rows(model, chosen.tokens).items():
            print(f"| {model} | {what} | {gib:.1f} |", flush=True)
        added = added_by_paw(model, chosen.tokens)
        print(f"| {model} | added by PaW, states included | {added:.2%} |")


if __name__ == "__main__":
    main()
