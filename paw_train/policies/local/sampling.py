"""Logits, and tokens from them: temperature, truncation, one random number a token, and a loop for GPUs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paw_train.rollouts.policy import Sampling

_LOG = logging.getLogger(__name__)
EVERY = 4
"""steps between two looks at the sampled tokens"""
BUCKET = 256
"""the number of columns read is a multiple of this: one graph for each"""


def logits_of(model: Any, hidden: Tensor) -> Tensor:
    """[n, V] float32 logits of [n, H] last hidden states, as the model's own head gives them."""
    logits: Tensor = model.get_output_embeddings()(hidden).float()
    config = model.get_decoder().config
    # Gemma 2, RecurrentGemma, Cohere and Granite change them after the output layer
    for name in ("logit_scale", "lm_head_multiplier"):
        logits = logits * (getattr(config, name, None) or 1.0)
    scaling = getattr(config, "logits_scaling", None) or 1.0
    logits = logits * scaling if config.model_type == "hyperclovax" else logits / scaling
    for name in ("final_logit_softcapping", "logits_soft_cap"):
        if cap := getattr(config, name, None):
            logits = torch.tanh(logits / cap) * cap
    return logits


def uniforms(seeds: Sequence[int], count: int) -> Tensor:
    """[B, count] float64 numbers in [0, 1), row b by ``seeds[b]`` alone (Philox is counter-based)."""
    rows = [np.random.Generator(np.random.Philox(seed)).random(count) for seed in seeds]
    return torch.from_numpy(np.stack(rows)) if rows else torch.zeros((0, count))


def sample_tokens(logits: Tensor, sampling: Sampling, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """One token a row and its log-probability under the distribution it was sampled from.

    Args:
        logits: [B, V].
        sampling: temperature and truncation; at temperature 0 the most likely token is taken, and
            its log-probability is the one at temperature 1.
        uniform: [B] in [0, 1): where in the cumulative distribution each row's token is (inverse
            transform sampling), so a token costs one random number however large V is.

    Returns:
        ids [B] and log-probabilities [B].
    """
    if sampling.temperature == 0:
        logprobs = torch.log_softmax(logits, dim=-1)
        ids = logits.argmax(-1)
    else:
        scaled = logits / sampling.temperature
        if sampling.truncated:
            scaled = filter_logits(scaled, sampling)
        logprobs = torch.log_softmax(scaled, dim=-1)
        ids = _invert(logprobs, uniform.to(logits.device))
    return ids, logprobs.gather(-1, ids[:, None]).squeeze(-1)


def _invert(logprobs: Tensor, uniform: Tensor) -> Tensor:
    # float64: float32 sums over a large vocabulary would shift the rare tokens' shares
    cumulative = logprobs.double().exp_().cumsum(-1)
    total = cumulative[:, -1]
    # rounding must not reach the total, where tokens of probability 0 may lie
    target = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target[:, None], right=True).squeeze(-1)


def filter_logits(logits: Tensor, sampling: Sampling) -> Tensor:
    """[B, V] tempered logits with -inf where ``top_k``, then ``top_p``, rule a token out.

    ``top_p`` counts among the tokens that ``top_k`` left (Holtzman et al. 2020, "The Curious Case of
    Neural Text Degeneration"). At least one token stays.
    """
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    allowed = torch.ones_like(ordered, dtype=torch.bool)
    if sampling.top_k:
        allowed[:, sampling.top_k :] = False
    if sampling.top_p < 1:
        probs = ordered.masked_fill(~allowed, -torch.inf).softmax(-1)
        allowed &= probs.cumsum(-1) - probs < sampling.top_p
    allowed[:, 0] = True
    keep = torch.zeros_like(allowed).scatter(-1, order, allowed)
    return logits.masked_fill(~keep, -torch.inf)


# --- sampling by one launch a token ---------------------------------------------------------------------

Forward = Callable[[Tensor, Tensor, int], Tensor]
"""(ids [R], columns [R], columns that are read) -> logits [R, V]"""


