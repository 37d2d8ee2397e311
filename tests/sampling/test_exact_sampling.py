"""The exact building blocks: binomial counts, uniform numbers, uniform subsets."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import combinations
from math import comb

import numpy as np
import pytest
from scipy import stats

from steppe.noise import SeededSource
from steppe.sampling.exact import ONE, _binomial_table, binomial, uniform_below, uniform_subset


@pytest.mark.parametrize("trials", [1, 2, 7, 40])
@pytest.mark.parametrize("threshold", [1, ONE // 3, ONE // 2, ONE - 1])
def test_binomial_table_against_exact_fractions(trials: int, threshold: int) -> None:
    rate = Fraction(threshold, ONE)
    exact = [comb(trials, k) * rate**k * (1 - rate) ** (trials - k) for k in range(trials + 1)]
    first, cumulative = _binomial_table(trials, threshold)
    table = np.diff([0, *cumulative])
    found = dict(enumerate((Fraction(int(mass), 2**128) for mass in table), start=first))
    distance = sum(abs(found.get(k, Fraction(0)) - exact[k]) for k in range(trials + 1)) / 2
    assert distance < Fraction(1, 2**100)
    assert cumulative[-1] == 2**128, "every uniform number must find its count"


@pytest.mark.parametrize(("trials", "rate"), [(60_000, 2048 / 60_000), (10**8, 1e-5)])
def test_binomial_table_against_scipy(trials: int, rate: float) -> None:
    first, cumulative = _binomial_table(trials, int(rate * ONE))
    counts = np.arange(first, first + len(cumulative))
    ours = np.array([value / 2**128 for value in cumulative])
    assert np.abs(ours - stats.binom.cdf(counts, trials, rate)).max() < 1e-9
    # The table ends far out in the tails, not at a few standard deviations.
    spread = np.sqrt(trials * rate)
    assert first < max(1, trials * rate - 12 * spread)
    assert counts[-1] > trials * rate + 12 * spread


class Scripted:
    """Hands out given words."""

    def __init__(self, words: list[int]) -> None:
        self._words = list(words)

    def words(self, count: int) -> np.ndarray:
        taken, self._words = self._words[:count], self._words[count:]
        assert len(taken) == count
        return np.array(taken, dtype=np.uint64)


def test_binomial_at_the_ends_of_the_uniform_number() -> None:
    assert binomial(3, ONE // 2, Scripted([0, 0])) == 0
    assert binomial(3, ONE // 2, Scripted([ONE - 1, ONE - 1])) == 3
    # P(no heads) = 1/8: the count changes at 2^125, up to the rounding of the last bits.
    assert binomial(3, ONE // 2, Scripted([2**61 - 1, ONE - 8])) == 0
    assert binomial(3, ONE // 2, Scripted([2**61, 8])) == 1


def test_uniform_below_throws_the_incomplete_multiple_away() -> None:
    # 2^64 = 10 · 1844674407370955161 + 6: the six highest words must be drawn again.
    drawn = uniform_below(10, 2, Scripted([ONE - 1, 13, 27]))
    assert drawn.tolist() == [7, 3]
    assert uniform_below(10, 1, Scripted([ONE - 7])).tolist() == [9]


def test_uniform_below_is_uniform() -> None:
    counts = np.bincount(uniform_below(7, 70_000, SeededSource(1)), minlength=7)
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize(("population", "size"), [(5, 2), (6, 4), (40, 2)])
def test_every_subset_is_equally_likely(population: int, size: int) -> None:
    source = SeededSource(2)
    subsets = list(combinations(range(population), size))
    draws = 40 * len(subsets)
    seen = Counter(tuple(uniform_subset(population, size, source)) for _ in range(draws))
    assert set(seen) <= set(subsets)
    assert stats.chisquare([seen[subset] for subset in subsets]).pvalue > 1e-3


@pytest.mark.parametrize("population", [1, 2, 1000])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.06, 0.07, 0.5, 0.51, 1.0])
def test_subsets_are_sorted_distinct_and_of_the_size(population: int, share: float) -> None:
    size = round(share * population)
    subset = uniform_subset(population, size, SeededSource(3))
    assert subset.dtype == np.int64
    assert len(subset) == size
    assert (np.diff(subset) > 0).all()
    assert ((subset >= 0) & (subset < population)).all()
