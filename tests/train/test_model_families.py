"""Joined rows and the cache without holes give each sequence what a model gives it alone, by family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import hostile  # noqa: E402

from paw_train.policies.local.decoder import BatchDecoder, open_decoder  # noqa: E402
from paw_train.policies.local.policy import LocalPolicy  # noqa: E402
from paw_train.rollouts.tokens import StepSpans, TokenRow, collate  # noqa: E402

TOKENIZER = hostile.byte_tokenizer()
SHAPE = {
    "vocab_size": len(TOKENIZER), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 256,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
JOINING = (
    *("Llama", "Qwen2", "Qwen3", "Mistral", "Phi3", "Granite", "Olmo2", "SmolLM3", "Cohere", "Glm"),
    *("GPTNeoX", "Starcoder2", "Phi", "Gemma", "GPT2"),
)
"""families whose attention takes joined rows"""
OTHERS = ("Gemma2", "StableLm", "Falcon", "Mamba")
"""families with sliding windows, attention of their own, or other layers; they are padded"""


def _model(family: str) -> Any:
    config_class = getattr(transformers, f"{family}Config")
    own: dict[str, Any] = {"head_dim": 8} if family in ("Qwen3", "Gemma", "Gemma2", "Glm") else {}
    if family in ("Mistral", "Starcoder2"):
        own["sliding_window"] = None
    if family == "Mamba":
        config = config_class(
            vocab_size=SHAPE["vocab_size"], hidden_size=32, num_hidden_layers=2, state_size=4
        )
    else:
        config = config_class(**SHAPE, **own)
    torch.manual_seed(0)
    head = "LMHeadModel" if family == "GPT2" else "ForCausalLM"
    model = getattr(transformers, family + head)(config)
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and "norm" not in name:
            torch.nn.init.normal_(weight, std=0.2)
    return model.double().eval()


@pytest.fixture(scope="module", params=[*JOINING, *OTHERS])
def policy(request: pytest.FixtureRequest) -> tuple[str, LocalPolicy]:
    with torch.random.fork_rng(devices=[]):
        return request.param, LocalPolicy(_model(request.param), TOKENIZER)


def _ids(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 256, (count,), generator=generator).tolist()


def _alone(model: Any, ids: Sequence[int]) -> Any:
    with torch.no_grad():
        return model(input_ids=torch.tensor([list(ids)])).logits[0, -1].float()


def test_it_joins_where_it_should(policy: tuple[str, LocalPolicy]) -> None:
    family, local = policy
    assert local.can_join == (family in JOINING)


def test_scores_and_gradients_of_a_batch_are_those_of_each_row(
    policy: tuple[str, LocalPolicy],
) -> None:
    _, local = policy
    rows = [
        TokenRow(_ids(size, size), [StepSpans((2, 4), (5, size), [0.0, 0.0], index=i)])
        for i, size in enumerate((9, 30, 14))
    ]

    def learned(batches: Sequence[Any]) -> tuple[Any, Any]:
        local.model.zero_grad()
        found: dict[int, Any] = {}
        for batch in batches:
            scores = local.logprobs(batch)
            scores.sum().backward()
            found |= {int(i): scores[s][batch.used()[s]] for s, i in enumerate(batch.index)}
        gradient = [p.grad.flatten() for p in local.model.parameters() if p.grad is not None]
        return torch.cat([found[i] for i in sorted(found)]).detach(), torch.cat(gradient)

    scores, gradient = learned([collate(rows, local.pad_id, local.can_join)])
    expected, gradients = learned([collate([row], local.pad_id) for row in rows])
    assert torch.allclose(scores, expected, atol=1e-5)
    assert torch.allclose(gradient, gradients, rtol=1e-4, atol=1e-4)


def test_dialogues_of_unequal_turns_decode_as_alone(policy: tuple[str, LocalPolicy]) -> None:
    family, local = policy
    rows = [_ids(size, 50 + size) for size in (7, 21, 12)]
    decoder = open_decoder(local.model, len(rows))
    assert isinstance(decoder, BatchDecoder) == (family != "Mamba")
    logits = decoder.feed(rows)
    if family == "Mamba":  # its state knows no padding, so turns must be equally long
        return
    for seed in range(2):
        chunks = [_ids(size, seed + 90 + size) for size in (11, 1, 4)]
        rows = [row + chunk for row, chunk in zip(rows, chunks, strict=True)]
        logits = decoder.feed(chunks)
        assert torch.allclose(
            logits, torch.stack([_alone(local.model, row) for row in rows]), atol=1e-4
        )
    order, logits = decoder.advance({0: 7, 2: 9})
    rows = [[*rows[0], 7], rows[1], [*rows[2], 9]]
    assert torch.allclose(
        logits, torch.stack([_alone(local.model, rows[b]) for b in order]), atol=1e-4
    )