class TokenLoop:
    """Samples tokens for the first rows of a static cache, over buffers that stay where they are.

    A token of a small model is a thousand kernels of a few microseconds each, and launching them one by one
    takes a GPU longer than they do. A CUDA graph replays them all at once, provided that every tensor lies
    where it lay at capture and nothing on the way asks the host. So rows are fixed, the columns that
    attention reads are rounded up to a bucket, and sampling, noise and places are on the device. The host
    looks at the tokens every few steps; what a row sampled beyond its end is dropped. On a CPU the same steps
    run one by one.

    Args:
        rows: R, the rows that are computed, idle ones too.
    """

    def __init__(self, rows: int, sampling: Sampling, device: torch.device) -> None:
        self.rows, self.sampling, self.device = rows, sampling, device
        shape = (rows, sampling.max_tokens)
        self._ids = torch.zeros(rows, dtype=torch.long, device=device)
        self._position = torch.zeros_like(self._ids)
        self._active = torch.zeros_like(self._ids)
        self._step = torch.zeros(1, dtype=torch.long, device=device)
        self._noise = torch.zeros(shape, dtype=torch.float64, device=device)
        self._sampled = torch.zeros((2, *shape), dtype=torch.float64, device=device)
        """ids and log-probabilities; float64 holds both exactly, so that one copy brings them"""
        self._done = 0
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._captures = device.type == "cuda" and torch.cuda.is_available()
        self._room = 0

    def begin(
        self,
        logits: Tensor,
        places: Sequence[int],
        lengths: Sequence[int],
        noise: Tensor,
        room: int,
    ) -> None:
        """Samples the first token of some rows.

        Args:
            logits: [n, V] after each row's context.
            places: [n] of the rows.
            lengths: [R] tokens of every row in the cache.
            noise: [n, at most max_tokens] of the rows.
            room: columns of the cache; graphs of another room belong to buffers that are gone.
        """
        if room != self._room:
            self._graphs.clear()
            self._room = room
        at = torch.tensor(places, device=self.device)
        noise = noise.to(self.device)
        ids, logprobs = sample_tokens(logits, self.sampling, noise[:, 0])
        self._ids[at] = ids
        self._sampled[:, at, 0] = torch.stack([ids.double(), logprobs.double()])
        self._noise[at, : noise.shape[1]] = noise
        self._position.copy_(torch.tensor(lengths))
        self._step.fill_(1)
        self._done = 1

    @property
    def steps(self) -> int:
        """Number of passes until the host looks; the last token of a response is not fed."""
        return min(EVERY, self.sampling.max_tokens - self._done)

    def advance(
        self, forward: Forward, places: Sequence[int], end: int
    ) -> tuple[list[list[float]], list[list[float]]]:
        """Goes on, and returns what the host has not seen yet.

        Args:
            forward: a pass over one token a row.
            places: of the rows that go on.
            end: columns that the last of the ``steps`` reads, at most.

        Returns:
            For every row, ids and log-probabilities of ``steps`` tokens, the first time one more.
        """
        active = torch.zeros(self.rows, dtype=torch.long)
        active[list(places)] = 1
        self._active.copy_(active)
        end = -(-end // BUCKET) * BUCKET
        steps = self.steps
        for _ in range(steps):
            if self._captures and end not in self._graphs:
                self._capture(forward, end)
            if self._captures:
                self._graphs[end].replay()
            else:
                self._once(forward, end)
        start = self._done if self._done > 1 else 0
        self._done += steps
        ids, logprobs = self._sampled[:, :, start : self._done].tolist()
        return ids, logprobs

    def _once(self, forward: Forward, end: int) -> None:
        """One token for every row; rows that are not active stay where they are."""
        logits = forward(self._ids, self._position, end)
        uniform = self._noise.index_select(1, self._step)[:, 0]
        ids, logprobs = sample_tokens(logits, self.sampling, uniform)
        self._sampled.index_copy_(2, self._step, torch.stack([ids, logprobs.double()])[..., None])
        self._ids.copy_(ids)
        self._position.add_(self._active)
        self._step.add_(1)

    def _capture(self, forward: Forward, end: int) -> None:
        """Captures a step as a graph; a model that asks the host on its way is run step by step."""
        kept = [x.clone() for x in (self._ids, self._position, self._step)]
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            self._once(forward, end)  # libraries set themselves up, which cannot be captured
            stream.synchronize()
            try:
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    self._once(forward, end)
                finally:
                    graph.capture_end()
                self._graphs[end] = graph
            except RuntimeError as error:
                self._captures = False
                _LOG.warning("This model's token step cannot be a CUDA graph: %s", error)
        torch.cuda.current_stream(self.device).wait_stream(stream)
        for buffer, before in zip((self._ids, self._position, self._step), kept, strict=True):
            buffer.copy_(before)
