"""The compiled loops of BM25: exact, and without reading what cannot change the best k.

Passages are scored block by block. As soon as k passages are held, a term no longer brings passages in
if its greatest possible share, together with those of all lighter terms, cannot lift a passage above the
k-th: it is only looked up in those that heavier terms brought in (MaxScore; Turtle and Flood 1995).
Frequent terms are light, so most postings are skipped.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from paw_gym.internals.constructors import need

_BLOCK = 1 << 15
"""passages whose scores are summed at a time: they stay in the processor's cache"""
_SLACK = 1 + 1e-12
"""makes up for the order in which a bound is summed"""
_SPARSE = 8
"""postings per passage in question from which looking them up is quicker than walking past them"""


@lru_cache(maxsize=1)
def compiled_ranking() -> Any:
    """A function that ranks the passages of an index; it returns what ``BM25Scorer.rank`` does.

    Its arguments are the query's weights, places, starts and ends [t], heaviest terms first; the index's
    passages, counts and lengths; [256] float32, 1 / (k1 * (1 - b + b * |d| / avg)) by code of length; [V]
    float32, what it remembers of each term (its largest tf * inverse; 0: not looked at yet); and k.
    """
    numba: Any = need("numba", "retrieval", "BM25 with compiled loops")

    @numba.njit(nogil=True, fastmath=False)
    def first_from(passages: Any, low: Any, end: Any, wanted: Any) -> Any:
        """The first posting at or after ``low`` whose passage is ``wanted`` or a later one."""
        step = 1
        high = low
        while high < end and passages[high] < wanted:
            low = high + 1
            high += step
            step *= 2
        high = min(high, end)
        while low < high:
            middle = (low + high) // 2
            if passages[middle] < wanted:
                low = middle + 1
            else:
                high = middle
        return low

    @numba.njit(nogil=True, fastmath=False)
    def rank(query: Any, index: Any, inverse: Any, gains: Any, top_k: Any) -> Any:
        weights, places, starts, ends = query
        passages, counts, lengths = index
        terms, size, one = len(starts), len(lengths), np.float32(1)
        sums = np.zeros(min(_BLOCK, size), np.float64)
        found = np.empty(len(sums), np.int64)  # offsets in the block that may still get in
        next_ = starts.copy()
        remaining = np.zeros(terms + 1, np.float64)  # the most that a term and all lighter ones add
        for t in range(terms - 1, -1, -1):
            greatest = gains[places[t]]
            if greatest == 0:  # two threads may get here: they find the same
                for i in range(starts[t], ends[t]):
                    greatest = max(greatest, np.float32(counts[i]) * inverse[lengths[passages[i]]])
                gains[places[t]] = greatest
            remaining[t] = remaining[t + 1] + (weights[t] - weights[t] / (one + greatest))
        best = np.empty(top_k, np.int64)
        scores = np.empty(top_k, np.float32)
        held, leading = 0, terms  # leading: terms that still bring passages in
        for base in range(0, size, _BLOCK):
            limit = min(base + _BLOCK, size)
            least = scores[top_k - 1] if held == top_k else np.float32(-1)
            # a later passage must score more than the last that is held: ties go to the earlier one
            while leading > 0 and np.float32(remaining[leading - 1] * _SLACK) <= least:
                leading -= 1
            if leading == 0:
                break
            count = 0
            # heavy terms bring passages in: `found` lists those with a sum, to be set back to 0 below
            for t in range(leading):
                i, end, weight = next_[t], ends[t], weights[t]
                while i < end and passages[i] < limit:
                    p = passages[i]
                    offset = p - base
                    if sums[offset] == 0.0:
                        found[count] = offset
                        count += 1
                    gain = np.float32(counts[i]) * inverse[lengths[p]]
                    sums[offset] += weight - weight / (one + gain)
                    i += 1
                next_[t] = i
            # light terms only add to passages that can still get in with all that is left to add
            for t in range(leading, terms):
                kept = 0
                for c in range(count):
                    offset = found[c]
                    if np.float32((sums[offset] + remaining[t]) * _SLACK) > least:
                        found[kept] = offset
                        kept += 1
                    else:
                        sums[offset] = 0.0
                count = kept
                if count == 0:
                    break
                end, weight = ends[t], weights[t]
                i = first_from(passages, next_[t], end, base)
                usual = (end - starts[t]) * (limit - base) // size
                if count * _SPARSE < usual:
                    for c in range(count):
                        p = base + found[c]
                        j = first_from(passages, i, end, p)
                        if j < end and passages[j] == p:
                            gain = np.float32(counts[j]) * inverse[lengths[p]]
                            sums[found[c]] += weight - weight / (one + gain)
                else:
                    while i < end and passages[i] < limit:
                        p = passages[i]
                        if sums[p - base] > 0.0:
                            gain = np.float32(counts[i]) * inverse[lengths[p]]
                            sums[p - base] += weight - weight / (one + gain)
                        i += 1
                next_[t] = i
            # insertion into the k best: few passages come this far
            for c in range(count):
                position, score = base + found[c], np.float32(sums[found[c]])
                sums[found[c]] = 0.0
                if score <= 0:
                    continue
                if held == top_k and (
                    score < scores[held - 1]
                    or (score == scores[held - 1] and position > best[held - 1])
                ):
                    continue
                if held < top_k:
                    held += 1
                place = held - 1
                while place > 0 and (
                    scores[place - 1] < score
                    or (scores[place - 1] == score and best[place - 1] > position)
                ):
                    scores[place], best[place] = scores[place - 1], best[place - 1]
                    place -= 1
                scores[place], best[place] = score, position
        return best[:held].copy(), scores[:held].copy()

    return rank
