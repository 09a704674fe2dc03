"""Batched decoding computes what each row computes alone, and responses end where they should."""

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
from transformers import Lfm2Config, Lfm2ForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from paw_train.policies.local import attention, decoder
from paw_train.policies.local import sampling as sampling_module
from paw_train.policies.local.decoder import BatchDecoder
from paw_train.policies.local.policy import LocalPolicy
from paw_train.policies.local.sampling import filter_logits, sample_tokens, uniforms
from paw_train.policies.local.scratch import scratch_model
from paw_train.policies.local.session import LocalSession, respond
from paw_train.rollouts.chat import ChatFormat, StopStrings
from paw_train.rollouts.policy import Request, Sampling
from paw_train.settings.model import ScratchModelSettings

TOKENIZER = hostile.byte_tokenizer()
CHAT = ChatFormat(TOKENIZER)
VOCABULARY = len(TOKENIZER)


def _convolved() -> Any:
    config = Lfm2Config(
        layer_types=["full_attention", "conv", "full_attention"], block_auto_adjust_ff_dim=False,
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=48, max_position_embeddings=512,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Lfm2ForCausalLM(config)
    for name, weight in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(weight, std=0.3)  # sharp enough that ties do not decide
    return LocalPolicy(model, TOKENIZER).model


MODEL, CONVOLVED = hostile.tiny_policy(sharp=True).model, _convolved()
SHIFT = ScratchModelSettings(architecture="token_shift", hidden=32, layers=2, heads=4, kv_heads=2)
SHIFTED = LocalPolicy(scratch_model(SHIFT, VOCABULARY, seed=0), TOKENIZER).model


def _alone(ids: Sequence[int], model: Any = MODEL) -> Any:
    with torch.no_grad():
        return model(input_ids=torch.tensor([list(ids)])).logits[0, -1]


def _contexts(count: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(3, 40, (count,), generator=generator).tolist()
    return [torch.randint(0, 256, (n,), generator=generator).tolist() for n in sizes]


# --- the decoder -------------------------------------------------------------------------------------


@hypothesis_settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    plan=st.lists(
        st.sampled_from(["feed", "step", "keep", "rewind", "restart"]), min_size=1, max_size=8
    ),
    budget=st.sampled_from([1, 20, 64, 10**6]),
    repeat=st.booleans(),
    model=st.sampled_from([MODEL, CONVOLVED, SHIFTED]),
)
def test_whatever_rests_leaves_or_is_shared_each_row_computes_what_it_would_alone(
    seed: int, plan: list[str], budget: int, repeat: bool, model: Any
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    rows = _contexts(number(1, 7), seed)
    if repeat:
        rows = [list(row) for row in [*rows, *rows[::-1], rows[0]]]
    decoder = BatchDecoder(model, len(rows), prefill_tokens=budget)

    def feed(chunks: dict[int, list[int]]) -> None:
        for row, chunk in chunks.items():
            rows[row] = rows[row] + chunk
        expected = torch.stack([_alone(rows[row], model) for row in chunks])
        assert torch.allclose(decoder.feed(chunks), expected, atol=2e-3)

    news, rows = dict(enumerate(rows)), [[] for _ in rows]
    feed(news)
    for action in plan:
        some = [b for b in range(len(rows)) if number(0, 3)] or [0]
        some = [some[i] for i in torch.randperm(len(some), generator=generator).tolist()]
        if action == "keep":
            decoder.keep(some)
            rows = [rows[b] for b in some]
        elif action == "rewind":
            lengths = {b: number(1, len(rows[b]) + 1) for b in some}
            assert decoder.rewind(lengths) == lengths
            rows = [row[: lengths.get(b, len(row))] for b, row in enumerate(rows)]
        elif action == "restart":
            decoder.rewind(dict.fromkeys(some, 0))
            rows = [[] if b in some else row for b, row in enumerate(rows)]
            feed({b: [7, 8, number(8, 10)] for b in some})
        elif action == "feed":
            feed({b: [number(0, 256) for _ in range(number(1, 9))] for b in some})
        else:
            feed({b: [number(0, 256)] for b in some})


def test_equal_contexts_are_computed_once_and_memory_is_bounded() -> None:
    contexts = _contexts(5)
    with passes_of(MODEL) as passes:
        decoder = BatchDecoder(MODEL, 40, prefill_tokens=80)
        decoder.feed(dict(enumerate(context for context in contexts for _ in range(8))))
    assert sum(map(len, passes)) == len(contexts)
    assert all(ids.numel() <= 80 for ids in passes)


def test_what_a_turn_adds_is_read_with_little_padding_and_rows_stay_where_they_are() -> None:
    decoder = BatchDecoder(MODEL, 40)
    decoder.feed(dict(enumerate(_contexts(40))))
    buffers = [buffer.data_ptr() for buffer in decoder.cache.layers[0].buffers]
    with passes_of(MODEL) as read:
        decoder.feed({row: [7] * (1 + 11 * row % 50) for row in range(40)})
    tokens = sum(1 + 11 * row % 50 for row in range(40))
    assert len(read) < 6 and sum(ids.numel() for ids in read) < 1.2 * tokens + 128
    for _ in range(20):
        decoder.feed({row: [7] for row in range(0, 40, 3)})
    assert [buffer.data_ptr() for buffer in decoder.cache.layers[0].buffers] == buffers


@pytest.mark.parametrize("heads", [2, 6])
@pytest.mark.parametrize("new", [1, 3, 40, 64])
def test_attention_in_bfloat16_is_of_the_stock_one_s_precision(heads: int, new: int) -> None:
    """Rows of unequal lengths in a cache with room to spare, in which old numbers stand; against float64."""
    torch.manual_seed(new)
    module = torch.nn.Module()
    module.num_key_value_groups, module.is_causal = heads // 2, True
    query = torch.randn(4, heads, new, 64)
    # the first four rows of five, and 700 columns of 800
    key, value = (torch.randn(5, 2, 800, 64)[:4, :, :700] for _ in range(2))
    last = torch.tensor([700 - new, 500, 31, 0])[:, None] + torch.arange(new)
    mask = (torch.arange(700) <= last[..., None])[:, None]

    def attended(attend: Any, dtype: Any) -> Any:
        whole = [x.as_strided((5, 2, 800, 64), x.stride()) for x in (key, value)]
        cached = [x.bfloat16().to(dtype)[:4, :, :700] for x in whole]
        inputs = [query.bfloat16().to(dtype), *cached]
        return attend(module, *inputs, mask, scaling=0.125)[0].double()

    exact = attended(sdpa_attention_forward, torch.float64)
    ours, stock = (
        attended(f, torch.bfloat16) for f in (attention.grouped_attention, sdpa_attention_forward)
    )
    assert ours.shape == exact.shape
    for row in range(4):
        error, usual = ((x - exact)[row].abs().mean() for x in (ours, stock))
        assert error <= 3 * usual


@pytest.mark.parametrize("masked", [False, True])
def test_keys_that_are_repeated_give_what_the_stock_attention_gives(masked: bool) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 6, 9, 8), *(torch.randn(2, 2, 9, 8) for _ in range(2))
    mask = (torch.rand(2, 1, 9, 9) < 0.5) | torch.eye(9, dtype=torch.bool) if masked else None
    module = torch.nn.Module()
    module.num_key_value_groups, module.is_causal = 3, True
    found, stock = (
        attend(module, query, key, value, mask, scaling=0.3)[0]
        for attend in (attention.repeated_attention, sdpa_attention_forward)
    )
    assert torch.allclose(found, stock, atol=1e-6)


def test_large_scores_are_not_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in models whose keys have a large bias: every score has the same offset of some hundreds."""
    torch.manual_seed(0)
    key, value = torch.randn(2, 2, 2, 300, 64).bfloat16()
    key[..., 0], query = 100.0, torch.randn(2, 2, 3, 64).bfloat16()
    query[..., 0] = 30.0
    args = (query, key, value, torch.ones(2, 1, 1, 300, dtype=torch.bool), 0.125)
    exact = attention._fused(*(x.double() for x in args[:3]), *args[3:])
    error = (attention._two_products(*args) - exact).abs().max()
    monkeypatch.setattr(attention, "_LARGEST_SCORE", 1e9)
    assert error < 0.02 < (attention._two_products(*args) - exact).abs().max()


def test_ended_rows_are_no_longer_computed() -> None:
    sampling = Sampling(1.0, 60, stop=("a", "e", "i", "o", "u", "<", "0", "\n", " "))
    contexts = dict(enumerate(_contexts(16)))
    with passes_of(MODEL) as passes:
        responses = respond(BatchDecoder(MODEL, 16), contexts, CHAT, sampling, range(16))
    lengths = [len(r.ids) for r in responses]
    assert len(set(lengths)) > 4  # they end apart
    needed = sum(n - 1 for n in lengths)
    computed = sum(map(len, passes[1:]))
    assert needed <= computed <= needed / (1 - 1 / 8) + len(passes)


# --- sampling ----------------------------------------------------------------------------------------


def _played(
    rows: list[int], sampling: Sampling, growing: bool, model: Any = MODEL
) -> dict[int, list[tuple[list[int], list[float]]]]:
    """Three turns of some of nine dialogues, of which every fourth leaves after the first."""
    contexts = _contexts(9, seed=4)
    session = LocalSession(model, CHAT, sampling, growing)
    said: dict[int, list[tuple[list[int], list[float]]]] = {i: [] for i in rows}
    ids = {i: list(contexts[i]) for i in rows}
    for turn in range(3):
        rows = [i for i in rows if turn == 0 or i % 4]
        requests = [Request(f"episode {i}", 1000 * turn + i, [], ids[i]) for i in rows]
        for i, response in zip(rows, session.respond(requests), strict=True):
            said[i].append((response.ids, response.logprobs))
            ids[i] = ids[i] + response.ids + contexts[(i + 1) % 9][:5]
    return said


@pytest.mark.parametrize("growing", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_response_does_not_depend_on_its_neighbours(growing: bool, temperature: float) -> None:
    sampling = Sampling(temperature, 24, stop=("a", ">"))
    together = _played(list(range(9)), sampling, growing)
    for part in ([8, 2], [3], [0, 1, 4, 5, 6, 7]):
        for row, turns in _played(part, sampling, growing).items():
            assert [ids for ids, _ in turns] == [ids for ids, _ in together[row]]


@pytest.mark.parametrize("model", [MODEL, CONVOLVED], ids=["attention", "convolution"])
@pytest.mark.parametrize("growing", [False, True])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(0.8, 24, stop=("a", ">")),
        Sampling(0.0, 24, stop=("a", ">")),
        Sampling(1.0, 7, top_k=20),  # ends between two looks at the tokens
        Sampling(1.0, 1),
    ],
    ids=["stops", "greedy", "truncated", "one token"],
)
def test_sampling_over_fixed_buffers_gives_the_tokens_of_the_plain_steps(
    model: Any, growing: bool, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The form that a GPU runs, here without a graph: small buckets, so that their number grows."""
    expected = _played(list(range(9)), sampling, growing, model)
    fixed = partial(BatchDecoder, fixed=True)
    monkeypatch.setattr("paw_train.policies.local.session.open_decoder", fixed)
    monkeypatch.setattr(decoder, "BUCKET", 16)
    monkeypatch.setattr(sampling_module, "BUCKET", 16)
    monkeypatch.setattr(decoder, "_FEWEST_LOOPED", 2)
    for _ in range(2):  # the second rollout has the buffers of the first
        found = _played(list(range(9)), sampling, growing, model)
        for row, turns in expected.items():
            assert [ids for ids, _ in found[row]] == [ids for ids, _ in turns]
            for (_, logprobs), (_, wanted) in zip(found[row], turns, strict=True):
                assert logprobs == pytest.approx(wanted, abs=1e-4)
    assert len(decoder._fixed) == 1
    decoder._fixed.clear()


def test_logprobs_are_those_of_the_distribution_that_was_sampled() -> None:
    for sampling in (Sampling(0.7, 8), Sampling(1.0, 8, top_k=5), Sampling(1.3, 8, top_p=0.6),
                     Sampling(0.0, 8, top_p=0.5)):  # fmt: skip
        contexts = _contexts(4, seed=1)
        decoder = BatchDecoder(MODEL, 4)
        responses = respond(decoder, dict(enumerate(contexts)), CHAT, sampling, range(4))
        for context, response in zip(contexts, responses, strict=True):
            for t, (token, logprob) in enumerate(zip(response.ids, response.logprobs, strict=True)):
                logits = _alone([*context, *response.ids[:t]])[None] / (sampling.temperature or 1)
                if sampling.truncated:
                    logits = filter_logits(logits, sampling)
                expected = torch.log_softmax(logits, -1)[0, token]
                assert abs(float(expected) - logprob) < 2e-3


def test_draw_follows_the_distribution() -> None:
    shares = torch.tensor([0.5, 0.3, 0.2, 0.0])
    logits = torch.log(shares).repeat(20000, 1)
    numbers = uniforms([0], 20000)[0]
    ids, logprobs = sample_tokens(logits, Sampling(), numbers)
    found = torch.bincount(ids, minlength=4) / len(ids)
    assert torch.allclose(found, shares, atol=0.02)
    assert found[3] == 0
    assert torch.allclose(logprobs, logits[0][ids], atol=1e-6)
    # tempered by 1/2: squares, renormalised
    ids, _ = sample_tokens(logits, Sampling(0.5), numbers)
    squares = shares.square() / shares.square().sum()
    assert torch.allclose(torch.bincount(ids, minlength=4) / len(ids), squares, atol=0.02)
    greedy, _ = sample_tokens(logits[:2], Sampling(0.0), numbers[:2])
    assert greedy.tolist() == [0, 0]


def test_the_ends_of_the_unit_interval_draw_no_impossible_token() -> None:
    logits = torch.full((2, 5), -torch.inf)
    logits[:, 1:4] = 0.0
    ends = torch.tensor([0.0, 1.0 - 2.0**-53], dtype=torch.float64)
    assert sample_tokens(logits, Sampling(), ends)[0].tolist() == [1, 3]


@given(
    weights=st.lists(st.floats(0.01, 10), min_size=2, max_size=12),
    top_k=st.integers(0, 12),
    top_p=st.floats(0.05, 1.0),
)
def test_truncation_is_as_defined(weights: list[float], top_k: int, top_p: float) -> None:
    probs = torch.tensor(weights, dtype=torch.float64)
    probs = probs / probs.sum()
    left = filter_logits(probs.log()[None], Sampling(1.0, 8, (), top_p, top_k))[0].isfinite()
    ranked = sorted(range(len(weights)), key=lambda i: -weights[i])
    pool = ranked[: top_k or len(ranked)]
    mass, kept, whole = 0.0, set(), float(sum(probs[i] for i in pool))
    for i in pool:
        if top_p == 1 or mass < top_p - 1e-9:
            kept.add(i)
        mass += float(probs[i]) / whole
    certain = {i for i in range(len(weights)) if left[i]}
    assert int(probs.argmax()) in certain or len(set(weights)) < len(weights)
    assert kept <= certain | {ranked[0]}  # what lies on an edge may go either way
    assert len(certain) <= len(kept) + 1


@pytest.mark.parametrize(
    "setting", [{"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -1},
                {"temperature": -1.0}, {"max_tokens": 0}],
)  # fmt: skip
def test_senseless_sampling_is_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))):
        Sampling(**setting)
    with pytest.raises(ValueError, match="empty"):
        StopStrings(CHAT, ["</action>", ""])


