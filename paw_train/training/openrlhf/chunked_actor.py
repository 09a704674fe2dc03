"""OpenRLHF's actor without the logits of every position.

Upstream computes logits [B, T, V], converts them to float32 and then looks up a few: at 16,384 tokens
and a vocabulary of 152,000 that is 9.3 GiB, and as much again in the backward pass. Here the LM head
scores the tokens that are asked for, a chunk at a time, as in the local engine.
"""

from __future__ import annotations

from typing import Any

import torch
from openrlhf.models import Actor
from openrlhf.models.ring_attn_utils import unpad_and_slice_tensor
from torch import Tensor

from paw_train.losses.lm_head_logprobs import TokenScorer, TokenScores


class ChunkedActor(Actor):
    """OpenRLHF's actor, whose scores come from ``paw_train.losses.lm_head_logprobs``.

    The model is still called as a whole, DeepSpeed's engine included, so that ZeRO-3 gathers the LM
    head's weight.
    """

    _scorer: TokenScorer | None = None

    def scores(
        self,
        ids: Tensor,
        attention: Tensor,
        tokens: Tensor,
        temperatures: Tensor,
        entropies: int = 0,
    ) -> TokenScores:
        """Log-probabilities of selected tokens, and entropies at the first of them (``TokenScorer``).

        ``attention`` [B, T] is 0 on padding.
        """
        inputs, positions = self._inputs(ids, attention)
        before = tokens - 1
        if self.packing_samples:
            # [1, tokens]: padding was left out
            before = (attention.flatten().cumsum(0) - 1)[before]
        if self._scorer is None:
            # only now is the model the one that DeepSpeed has put its hooks into
            self._scorer = TokenScorer(getattr(self.model, "module", self.model))
        return self._scorer.during(
            lambda: self.model(**inputs, position_ids=positions)["logits"],
            before,
            ids.flatten()[tokens],
            temperatures,
            entropies,
        )

    def _inputs(self, ids: Tensor, attention: Tensor) -> tuple[dict[str, Any], Tensor]:
        """The inputs of the model: padded rows with their mask, or one row without padding."""
        if self.packing_samples:
            packed, positions, _, _, _ = unpad_and_slice_tensor(ids, attention, None)
            return {"input_ids": packed, "attention_mask": None}, positions
        positions = (attention.long().cumsum(-1) - 1).masked_fill(attention == 0, 1)
        return {"input_ids": ids, "attention_mask": attention}, positions

    def forward(
        self,
        sequences: Tensor,
        action_mask: Tensor,
        attention_mask: Tensor,
        ring_attn_group: Any = None,
        packed_seq_lens: Any = None,
    ) -> Tensor:
        """[B, T - 1] log-probabilities of each row's next tokens, 0 where ``action_mask`` is 0.

        Used for scoring by the actor and by the reference, at the rollout's temperature. Ring attention,
        under which a rank has a part of each row, is refused.
        """
        if ring_attn_group is not None:
            raise ValueError("ring attention splits rows over ranks; the loss reads them whole.")
        wanted = torch.nn.functional.pad(action_mask.bool(), (1, 0)).flatten()
        tokens = wanted.nonzero().flatten()
        temperatures = torch.full_like(tokens, self.temperature or 1.0, dtype=torch.float64)
        found = self.scores(sequences, attention_mask, tokens, temperatures).logprobs
        result = found.new_zeros(sequences.numel()).index_copy(0, tokens, found)
        return result.view_as(sequences)[:, 1:]
