"""The laws that the sampler is judged by are exact: chance alone is called chance."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from steppe.audit.counts import coins, p_value, spread_p, together_p


@pytest.mark.parametrize("count", [0, 1, 6, 20, 30, 60])
def test_a_sum_of_equal_coins_is_binomial(count: int) -> None:
    law = stats.binom(60, 0.1)
    expected = min(1.0, 2 * min(law.cdf(count), law.sf(count - 1)))
    assert p_value(count, coins(np.full(60, 0.1))) == pytest.approx(expected, rel=1e-6, abs=1e-13)


def test_a_sum_of_unequal_numbers_is_their_convolution() -> None:
    laws = np.array([[0.5, 0.25, 0.25], [0.9, 0.0, 0.1], [0.2, 0.8, 0.0]])
    weights = np.convolve(np.convolve(laws[0], laws[1]), laws[2])
    for value in range(6):
        tail = min(weights[: value + 1].sum(), weights[value:].sum())
        assert p_value(value, laws) == pytest.approx(min(1.0, 2 * tail), abs=1e-14)


def test_many_counts_are_judged_by_their_worst() -> None:
    laws = coins(np.full(40, 0.5))
    worst = p_value(38, laws)
    assert p_value(np.array([20, 38, 21]), laws) == pytest.approx(3 * worst, rel=1e-3)
    assert p_value(np.array([], dtype=np.int64), laws) == 1.0


def _batches(rng: np.random.Generator, steps: int, chance: float, cap: int) -> np.ndarray:
    """Batches of 64 records by coins; whoever is above the cap is turned away at random."""
    table = rng.random((steps, 64)) < chance
    order = rng.random((steps, 64)) + ~table  # who is not in comes last
    ranks = order.argsort(axis=1).argsort(axis=1)
    return table & (ranks < cap)


@pytest.mark.parametrize(
    ("chance", "cap", "runs"),
    [(1 / 64, 64, 1000), (1 / 64, 2, 1000), (0.5, 64, 200), (0.5, 20, 500)],
)
def test_coincidences_alarm_as_rarely_as_they_say(chance: float, cap: int, runs: int) -> None:
    """Small counts too, where a normal law alarms hundreds of times too often."""
    rng = np.random.default_rng(0)
    one_group = np.zeros(64, dtype=np.int64)
    tables = [_batches(rng, 60, chance, cap) for _ in range(runs)]
    found = np.array([together_p(table[:-1], table[1:], one_group) for table in tables])
    for level in (0.1, 0.01, 0.001):
        allowed = stats.binom(len(found), level).isf(1e-6)
        assert (found <= level).sum() <= allowed


def test_coincidences_of_two_groups_are_judged_each_by_its_own_size() -> None:
    rng = np.random.default_rng(1)
    groups = np.arange(64) // 48
    chances = np.where(groups == 0, 0.1, 0.8)
    tables = [rng.random((40, 64)) < chances for _ in range(500)]
    found = np.array([together_p(table[:-1], table[1:], groups) for table in tables])
    assert (found <= 0.01).sum() <= stats.binom(500, 0.01).isf(1e-6)
    together = together_p(tables[0], tables[0], groups)
    assert together < 1e-12, "a batch that comes twice"


def test_the_spread_sees_sizes_that_never_vary() -> None:
    sizes = stats.binom.pmf(np.arange(65), 64, 0.5)
    laws = np.tile(sizes, (60, 1))
    drawn = np.random.default_rng(2).binomial(64, 0.5, (200, 60))
    found = np.array([spread_p(row, laws) for row in drawn])
    assert (found <= 0.01).sum() <= stats.binom(200, 0.01).isf(1e-6)
    assert spread_p(np.full(60, 32), laws) < 1e-12
