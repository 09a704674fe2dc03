"""Continuations of one context as a tree: what they share at their beginning is computed once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ROOT = -1
"""the parent of first tokens: the context's last token"""


class TokenTree:
    """The prefix tree of some continuations.

    Only inner nodes (tokens that another one follows) have to be read by a model: what comes after
    a continuation's last token is of no interest.

    Args:
        continuations: token ids, each not empty.

    Raises:
        ValueError: there is none, or an empty one.
    """

    def __init__(self, continuations: Sequence[Sequence[int]]) -> None:
        if not continuations or not all(continuations):
            raise ValueError("Expected continuations of at least one token each.")
        self.inner: list[int] = []
        """[n] tokens of the inner nodes, parents before children"""
        self.parents: list[int] = []
        """[n] number of each one's parent, ``ROOT`` for first tokens"""
        self.depths: list[int] = []
        """[n] how many tokens lie between it and the context"""
        self.edges: list[tuple[int, int]] = []
        """[E] the different (parent, token)"""
        self.paths: list[list[int]] = []
        """of each continuation, the numbers of its tokens' edges"""
        nodes: dict[tuple[int, int], int] = {}
        edges: dict[tuple[int, int], int] = {}
        for ids in continuations:
            parent, path = ROOT, []
            for depth, token in enumerate(ids):
                edge = (parent, int(token))
                path.append(edges.setdefault(edge, len(edges)))
                if depth + 1 < len(ids):
                    parent = self._node(nodes, edge, depth)
            self.paths.append(path)
        self.edges = list(edges)

    def _node(self, nodes: dict[tuple[int, int], int], edge: tuple[int, int], depth: int) -> int:
        if edge not in nodes:
            nodes[edge] = len(self.inner)
            self.inner.append(edge[1])
            self.parents.append(edge[0])
            self.depths.append(depth)
        return nodes[edge]

    def lineage(self) -> Tensor:
        """[n, n] bool: whether node j is node i, or above it."""
        size = len(self.inner)
        seen = torch.eye(size, dtype=torch.bool)
        for i, parent in enumerate(self.parents):
            if parent != ROOT:
                seen[i] |= seen[parent]
        return seen
