"""Scores of given continuations are those of one plain forward pass over each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest import mock

import hostile
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from small_policies import passes_of
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from paw_train.policies.local import scoring
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.policy import ScoreRequest

TOKENIZER = hostile.byte_tokenizer()
SIZES: dict[str, Any] = {
    "vocab_size": len(TOKENIZER), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 512,
}  # fmt: skip


def _policy(model: Any) -> LocalPolicy:
    torch.manual_seed(0)
    for name, weight in model.named_parameters():
        if "norm" not in name and "ln_" not in name:
            torch.nn.init.normal_(weight, std=0.3)
    return LocalPolicy(model.eval(), TOKENIZER)


def _plain(policy: LocalPolicy, context: Sequence[int], ids: Sequence[int]) -> list[float]:
    """The reference: the whole model over the whole sequence, without any cache."""
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([[*context, *ids]])).logits[0]
    rows = logits.log_softmax(-1)[len(context) - 1 : -1]
    return [float(row[token]) for row, token in zip(rows, ids, strict=True)]


def _assert_equal(policy: LocalPolicy, requests: Sequence[ScoreRequest], found: Any) -> None:
    for request, scores in zip(requests, found, strict=True):
        assert scores.error is None
        for ids, logprobs in zip(request.continuations, scores.logprobs, strict=True):
            expected = _plain(policy, request.ids, ids)
            assert logprobs == pytest.approx(expected, abs=2e-3)


POLICY = hostile.tiny_policy(sharp=True)
GPT2 = partial(GPT2Config, vocab_size=len(TOKENIZER), n_embd=32, n_layer=2, n_head=4)
CONTINUATIONS = st.lists(
    st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=6
)


@hypothesis_settings(max_examples=20)
@given(
    turns=st.lists(st.lists(CONTINUATIONS, min_size=4, max_size=4), min_size=1, max_size=4),
    budget=st.sampled_from([1, 16, 10**6]),
    growing=st.booleans(),
    data=st.data(),
)
def test_scores_are_those_of_a_plain_forward_pass_in_every_turn(
    turns: list[list[list[list[int]]]], budget: int, growing: bool, data: st.DataObject
) -> None:
    """Tokens are few, so that continuations share beginnings, repeat, and are beginnings themselves."""
    session = POLICY.scoring(growing)
    contexts = {f"e{i}": [7 + i, *range(20, 24 + 3 * i)] for i in range(4)}
    for trees in turns:
        left = [name for name in contexts if data.draw(st.integers(0, 4))] or [next(iter(contexts))]
        contexts = {name: contexts[name] for name in left}
        requests = [
            ScoreRequest(name, ids, continuations)
            for (name, ids), continuations in zip(contexts.items(), trees, strict=False)
        ]
        with mock.patch.object(scoring, "PREFILL_TOKENS", budget):
            _assert_equal(POLICY, requests, session.score(requests))
        for request in requests:
            contexts[request.episode] = [*request.ids, *request.continuations[0], 9, 10]


def test_a_context_may_be_scored_again_or_back_to_its_beginning() -> None:
    session = POLICY.scoring(True)
    ids = {"a": [7, 20, 21, 22], "b": [8, 20]}
    for changed in ({}, {"a": [*ids["a"], 1, 9]}, {"b": [*ids["b"], 2]}, {"a": ids["a"][:2]}):
        ids |= changed
        requests = [ScoreRequest(name, context, [[1, 2], [3]]) for name, context in ids.items()]
        _assert_equal(POLICY, requests, session.score(requests))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    ("model", "config"),
    [
        (MistralForCausalLM, partial(MistralConfig, **SIZES, sliding_window=6)),
        (LlamaForCausalLM, partial(LlamaConfig, **SIZES)),
        (GPT2LMHeadModel, GPT2),
    ],
    ids=["windowed", "whole", "other positions"],
)
def test_other_attention_scores_alike(attention: str, model: Any, config: Any) -> None:
    policy = _policy(model(config(attn_implementation=attention)))
    session = policy.scoring(True)
    requests = [
        ScoreRequest("a", list(range(20, 33)), [[1, 2, 3], [1, 2, 4, 5], [1], [6, 6, 6, 6, 6, 6]]),
        ScoreRequest("b", [40, 41], [[1, 2, 3], [9]]),
    ]
    _assert_equal(policy, requests, session.score(requests))
    longer = [ScoreRequest("b", [40, 41, 9, 50], [[3, 3, 3], [3, 3, 2]])]
    _assert_equal(policy, longer, session.score(longer))


def test_a_cache_of_its_own_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    policy = hostile.tiny_policy(sharp=True)
    policy.model.config.num_kv_shared_layers = 1  # such layers keep no keys and values of their own
    requests = [ScoreRequest("a", [20, 21, 22], [[1, 2], [1, 3], [4]])]
    with caplog.at_level("WARNING"):
        found = policy.scoring(True).score(requests)
    assert "whole context" in caplog.text
    _assert_equal(policy, requests, found)


@pytest.mark.parametrize("growing", [False, True])
def test_shared_beginnings_are_read_once_and_last_tokens_not_at_all(growing: bool) -> None:
    request = ScoreRequest("a", [20, 21], [[1, 2, 3], [1, 2, 4], [1, 2], [5]])
    with passes_of(POLICY.model) as read:
        POLICY.scoring(growing).score([request])
    assert [ids.tolist() for ids in read[-2:]] == [[[20, 21]], [[1, 2]]]


@pytest.mark.parametrize("continuations", [[], [[1], []]])
def test_nothing_to_score_is_refused(continuations: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="at least one token"):
        POLICY.scoring(False).score([ScoreRequest("a", [20, 21], continuations)])
