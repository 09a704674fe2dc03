"""Log-probabilities, entropies and gradients without whole logits equal those with them."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import token_row
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.modeling_outputs import CausalLMOutputWithPast

from paw_train.losses import lm_head_logprobs
from paw_train.losses.lm_head_logprobs import TokenScorer, linear_scores
from paw_train.policies.local.policy import LocalPolicy
from paw_train.policies.local.scratch import scratch_model, word_tokenizer
from paw_train.rollouts.scoring import batch_logprobs, collate
from paw_train.rollouts.tokens import TokenRow
from paw_train.settings.model import ScratchModelSettings

SMALL = ScratchModelSettings(hidden=32, layers=2, heads=4, kv_heads=2, intermediate=64)
TOKENIZER = word_tokenizer(["a few words to speak with and then some more of them"])


def _rows(seed: int) -> list[TokenRow]:
    """Actions and observations side by side, at the second token, at the end."""
    generator = torch.Generator().manual_seed(seed)

    def ids(count: int) -> list[int]:
        return torch.randint(5, len(TOKENIZER), (count,), generator=generator).tolist()

    return [
        token_row(ids(12), ((1, 4), (4, 6)), ((8, 12), (0, 0)), wm_weight=[0.0] * 12),
        token_row(ids(5), ((0, 0), (1, 5)), wm_weight=[0.0] * 5),
        # a row that is longer than the others, and context at its end that has a weight
        token_row(ids(17), ((2, 3), (5, 9)), wm_weight=[0.0] * 14 + [0.5] * 3),
        token_row(ids(3), ((2, 3), (0, 0)), wm_weight=[0.0] * 3),
    ]


def _plain(model: Any, batch: Any, temperature: float) -> tuple[Any, Any]:
    """The definition, one token at a time."""
    logits = model(input_ids=batch.ids, use_cache=False).logits
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    values = logits.new_zeros(batch.ids.shape)
    entropy = logits.new_zeros(batch.ids.shape)
    weights = torch.zeros(batch.ids.shape) if batch.wm_weight is None else batch.wm_weight
    for b, t in (batch.action | batch.observation | (weights != 0)).nonzero().tolist():
        heat = temperature if batch.action[b, t] else 1.0
        distribution = torch.log_softmax(logits[b, t - 1] / heat, -1)
        values[b, t] = distribution[batch.ids[b, t]]
        if batch.action[b, t]:
            entropy[b, t] = -(distribution.exp() * distribution).sum()
    return values, entropy


def _gradients(model: Any, values: Any, entropy: Any) -> list[Any]:
    generator = torch.Generator().manual_seed(9)
    weights = torch.randn(2, *values.shape, generator=generator, dtype=torch.float64).to(values)
    model.zero_grad()
    (weights[0] * values + weights[1] * entropy).sum().backward()
    return [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("temperature", [1.0, 0.4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("tied", [True, False])
def test_equal_to_the_plain_path(temperature: float, dtype: Any, tied: bool) -> None:
    model = scratch_model(SMALL, len(TOKENIZER), 0).to(dtype)
    if not tied:
        model.config.tie_word_embeddings = False
        head = torch.nn.Linear(32, len(TOKENIZER), bias=True, dtype=dtype)
        model.set_output_embeddings(head)
    policy = LocalPolicy(model, TOKENIZER)
    batch = collate(_rows(1), policy.pad_id)
    values, entropy = policy.logprobs_and_entropy(batch, temperature)
    assert policy.scorer.fallback_reason is None
    assert values.dtype == dtype
    expected_values, expected_entropy = _plain(model, batch, temperature)
    tight = {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(values, expected_values, **tight)
    torch.testing.assert_close(entropy, expected_entropy, **tight)
    assert (entropy[~batch.action] == 0).all()
    assert torch.equal(policy.logprobs(batch, temperature), values)
    got = _gradients(model, values, entropy)
    expected = _gradients(model, expected_values, expected_entropy)
    scale = max(float(g.abs().max()) for g in expected)
    for one, two in zip(got, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6 * scale)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_chunking_share_of_entropies_and_tokens_without_a_gradient(data: Any) -> None:
    count = data.draw(st.integers(0, 9))
    chunk = data.draw(st.integers(1, 10))
    entropies = data.draw(st.integers(0, count))
    weights, shares = (
        torch.tensor(data.draw(st.lists(st.sampled_from(some), min_size=size, max_size=size)))
        for some, size in (([0.0, 0.5, 1.5, -2.0], count), ([0.0, 1.0], entropies))
    )
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    hidden, weight, bias = normal(count, 3), normal(7, 3), normal(7)
    targets = torch.randint(7, (count,), generator=generator)
    heat = torch.rand(count, generator=generator, dtype=torch.float64) + 0.2
    logits = hidden @ weight.T + bias
    plain = torch.log_softmax(logits / heat[:, None], -1)
    found = []
    for logprobs, entropy in (
        (plain.gather(-1, targets[:, None])[:, 0], -(plain.exp() * plain).sum(-1)[:entropies]),
        linear_scores(hidden, weight, bias, targets, heat, entropies, chunk),
        linear_scores(logits, None, None, targets, heat, entropies, chunk),
    ):
        total = (logprobs * weights).sum() + (entropy.pow(2) * shares).sum()
        grads = torch.autograd.grad(total, (hidden, weight, bias), retain_graph=True)
        found.append((logprobs, entropy, *grads))
    for scores in found[1:]:
        torch.testing.assert_close(scores, found[0], rtol=1e-9, atol=1e-9)


def test_tokens_that_are_only_measured_cost_no_backward_pass() -> None:
    hidden, weight = torch.randn(100, 4, requires_grad=True), torch.randn(9, 4)
    scores = linear_scores(
        hidden, weight, None, torch.zeros(100, dtype=torch.long), torch.ones(100)
    )
    with Operations() as done:
        scores.logprobs[:3].sum().backward()
    assert done.products == [3, 3], "the scores again, and their gradient"
    assert (hidden.grad.abs().sum(1) > 0).tolist() == [True] * 3 + [False] * 97


class Operations(TorchDispatchMode):
    """Records shapes of tensors that are made, and rows of products of matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[torch.Size] = []
        self.products: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
            self.products.append(len(args[0]))
        result = func(*args, **(kwargs or {}))
        found = result if isinstance(result, tuple | list) else [result]
        self.made += [value.shape for value in found if isinstance(value, torch.Tensor)]
        return result


