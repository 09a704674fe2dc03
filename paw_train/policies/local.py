"""A policy that runs in this process: any Hugging Face causal language model with a chat template."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paw_train.attention import use_grouped_attention
from paw_train.chat import ChatFormat
from paw_train.logprobs import token_logprobs
from paw_train.policies.decoding import BatchDecoder, Response, Sampling, respond
from paw_train.tokens import TokenBatch


class LocalPolicy:
    """A model, its tokenizer, and the two things that are done with them: answering and scoring.

    Args:
        model: a Hugging Face causal language model.
        tokenizer: its tokenizer, with a chat template.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.chat = ChatFormat(tokenizer)
        self.device = next(model.parameters()).device
        use_grouped_attention(model)

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu", dtype: str = "float32") -> LocalPolicy:
        """Loads a model from a folder or from a hub.

        Raises:
            ValueError: there is no such model, or its tokenizer has no chat template.
        """
        from transformers import AutoModelForCausalLM, AutoTokenizer

        _quieten()
        try:
            tokenizer = AutoTokenizer.from_pretrained(path)
            model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
        except (OSError, ValueError) as error:
            raise ValueError(
                f"Cannot load a model from {str(path)!r}: expected a folder with a Hugging Face model "
                f"and its tokenizer, or the name of one on the hub. ({error})"
            ) from error
        return cls(model.to(torch.device(device)), tokenizer)

    @property
    def pad_id(self) -> int:
        """Id that fills a batch up; never read."""
        return int(self.tokenizer.pad_token_id or 0)

    def dialogue(self, rows: int) -> BatchDecoder:
        """A decoder for ``rows`` sequences."""
        return BatchDecoder(self.model, rows)

    def respond(
        self,
        decoder: BatchDecoder,
        contexts: Sequence[Sequence[int]],
        sampling: Sampling,
        generator: torch.Generator,
    ) -> list[Response]:
        """Samples a response for each row, after appending its context."""
        self.model.eval()
        return respond(decoder, contexts, self.chat, sampling, generator)

    def logprobs(self, batch: TokenBatch, temperature: float = 1.0) -> Tensor:
        """Log-probabilities of the batch's action and observation tokens, with gradient.

        Actions are scored at the sampling temperature, because that is the distribution they were
        drawn from; observations at 1.

        Args:
            batch: on the model's device.
            temperature: of the rollout.

        Returns:
            [S, W], one line a transition (see ``TokenBatch``).
        """
        # rows are padded on the right, where causal attention never looks: no mask is needed
        logits = self.model(input_ids=batch.input_ids, use_cache=False).logits
        plain = batch.gather(token_logprobs(logits, batch.input_ids, batch.wanted()))
        if temperature in (0.0, 1.0):
            return plain
        tempered = batch.gather(
            token_logprobs(logits / temperature, batch.input_ids, batch.wanted())
        )
        return torch.where(batch.action_mask, tempered, plain)

    def save(self, folder: Path) -> None:
        """Writes model and tokenizer in the Hugging Face form."""
        _quieten()
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def _quieten() -> None:
    """No progress bars for the few files of a checkpoint: they break up our own."""
    from transformers.utils import logging

    logging.disable_progress_bar()
