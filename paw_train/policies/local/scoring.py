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

from paw_train.policies.local.decoder import ROOT, BatchDecoder, takes_branches
from paw_train.policies.local.sampling import logits_of
from paw_train.policies.local.session import DialogueCache
from paw_train.rollouts.policy import ScoreRequest, Scores
from paw_train.settings.rollout import PREFILL_TOKENS

_LOG = logging.getLogger(__name__)
_LOGIT_ROWS = 256
"""nodes whose logits exist at a time; affects memory, not results"""


class LocalScoringSession:
    """Scores continuations with a model in this process.

    Args:
        growing: whether contexts continue the earlier ones, so that only what is new is computed.
    """

    def __init__(self, model: Any, growing: bool) -> None:
        self.model = model
        self._dialogues = DialogueCache(model) if growing else None

    @torch.no_grad()
    def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        """See ``rollouts.policy.ScoringSession``."""
        if not requests:
            return []
        self.model.eval()
        if not takes_branches(self.model):
            return self._plain(requests)
        if self._dialogues is not None:
            names, contexts = [r.episode for r in requests], [r.ids for r in requests]
            decoder, news = self._dialogues.take(names, contexts)
            assert isinstance(decoder, BatchDecoder)  # the model takes branches
            found = _score_trees(decoder, news, requests)
            self._dialogues.read |= {r.episode: list(r.ids) for r in requests}
            return found
        found = []
        for part in _parts(requests, PREFILL_TOKENS):
            decoder = BatchDecoder(self.model, len(part))
            found += _score_trees(decoder, {i: r.ids for i, r in enumerate(part)}, part)
        return found

    def _plain(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        """For models whose cache or attention knows no branches: a whole pass for each continuation."""
        _LOG.warning(
            "The cache or attention of %s cannot branch, so each continuation is computed with its "
            "whole context; model.attention=sdpa is faster.",
            type(self.model).__name__,
        )
        return [
            Scores([_whole_logprobs(self.model, r.ids, ids) for ids in r.continuations])
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


class _Tree:
    """Continuations of one context as their prefix tree: what they share at the beginning is computed once.

    Only inner nodes, tokens that another one follows, have to be read by a model.
    """

    def __init__(self, continuations: Sequence[Sequence[int]]) -> None:
        if not continuations or not all(continuations):
            raise ValueError("Expected continuations of at least one token each.")
        inner: dict[tuple[int, int], int] = {}
        edges: dict[tuple[int, int], int] = {}
        self.paths: list[list[int]] = []
        """of each continuation, the numbers of its tokens' edges"""
        for ids in continuations:
            parent, path = ROOT, []
            for i, token in enumerate(ids):
                edge = (parent, int(token))
                path.append(edges.setdefault(edge, len(edges)))
                if i + 1 < len(ids):
                    parent = inner.setdefault(edge, len(inner))
            self.paths.append(path)
        self.inner = list(inner)
        """(parent, token) of each inner node, parents before children"""
        self.edges = list(edges)
        """the different (parent, token)"""


def _score_trees(
    decoder: BatchDecoder, news: dict[int, Sequence[int]], requests: Sequence[ScoreRequest]
) -> list[Scores]:
    """Feeds rows what is new of the requests' contexts and scores the branches that could follow."""
    trees = [_Tree(r.continuations) for r in requests]
    first = decoder.feed(news)
    hidden = decoder.look_ahead({row: t.inner for row, t in zip(news, trees, strict=True)})
    scores = []
    for row, logits, tree in zip(news, first, trees, strict=True):
        values = _edge_logprobs(decoder.model, logits, hidden[row], tree).tolist()
        scores.append(Scores([[values[edge] for edge in path] for path in tree.paths]))
    return scores


def _edge_logprobs(model: Any, first: Tensor, hidden: Tensor, tree: _Tree) -> Tensor:
    """[E] log-probability of each edge's token after its parent."""
    tokens = torch.tensor([token for _, token in tree.edges], device=first.device)
    parents = torch.tensor([parent for parent, _ in tree.edges], device=first.device)
    found = torch.empty(len(tree.edges), device=first.device)
    roots = parents == ROOT
    found[roots] = first.log_softmax(-1)[tokens[roots]]
    for start in range(0, len(tree.inner), _LOGIT_ROWS):
        end = min(start + _LOGIT_ROWS, len(tree.inner))
        logprobs = logits_of(model, hidden[start:end]).log_softmax(-1)
        chosen = (parents >= start) & (parents < end)
        found[chosen] = logprobs[parents[chosen] - start, tokens[chosen]]
    return found


def _whole_logprobs(model: Any, context: Sequence[int], ids: Sequence[int]) -> list[float]:
    """Log-probabilities of ``ids`` after a context, by one plain forward pass over both."""
    tokens = torch.tensor([[*context, *ids]], device=next(model.parameters()).device)
    hidden = model.get_decoder()(input_ids=tokens[:, :-1]).last_hidden_state[0, -len(ids) :]
    chosen = logits_of(model, hidden).log_softmax(-1)[
        torch.arange(len(ids)), tokens[0, -len(ids) :]
    ]
    return [float(value) for value in chosen]
