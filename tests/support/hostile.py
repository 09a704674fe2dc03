"""A byte-level tokenizer that does what real ones do at their worst, and models that follow a script."""

from __future__ import annotations

from typing import Any

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MERGES = ("> ", "ok", "</", "n>", "io", "ct", ">\n", "è", "act", ">é")
"""tokens across the boundary of tags, and one that holds a whole two-byte character"""


def byte_tokenizer() -> Any:
    """256 bytes, some merges, ChatML control tokens; no pre-tokenizer but the byte level."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {char: i for i, char in enumerate(alphabet)}
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    merges: list[tuple[str, str]] = []
    for text in MERGES:
        symbols = list(level.pre_tokenize_str(text)[0][0])
        while len(symbols) > 1:
            pair = (symbols[0], symbols[1])
            if pair not in merges:
                merges.append(pair)
            vocabulary.setdefault("".join(pair), len(vocabulary))
            symbols = ["".join(pair), *symbols[2:]]
    core = Tokenizer(models.BPE(vocabulary, merges))
    core.pre_tokenizer, core.decoder = level, decoders.ByteLevel()
    controls = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    core.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in controls])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def tiny_policy(max_positions: int = 4096, dtype: str = "float32", sharp: bool = False) -> Any:
    """Two small blocks with that tokenizer; ``sharp``: with weights too large for ties."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from paw_train.policies.local.policy import LocalPolicy

    tokenizer = byte_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=48, max_position_embeddings=max_positions,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    for name, weight in model.named_parameters():
        if sharp and "norm" not in name:
            torch.nn.init.normal_(weight, std=0.3)
    return LocalPolicy(model.to(getattr(torch, dtype)), tokenizer)
