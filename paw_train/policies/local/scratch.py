"""A small language model for the language of its environments, trained from scratch: tokenizer and network.

Tokens are words with their leading space, numbers and punctuation marks. A name and its number are two
tokens ("cabinet", "3"), so that an unseen pairing is nothing new. If held-out tasks bring words of their
own (names), pieces of words are used instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from paw_train.settings.model import ScratchModelSettings

_WORDS = r" ?[A-Za-z_]+| ?[0-9]+|\n| ?[^\sA-Za-z_0-9]"
_COUNTED = 40
"""every number up to this, so those between and beyond the ones seen are in the vocabulary too"""
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<user>' if m.role == 'user' else '<agent>' }}{{ m.content }}"
    "{% if m.role != 'user' %}<end>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<agent>{% endif %}"
)
_SPECIAL = ("<pad>", "<unk>", "<user>", "<agent>", "<end>")
_POSITIONS = 4096
"""longest context that a model is made for"""
_ROPE = {"llama": 1e4, "token_shift": 1e6}
"""base of the rotary embeddings: a larger one leaves more of a head to content, and less to position"""
_TAGS = ("<action>", "</action>")
"""one token each"""


def scratch_tokenizer(settings: ScratchModelSettings, texts: Iterable[str]) -> Any:
    """The tokenizer that ``settings`` name, made for the language of ``texts``."""
    if settings.tokenizer == "pieces":
        return piece_tokenizer(texts, settings.pieces)
    return word_tokenizer(texts, settings.spell_unknown)


def word_tokenizer(texts: Iterable[str], spells: bool = False) -> Any:
    """A word-level tokenizer of every word of ``texts`` (and every digit string to 40), for dialogues.

    An unknown word becomes ``<unk>``, or with ``spells`` is spelled, byte by byte, with 256 more tokens.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    splitter = pre_tokenizers.Split(Regex(_WORDS), "isolated")
    words = {f"{space}{number}" for number in range(_COUNTED + 1) for space in ("", " ")}
    for text in texts:
        words.update(piece for piece, _ in splitter.pre_tokenize_str(text))
    vocabulary = {word: i for i, word in enumerate([*_SPECIAL, *sorted(words)])}
    if spells:
        byte_level = _byte_level()
        written = {byte_level.pre_tokenize_str(word)[0][0]: i for word, i in vocabulary.items()}
        for byte in sorted(pre_tokenizers.ByteLevel.alphabet()):
            written.setdefault(byte, len(written))
        core = Tokenizer(models.BPE(written, [], ignore_merges=True))
        core.pre_tokenizer = pre_tokenizers.Sequence([splitter, byte_level])
        core.decoder = decoders.ByteLevel()
    else:
        core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
        core.pre_tokenizer = splitter
        core.decoder = decoders.Fuse()
    return _for_dialogues(core, spells=spells)


def spells(tokenizer: Any) -> bool:
    """True if a tokenizer is one of words that spells the unknown ones."""
    return bool(tokenizer.init_kwargs.get("spells"))


def piece_tokenizer(texts: Iterable[str], size: int) -> Any:
    """A byte-level BPE tokenizer (Sennrich et al., 2016) that joins pieces within words only.

    The frequent words of ``texts`` become one of its ``size`` (at least 512) tokens each.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_WORDS), "isolated"), _byte_level()]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        show_progress=False,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    core.train_from_iterator(texts, trainer)
    return _for_dialogues(core)


def _byte_level() -> Any:
    from tokenizers import pre_tokenizers

    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def _for_dialogues(core: Any, **kept: Any) -> Any:
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    core.add_special_tokens([AddedToken(name, special=True) for name in _SPECIAL])
    core.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in _TAGS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<end>",
        clean_up_tokenization_spaces=False,
        **kept,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def made_from_scratch(folder: Path) -> bool:
    """True if a folder holds a model that was trained from scratch, by its chat template."""
    template = folder / "chat_template.jinja"
    return template.is_file() and template.read_text(encoding="utf-8") == CHAT_TEMPLATE


def scratch_model(settings: ScratchModelSettings, vocabulary: int, seed: int) -> Any:
    """A randomly initialised causal language model; the same seed gives the same weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from paw_train.policies.local.token_shift import TokenShiftConfig, TokenShiftForCausalLM

    shared: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": settings.hidden,
        "num_attention_heads": settings.heads,
        "num_key_value_heads": settings.kv_heads,
        "intermediate_size": settings.intermediate,
        "max_position_embeddings": _POSITIONS,
        "rope_parameters": {"rope_type": "default", "rope_theta": _ROPE[settings.architecture]},
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": 4,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if settings.architecture == "llama":
            return LlamaForCausalLM(LlamaConfig(num_hidden_layers=settings.layers, **shared))
        kinds = ["conv", "full_attention"] * settings.layers
        shared |= {"num_hidden_layers": len(kinds), "layer_types": kinds}
        return TokenShiftForCausalLM(TokenShiftConfig(block_auto_adjust_ff_dim=False, **shared))