def test_gradcheck() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, weight, bias = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in ((5, 3), (6, 3), (6,))
    )
    targets, heat = torch.tensor([0, 5, 2, 2, 1]), torch.tensor([0.5, 1.0, 2.0, 1.0, 1.0])
    assert torch.autograd.gradcheck(
        lambda h, w, b: tuple(linear_scores(h, w, b, targets, heat, 3, 2)), (hidden, weight, bias)
    )


def test_a_token_that_cannot_be_leaves_entropy_finite() -> None:
    bias = torch.tensor([0.0, 0.0, -torch.inf])
    hidden = torch.ones(2, 1, requires_grad=True)
    weight = torch.zeros(3, 1, requires_grad=True)
    scores = linear_scores(hidden, weight, bias, torch.tensor([0, 1]), torch.ones(2), 2)
    scores.entropy.sum().backward()
    assert scores.entropy.tolist() == pytest.approx([0.6931472] * 2)
    assert torch.isfinite(weight.grad).all()


def test_bfloat16_weights_are_scored_in_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(6, 16, generator=generator, dtype=torch.bfloat16)
    weight = torch.randn(50, 16, generator=generator, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.arange(6)
    scores = linear_scores(hidden, weight, None, targets, torch.ones(6), 6, 4)
    logits = (hidden @ weight.T).float()
    torch.testing.assert_close(
        scores.logprobs, torch.log_softmax(logits, -1)[torch.arange(6), targets]
    )
    scores.logprobs.sum().backward()
    assert weight.grad.dtype == torch.bfloat16


def _scored_by_calls(model: Any, batch: Any) -> Any:
    """Scores by a model that is called as a whole."""

    def score(ids: Any, tokens: Any, temperature: Any, entropies: int) -> Any:
        def forward() -> Any:
            return model(input_ids=ids).logits

        targets = ids.flatten()[tokens]
        return TokenScorer(model).during(forward, tokens - 1, targets, temperature, entropies)

    return batch_logprobs(score, batch, 0.7, True)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("Gemma2", {"head_dim": 8, "final_logit_softcapping": 2.0, "query_pre_attn_scalar": 8}),
        ("Granite", {"logits_scaling": 8.0}),
    ],
)
def test_a_head_that_is_more_than_linear_takes_the_plain_path(
    family: str, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 101}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0}
    config = getattr(transformers, f"{family}Config")(**shape, **settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, f"{family}ForCausalLM")(config).double().eval()
    policy = LocalPolicy(model, TOKENIZER)
    batch = collate(_rows(2), policy.pad_id)
    with caplog.at_level(logging.WARNING, "paw_train.losses.lm_head_logprobs"):
        found = policy.logprobs_and_entropy(batch, 0.7)
    assert "cap or a scale" in str(policy.scorer.fallback_reason)
    assert len(caplog.records) == 1
    expected = _plain(model, batch, 0.7)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(_gradients(model, *found), _gradients(model, *expected))
    with pytest.raises(ValueError, match=r"cap or a scale.*engine=local"):
        _scored_by_calls(model, batch)