# --- where a response ends ---------------------------------------------------------------------------

PIECES = st.sampled_from(["</action>", "</act", "ion>", ">é", "> ", "é", "ok", "<", "💡", "a", "\n",
                          "</action>\n", "<|im_end|>", "n>", "naïve", "</actionn>"])  # fmt: skip


def _first_end(ids: list[int], stops: Sequence[str]) -> int:
    """By brute force: tokens up to the first prefix whose text holds a stop text."""
    for n in range(1, len(ids) + 1):
        text = TOKENIZER.decode(ids[:n], skip_special_tokens=False)
        if ids[n - 1] in CHAT.end_ids or any(stop in text for stop in stops):
            return n
    return len(ids)


@hypothesis_settings(max_examples=300)
@given(
    pieces=st.lists(PIECES, max_size=12),
    stops=st.lists(
        st.sampled_from(["</action>", "é", "💡", "ok>", " ", "<|im_end|>", "n>\n"]), max_size=2
    ),
    chunked=st.booleans(),
)
def test_a_response_ends_with_its_stop_text(
    pieces: list[str], stops: list[str], chunked: bool
) -> None:
    # the tokenizer may merge across pieces, or not
    texts = ["".join(pieces)] if chunked else pieces
    ids = [token for text in texts for token in CHAT.content(text)]
    finder = StopStrings(CHAT, stops)
    end = next((n for n in range(1, len(ids) + 1) if finder.ends(ids[:n])), len(ids))
    assert end == _first_end(ids, stops)
    whole = CHAT.decode(ids[:end])
    text = finder.truncate(whole)
    assert whole.startswith(text)
    if any(stop in whole for stop in stops):
        assert any(text.endswith(stop) and text.count(stop) == 1 for stop in stops)


def test_ids_stay_as_sampled_and_the_text_ends_with_the_stop() -> None:
    script = CHAT.content("<action>look</action") + CHAT.content(">é")
    scores = torch.nn.functional.one_hot(torch.tensor(script), VOCABULARY)[:, None] * 50.0
    says = mock.Mock(feed=mock.Mock(side_effect=scores))  # whatever it is asked
    (response,) = respond(says, {0: [1]}, CHAT, Sampling(0.0, 99), [0])
    assert response.ids == script
    assert response.text == "<action>look</action>"


# --- messages ----------------------------------------------------------------------------------------


def test_messages_become_the_ids_that_the_template_gives() -> None:
    roles, texts = ("user", "assistant", "user"), ("one é", "two", "three")
    messages = [{"role": r, "content": text} for r, text in zip(roles, texts, strict=True)]
    text = TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert CHAT.raw(CHAT.dialogue(messages)) == text
    with_system = [{"role": "system", "content": "rules"}, *messages]
    assert "rules\n\none é" in CHAT.raw(CHAT.dialogue(with_system))
    with pytest.raises(ValueError, match="in turn"):
        CHAT.dialogue(messages[:2])
