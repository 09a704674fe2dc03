"""The models and prompts that ``training.py`` trains on: random weights, made-up words.

Weights are random, which costs the same as trained ones. Words are made up; every word is a token.
"""

from __future__ import annotations

import itertools
import random
import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.utils import logging

from paw_train.policies.local.scratch import scratch_model, word_tokenizer
from paw_train.settings.scratch import ScratchModelSettings


@dataclass(frozen=True)
class Shape:
    """A model and a batch."""

    model: ScratchModelSettings
    vocabulary: int
    groups: int
    group_size: int
    prompt_tokens: int
    completion_tokens: int
    micro_rows: int
    steps: int
    """measured ones in each process"""
    note: str


SHAPES = {
    "embedded": Shape(
        ScratchModelSettings(), 261, 16, 8, 128, 64, 64, 4, "the model of the recipe `embedded`"
    ),
    "long": Shape(
        ScratchModelSettings(), 261, 4, 8, 128, 384, 16, 2, "the same model, long answers"
    ),
    "smollm2": Shape(
        ScratchModelSettings(
            hidden=576, layers=30, heads=9, kv_heads=3, intermediate=1536, max_positions=8192
        ),
        49152, 2, 4, 96, 32, 8, 1, "the shape of SmolLM2-135M",
    ),
}  # fmt: skip


def write_model(shape: Shape, folder: Path) -> list[str]:
    """Writes model and tokenizer; returns words that are one token each."""
    control = 5 + 2 * 41
    """special tokens, and the numbers that every word tokenizer knows"""
    words = list(itertools.islice(_made_up(), shape.vocabulary - control))
    tokenizer = word_tokenizer(["".join(f" {word}" for word in words)], tags=())
    if len(tokenizer) != shape.vocabulary:
        raise RuntimeError(f"expected {shape.vocabulary} tokens, made {len(tokenizer)}")
    model = scratch_model(shape.model, shape.vocabulary, seed=0)
    logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return words


def _made_up() -> Any:
    for letters in itertools.product(string.ascii_lowercase, repeat=4):
        yield "".join(letters)


def write_prompts(words: list[str], count: int, tokens: int, seed: int) -> list[str]:
    """Different user messages that are ``tokens`` long with the two tokens that the chat adds."""
    rng = random.Random(seed)
    return [" ".join(["7", *rng.choices(words, k=tokens - 3)]) for _ in range(count)]
