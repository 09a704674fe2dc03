"""A policy that runs in this process: any Hugging Face causal language model with a chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor

from paw_train.attention import use_grouped_attention
from paw_train.chat import ChatFormat
from paw_train.head import TokenScorer
from paw_train.policies.protocol import PREFILL_TOKENS, Sampling
from paw_train.policies.sessions import LocalSession
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
        self._score = TokenScorer(model)

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

    @property
    def trainable(self) -> bool:
        """Responses come with what training needs."""
        return True

    def session(
        self, sampling: Sampling, growing: bool, prefill_tokens: int = PREFILL_TOKENS
    ) -> LocalSession:
        """Opens a session on a batch of episodes (see ``protocol.Policy``)."""
        return LocalSession(self.model, self.chat, sampling, growing, prefill_tokens)

    @overload
    def logprobs(
        self, batch: TokenBatch, temperature: float = ..., entropy: Literal[False] = ...
    ) -> Tensor: ...

    @overload
    def logprobs(
        self, batch: TokenBatch, temperature: float = ..., *, entropy: Literal[True]
    ) -> tuple[Tensor, Tensor]: ...

    def logprobs(
        self, batch: TokenBatch, temperature: float = 1.0, entropy: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Log-probabilities of the batch's action and observation tokens, with gradient.

        Actions are scored at the sampling temperature, because that is the distribution they were
        drawn from; observations at 1. Logits exist for a chunk of these tokens at a time (see
        ``paw_train.head``).

        Args:
            batch: on the model's device.
            temperature: of the rollout; 0 (the most likely token) counts as 1.
            entropy: also return the Shannon entropy of the distribution that each action token was
                drawn from, over the whole vocabulary.

        Returns:
            [S, W], one line a transition (see ``TokenBatch``), 0 where empty; with ``entropy`` also
            [S, W] entropies in nats, 0 outside the actions, with gradient.
        """
        number = batch.row * batch.input_ids.shape[1] + batch.column
        acts, which_act = number[batch.action_mask].unique(return_inverse=True)
        ahead = batch.horizon > 0
        rest, which_rest = number[ahead].unique(return_inverse=True)
        heat = torch.ones(len(acts) + len(rest), device=number.device, dtype=torch.float64)
        heat[: len(acts)] = temperature or 1.0
        scores = self._score(
            batch.input_ids, torch.cat([acts, rest]), heat, len(acts) if entropy else 0
        )
        result = scores.logprobs.new_zeros(number.shape)
        result = result.masked_scatter(batch.action_mask, scores.logprobs[which_act])
        result = result.masked_scatter(ahead, scores.logprobs[len(acts) + which_rest])
        if not entropy:
            return result
        spread = scores.entropy.new_zeros(number.shape)
        return result, spread.masked_scatter(batch.action_mask, scores.entropy[which_act])

    def fallback_reason(self) -> str | None:
        """Why whole logits are needed for ``logprobs``, if they are (see ``TokenScorer``)."""
        return self._score.fallback_reason()

    def save(self, folder: Path) -> None:
        """Writes model and tokenizer in the Hugging Face form."""
        _quieten()
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def _quieten() -> None:
    """No progress bars for the few files of a checkpoint: they break up our own."""
    from transformers.utils import logging

    logging.disable_progress_bar()
