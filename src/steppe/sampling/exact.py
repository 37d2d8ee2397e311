"""Exact random counts and subsets from 64-bit words, in work proportional to the result."""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

ONE = 1 << 64
_FINE = 192  # bits below the largest weight at which a binomial weight counts as zero
_COARSE = 128  # bits of the uniform number that is inverted


@runtime_checkable
class Words(Protocol):
    """What sampling asks of a source of randomness."""

    def words(self, count: int) -> NDArray[np.uint64]:
        """Independent uniform 64-bit words."""
        ...


def binomial(trials: int, threshold: int, source: Words) -> int:
    """How many of `trials` independent coins of probability threshold/2⁶⁴ show heads.

    Guarantees:
        Inversion of a cumulative table in integer arithmetic with a 128-bit uniform number. The
        total variation distance to the binomial law is below (length of the table) · 2⁻¹²⁷, and
        the table is shorter than 2⁴⁰ for any population that fits in memory.
    """
    first, cumulative = _binomial_table(trials, threshold)
    high, low = source.words(2)
    return first + bisect_right(cumulative, (int(high) << 64) | int(low))


@lru_cache(maxsize=32)
def _binomial_table(trials: int, threshold: int) -> tuple[int, list[int]]:
    """(k₀, [2¹²⁸ P(K ≤ k₀), 2¹²⁸ P(K ≤ k₀+1), …]) from ratios of neighbouring probabilities."""
    heads, tails = threshold, ONE - threshold
    mode = min(trials, ((trials + 1) * heads) >> 64)
    above: list[int] = []
    weight = 1 << _FINE
    for k in range(mode, trials):
        weight = weight * (trials - k) * heads // ((k + 1) * tails)
        if weight == 0:
            break
        above.append(weight)
    below: list[int] = []
    weight = 1 << _FINE
    for k in range(mode, 0, -1):
        weight = weight * k * tails // ((trials - k + 1) * heads)
        if weight == 0:
            break
        below.append(weight)
    weights = [*reversed(below), 1 << _FINE, *above]
    total = sum(weights)
    cumulative: list[int] = []
    running = 0
    for weight in weights:
        running += weight
        cumulative.append((running << _COARSE) // total)
    return mode - len(below), cumulative


def uniform_below(bound: int, count: int, source: Words) -> NDArray[np.int64]:
    """Independent whole numbers, uniform on 0 … bound−1.

    Guarantees:
        Exactly uniform: words in the incomplete last multiple of `bound` are thrown away.
    """
    usable = ONE - ONE % bound
    drawn = source.words(count)
    if usable < ONE:
        while (rejected := drawn >= np.uint64(usable)).any():
            drawn[rejected] = source.words(int(rejected.sum()))
    return (drawn % np.uint64(bound)).astype(np.int64)


def uniform_subset(population: int, size: int, source: Words) -> NDArray[np.int64]:
    """A uniformly random subset of 0 … population−1 of the given size, sorted.

    Guarantees:
        Exactly uniform. Each round draws as many numbers as are missing and keeps the distinct
        ones. The rule does not know one number from another, so every permutation of the
        population leaves the law of the result unchanged; only the uniform law has that property.
    """
    if 16 * size > population:
        # Dense: a flag for each record is of the size of the result and needs no sorting. More
        # than half is drawn as the complement of less than half, so that few draws coincide.
        marks = min(size, population - size)
        marked = np.zeros(population, dtype=np.bool_)
        while missing := marks - int(np.count_nonzero(marked)):
            marked[uniform_below(population, missing, source)] = True
        return np.flatnonzero(marked if marks == size else ~marked)
    chosen = np.empty(0, dtype=np.int64)
    while missing := size - len(chosen):
        merged = np.concatenate((chosen, uniform_below(population, missing, source)))
        merged.sort()
        chosen = merged[np.diff(merged, prepend=-1) != 0]
    return chosen
