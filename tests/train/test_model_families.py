"""Batches and the cache give each sequence what a model gives it alone, by family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hostile
import pytest
import torch
import transformers
from rows import token_row
from small_policies import passes_of

from paw_train.policies.local.decoder import BatchDecoder, open_decoder
from paw_train.policies.local.fallback import PlainDecoder
from paw_train.policies.local.policy import LocalPolicy
from paw_train.rollouts.policy import Request, Sampling
from paw_train.rollouts.scoring import collate

TOKENIZER = hostile.byte_tokenizer()
SHAPE = {
    "vocab_size": len(TOKENIZER), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 256,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
JOINING = (
    *("Llama", "Qwen3", "Phi3", "Granite", "Olmo2", "SmolLM3", "Cohere", "Glm"),
    *("GPTNeoX", "Starcoder2", "Phi", "Gemma", "GPT2", "HyperCLOVAX"),
)
"""families whose layers all see the whole context"""
PADDED = ("Mistral", "Qwen2", "Gemma2", "StableLm", "Falcon", "Nemotron")
"""families with sliding windows or attention of their own"""
APART = ("Mamba", "Mamba2", "Qwen3_5", "GPTNeo", "Bloom", "FalconH1")
"""families with recurrent layers, or attention by cache column: decoded without padding"""
OWN: dict[str, dict[str, Any]] = {
    "Mistral": {"sliding_window": 6},
    "Qwen2": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "Starcoder2": {"sliding_window": None},
    "HyperCLOVAX": {"logits_scaling": 0.25},
    "FalconH1": {
        "lm_head_multiplier": 0.25, "mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8,
        "mamba_n_groups": 1, "mamba_d_state": 8,
    },
    "Mamba": {"state_size": 4},
    "Mamba2": {"state_size": 4, "head_dim": 8, "num_heads": 8, "n_groups": 1, "expand": 2},
    "GPTNeo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 8},
    "DeepseekV2": {
        "num_key_value_heads": 4, "q_lora_rank": None, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8, "v_head_dim": 12, "first_k_dense_replace": 2, "n_routed_experts": 4,
    },
    "RecurrentGemma": {"num_hidden_layers": 3, "lru_width": 32},
    "Qwen3_5": {
        "head_dim": 16, "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2, "linear_num_value_heads": 2,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    },
}  # fmt: skip


def _model(family: str, **settings: Any) -> Any:
    own = {"head_dim": 8} if family in ("Qwen3", "Gemma", "Gemma2", "Glm") else OWN.get(family, {})
    text = "TextConfig" if family == "Qwen3_5" else "Config"
    config = getattr(transformers, family + text)(**SHAPE | own | settings)
    torch.manual_seed(0)
    head = "LMHeadModel" if family == "GPT2" else "ForCausalLM"
    model = getattr(transformers, family + head)(config)
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and "norm" not in name:
            torch.nn.init.normal_(weight, std=0.2)
    return model.double().eval()


@pytest.fixture(scope="module", params=[*JOINING, *PADDED, *APART])
def policy(request: pytest.FixtureRequest) -> LocalPolicy:
    with torch.random.fork_rng(devices=[]):
        return LocalPolicy(_model(request.param), TOKENIZER)


def _ids(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 256, (count,), generator=generator).tolist()


def _alone(model: Any, ids: Sequence[int]) -> Any:
    with torch.no_grad():
        return model(input_ids=torch.tensor([list(ids)])).logits[0, -1].float()


def test_scores_and_gradients_of_a_batch_are_those_of_each_row(policy: LocalPolicy) -> None:
    rows = [
        token_row(_ids(size, size), ((2, 4), (5, size)), logprob=0.0).numbered(i)
        for i, size in enumerate((9, 30, 14))
    ]

    def learned(batches: Sequence[Any]) -> tuple[Any, Any]:
        policy.model.zero_grad()
        found: dict[int, Any] = {}
        for batch in batches:
            scores = policy.logprobs(batch)
            scores.sum().backward()
            for own, used, turn in zip(scores, batch.scored, batch.turn, strict=True):
                found[int(turn.max())] = own[used]
        gradient = [p.grad.flatten() for p in policy.model.parameters() if p.grad is not None]
        return torch.cat([found[i] for i in sorted(found)]).detach(), torch.cat(gradient)

    scores, gradient = learned([collate(rows, policy.pad_id)])
    expected, gradients = learned([collate([row], policy.pad_id) for row in rows])
    assert torch.allclose(scores, expected, atol=1e-5)
    assert torch.allclose(gradient, gradients, rtol=1e-4, atol=1e-4)


def test_dialogues_of_unequal_turns_decode_as_alone(policy: LocalPolicy) -> None:
    rows: list[list[int]] = [[], [], []]
    decoder = open_decoder(policy.model, len(rows))
    apart = type(policy.model).__name__.removesuffix("ForCausalLM") in APART
    assert isinstance(decoder, PlainDecoder if apart else BatchDecoder)

    def feed(*sizes: int, seed: int = 0) -> None:
        chunks = {row: _ids(size, seed + size) for row, size in enumerate(sizes) if size}
        for row, chunk in chunks.items():
            rows[row] = rows[row] + chunk
        expected = torch.stack([_alone(policy.model, rows[row]) for row in chunks])
        assert torch.allclose(decoder.feed(chunks), expected, atol=1e-4)

    feed(7, 21, 12)
    feed(11, 1, 4, seed=90)
    feed(11, 1, 4, seed=91)
    feed(1, 0, 1)
    decoder.keep([2, 0, 2])
    rows = [rows[2], rows[0], rows[2]]
    feed(3, 2, 3, seed=7)


def test_a_dialogue_that_goes_back_is_answered_as_anew(policy: LocalPolicy) -> None:
    sampling = Sampling(temperature=0.0, max_tokens=4, stop=())
    session = policy.session(sampling, True)
    contexts = {name: _ids(size, 50 + size) for name, size in (("a", 7), ("b", 21), ("c", 12))}
    shortened = {
        1: {"b": lambda ids: ids[:5] + ids[11:]},  # forgets what came after its beginning
        2: {"a": lambda ids: ids[:3], "c": lambda ids: _ids(6, 3)},  # goes back; begins anew
        3: {"c": lambda ids: ids[:1] + ids[4:]},
        4: {},
    }
    for turn in range(5):
        for name, change in shortened.get(turn, {}).items():
            contexts[name] = change(contexts[name])
        if turn == 3:
            del contexts["b"]
        asked = [Request(name, 1, [], ids) for name, ids in contexts.items()]
        kept, anew = session.respond(asked), policy.session(sampling, False).respond(asked)
        assert [r.ids for r in kept] == [r.ids for r in anew], turn
        for one, other in zip(kept, anew, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4), turn
        for (name, ids), response in zip(contexts.items(), kept, strict=True):
            contexts[name] = [*ids, *response.ids, *_ids(3 + len(name) + turn, turn)]


def test_what_a_dialogue_still_has_in_common_is_not_read_again(monkeypatch: Any) -> None:
    monkeypatch.setattr("paw_train.policies.local.decoder._FEW_TOKENS", 0)
    monkeypatch.setattr("paw_train.policies.local.decoder._PADDING_SHARE", 0)
    local = LocalPolicy(_model("Llama"), TOKENIZER)
    sampling = Sampling(temperature=0.0, max_tokens=1, stop=())
    session = local.session(sampling, True)  # each by itself, without padding
    long, other = _ids(40, 1), _ids(30, 2)

    def asked(**contexts: list[int]) -> int:
        with passes_of(local.model) as read:
            session.respond([Request(name, 1, [], ids) for name, ids in contexts.items()])
        return sum(ids.numel() for ids in read)

    asked(a=long, b=other)  # and what finds out about the model
    assert asked(a=long[:20] + long[27:], b=[*other, 5]) == 13 + 1
    assert asked(a=_ids(25, 3)) == 25, "it begins anew, and the other keeps what it has"
    assert asked(a=[*_ids(25, 3), 7], b=[*other, 5, 6, 7]) == 1 + 2
    with pytest.raises(ValueError, match="has no tokens"):
        asked(a=[])


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Mistral", "GPT2", "DeepseekV2"])
def test_attention_by_two_products_suits_every_kind(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16; a family with latent attention has values narrower than its keys."""
    from paw_train.policies.local import attention

    monkeypatch.setattr(attention, "_MANY_KEYS", 0)
    asked: list[int] = []
    products = attention._two_products

    def counted(*given: Any) -> Any:
        asked.append(given[0].shape[2])
        return products(*given)

    monkeypatch.setattr(attention, "_two_products", counted)
    model = LocalPolicy(_model(family).bfloat16(), TOKENIZER).model
    rows = [_ids(20, 1), _ids(9, 2), _ids(14, 3)]
    decoder = open_decoder(model, 3)
    decoder.feed(dict(enumerate(rows)))
    asked.clear()
    logits = decoder.feed({0: [5], 1: [6], 2: [7]})
    assert asked, "or this shows nothing"
    expected = torch.stack([_alone(model, [*row, 5 + i]) for i, row in enumerate(rows)])
    assert torch.nn.functional.cosine_similarity(logits, expected).min() > 0.999


def test_padding_stays_within_the_positions_of_a_model() -> None:
    """A long sequence gets little and a short one much, near the last position there is."""
    model = _model("GPT2", n_positions=64, attn_implementation="eager")
    rows = {0: _ids(50, 1), 1: _ids(10, 2)}
    decoder = open_decoder(model, 2)
    decoder.feed(rows)
    chunks = {0: _ids(14, 3), 1: _ids(30, 4)}
    logits = decoder.feed(chunks)
    rows = {row: rows[row] + chunk for row, chunk in chunks.items()}
    expected = torch.stack([_alone(model, row) for row in rows.values()])
    assert torch.allclose(logits, expected, atol=1e-4)
    logits = decoder.feed({1: [7]})  # the other is at the last position
    assert torch.allclose(logits[0], _alone(model, [*rows[1], 7]), atol=1e-4)


def test_a_model_that_takes_no_cache_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model("Mamba")
    monkeypatch.setattr(model.get_decoder(), "forward", lambda input_ids: input_ids)
    with pytest.raises(ValueError, match="takes its cache under none of"):
        open_decoder(model, 1)


def test_a_model_that_keeps_its_state_in_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="does not go on from its cache"):
        open_decoder(_model("RecurrentGemma"), 2)
