"""Log-probabilities of given responses, by a model in this process.

Contexts are computed once (in a dialogue: what is new of them), and all continuations of all episodes
in one further pass over their prefix trees.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from paw_train.policies.local.decoder import BatchDecoder, takes_batches
from paw_train.policies.local.logits import finish_logits
from paw_train.policies.local.seats import Seats
from paw_train.policies.local.token_tree import ROOT, TokenTree
from paw_train.rollouts.policy import ScoreRequest, Scores
from paw_train.settings.rollout import PREFILL_TOKENS

_LOG = logging.getLogger(__name__)
_LOGIT_ROWS = 256
"""nodes whose logits exist at a time: memory, not results"""


class LocalScoringSession:
    """Scores continuations with a model in this process.

    Args:
        model: a Hugging Face causal language model.
        growing: whether contexts continue the earlier ones, so that only what is new is computed.
        prefill_tokens: most tokens of one forward pass: memory, not results.
    """

    def __init__(self, model: Any, growing: bool, prefill_tokens: int = PREFILL_TOKENS) -> None:
        self.model, self.prefill_tokens = model, prefill_tokens
        self._seats = Seats(model, prefill_tokens, exact=True) if growing else None

    def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        """See ``protocol.ScoringSession``."""
        if not requests:
            return []
        self.model.eval()
        if not takes_batches(self.model):
            return self._plain(requests)
        if self._seats is not None:
            names, contexts = [r.episode for r in requests], [r.ids for r in requests]
            decoder, news = self._seats.take(names, contexts)
            assert isinstance(decoder, BatchDecoder)  # it has a growing cache
            found = score_trees(decoder, news, [TokenTree(r.continuations) for r in requests])
            self._seats.read |= {r.episode: list(r.ids) for r in requests}
            return found
        found = []
        for part in _parts(requests, self.prefill_tokens):
            decoder = BatchDecoder(self.model, len(part), self.prefill_tokens)
            trees = [TokenTree(r.continuations) for r in part]
            found += score_trees(decoder, [r.ids for r in part], trees)
        return found

    def _plain(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        """For models whose cache or attention knows no branches: a whole pass for each continuation."""
        _LOG.warning(
            "The cache or attention of %s cannot branch, so each continuation is computed with its "
            "whole context; model.attention=sdpa is faster.",
            type(self.model).__name__,
        )
        return [
            Scores([whole_logprobs(self.model, r.ids, ids) for ids in r.continuations])
            for r in requests
        ]


def _parts(requests: Sequence[ScoreRequest], tokens: int) -> list[Sequence[ScoreRequest]]:
    """Neighbouring requests of together at most so many padded context tokens (one at least)."""
    parts: list[Sequence[ScoreRequest]] = []
    start = 0
    for end in range(1, len(requests) + 1):
        longest = max(len(r.ids) for r in requests[start : end + 1])
        if end == len(requests) or longest * (end + 1 - start) > tokens:
            parts.append(requests[start:end])
            start = end
    return parts


def score_trees(
    decoder: BatchDecoder, contexts: Sequence[Sequence[int]], trees: Sequence[TokenTree]
) -> list[Scores]:
    """Feeds each row its new context and scores the branches that could follow.

    Args:
        decoder: B rows.
        contexts: B chunks, what was not fed yet.
        trees: B, the continuations of each.
    """
    first = decoder.feed(contexts)
    hidden = decoder.branch(trees)
    scores = []
    for row, tree in enumerate(trees):
        values = _edge_logprobs(decoder, first[row], hidden[row], tree).tolist()
        scores.append(Scores([[values[edge] for edge in path] for path in tree.paths]))
    return scores


def _edge_logprobs(decoder: BatchDecoder, first: Tensor, hidden: Tensor, tree: TokenTree) -> Tensor:
    """[E] log-probability of each edge's token after its parent.

    Args:
        decoder: has the output layer.
        first: [V] logits after the context.
        hidden: [n, H] last hidden states of the inner nodes.
        tree: the continuations.
    """
    tokens = torch.tensor([token for _, token in tree.edges], device=first.device)
    parents = torch.tensor([parent for parent, _ in tree.edges], device=first.device)
    found = torch.empty(len(tree.edges), device=first.device)
    roots = parents == ROOT
    found[roots] = first.log_softmax(-1)[tokens[roots]]
    for start in range(0, len(tree.inner), _LOGIT_ROWS):
        end = min(start + _LOGIT_ROWS, len(tree.inner))
        logprobs = decoder.logits_of(hidden[start:end]).log_softmax(-1)
        chosen = (parents >= start) & (parents < end)
        found[chosen] = logprobs[parents[chosen] - start, tokens[chosen]]
    return found


@torch.no_grad()
def whole_logprobs(model: Any, context: Sequence[int], ids: Sequence[int]) -> list[float]:
    """Log-probabilities of ``ids`` after a context, by one plain forward pass over both."""
    tokens = torch.tensor([[*context, *ids]], device=next(model.parameters()).device)
    hidden = model.get_decoder()(input_ids=tokens[:, :-1]).last_hidden_state[0, -len(ids) :]
    logits = finish_logits(model.get_output_embeddings()(hidden).float(), model.config)
    chosen = logits.log_softmax(-1)[torch.arange(len(ids)), tokens[0, -len(ids) :]]
    return [float(value) for value in chosen]