@pytest.mark.parametrize("by_calls", [False, True])
def test_whole_logits_never_exist(by_calls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lm_head_logprobs._CHUNK_ELEMENTS, "cpu", 4 * len(TOKENIZER))
    model = scratch_model(SMALL, len(TOKENIZER), 0)
    policy, batch = LocalPolicy(model, TOKENIZER), collate(_rows(1), 0)
    with Operations() as done:
        found = (
            _scored_by_calls(model, batch) if by_calls else policy.logprobs_and_entropy(batch, 1.0)
        )
        (found[0].sum() + found[1].sum()).backward()
    rows = {shape.numel() // shape[-1] for shape in done.made if shape[-1:] == (len(TOKENIZER),)}
    # the gradient of the LM head's weight, transposed, is no logits
    assert max(rows - {SMALL.hidden}) == 4


def test_a_model_called_as_a_whole_gives_the_same_scores_and_gradients() -> None:
    model = scratch_model(SMALL, len(TOKENIZER), 0)
    policy = LocalPolicy(model, TOKENIZER)
    batch = collate(_rows(1), policy.pad_id)
    wanted = policy.logprobs_and_entropy(batch, 0.7)
    found = _scored_by_calls(model, batch)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(_gradients(model, *found), _gradients(model, *wanted))
    assert model(input_ids=batch.ids).logits.shape[-1] == len(TOKENIZER)


def test_the_look_at_a_model_draws_no_random_numbers() -> None:
    """Cloning that is continued looks again, and its dropout goes on as if it had not."""
    model = scratch_model(SMALL, len(TOKENIZER), 0).train()
    model.get_input_embeddings().register_forward_hook(
        lambda module, _, out: torch.nn.functional.dropout(out, 0.5, module.training)
    )
    before = torch.get_rng_state()
    assert TokenScorer(model).fallback_reason is None
    assert torch.equal(torch.get_rng_state(), before)
    assert all(module.training for module in model.modules())


def test_a_head_with_an_input_of_its_own_is_scored_by_chunks() -> None:
    """As MiniCPM's, whose hidden states are divided before they are projected."""
    model = scratch_model(SMALL, len(TOKENIZER), 0)
    policy, batch = LocalPolicy(model, TOKENIZER), collate(_rows(1), 0)

    def divided(input_ids: Any, use_cache: bool) -> Any:
        hidden = model.get_decoder()(input_ids=input_ids, use_cache=False).last_hidden_state
        return CausalLMOutputWithPast(logits=model.lm_head(hidden / 9))

    model.forward = divided
    assert policy.scorer.fallback_reason is None
    found = policy.logprobs_and_entropy(batch, 0.7)
    torch.testing.assert_close(found, _plain(model, batch, 0.7))
