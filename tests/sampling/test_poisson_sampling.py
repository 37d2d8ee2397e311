"""The sampler's law: independent coins of exactly the accounted rate, in work of batch size."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from steppe.errors import ConfigurationError
from steppe.noise import SecureSource, SeededSource
from steppe.sampling import CappedPoisson, Poisson

FULL = 2**64


def inclusion(
    sampler: Poisson, population: int, batch_size: float, steps: int, seed: int
) -> np.ndarray:
    """(steps, population) table of who took part."""
    table = np.zeros((steps, population), dtype=np.int64)
    rows = sampler.batches(population, batch_size, steps, SeededSource(seed))
    for step, chosen in enumerate(rows):
        table[step, chosen.numpy()] = 1
    return table


# Sparse and dense subsets, and rates above one half, take different ways through the code.
CASES = pytest.mark.parametrize(
    ("population", "batch_size"), [(200, 4.0), (50, 12.5), (40, 30.0), (1000, 0.5)]
)


@CASES
def test_law_of_independent_coins(population: int, batch_size: float) -> None:
    steps, rate = 6_000, batch_size / population
    table = inclusion(Poisson(), population, batch_size, steps, seed=1)

    total = stats.binomtest(int(table.sum()), steps * population, rate)
    assert total.pvalue > 1e-4, "rate"

    sizes = table.sum(axis=1)
    variance = population * rate * (1 - rate)
    spread = (sizes.var() / variance - 1) / math.sqrt(2 / steps + 1 / (steps * variance))
    assert abs(spread) < 4, "a fixed or truncated batch size"

    of_record = table.sum(axis=0)
    scores = (of_record - steps * rate) / math.sqrt(steps * rate * (1 - rate))
    assert np.abs(scores).max() < 5, "a record with another rate"
    assert abs(scores[0]) < 4
    assert abs(scores[-1]) < 4
    assert stats.chi2.sf((scores**2).sum(), population) > 1e-4


@pytest.mark.parametrize(("population", "batch_size"), [(200, 4.0), (50, 12.5), (40, 30.0)])
def test_pairs_of_records_are_independent(population: int, batch_size: float) -> None:
    steps, rate = 6_000, batch_size / population
    centred = inclusion(Poisson(), population, batch_size, steps, seed=2) - rate
    variance = rate * (1 - rate)
    scores = (centred.T @ centred)[np.triu_indices(population, k=1)] / (steps**0.5 * variance)
    # Under independence the scores have mean 0 and variance 1 and no two are correlated.
    kurtosis = (1 - 3 * variance) / variance
    of_square = 2 + (kurtosis**2 - 3) / steps
    assert abs(scores.mean()) < 4 / math.sqrt(len(scores))
    assert abs((scores**2).mean() - 1) < 4 * math.sqrt(of_square / len(scores))
    assert np.abs(scores).max() < 6
    # Neighbours in the numbering, where a faulty subset would show first.
    neighbours = (centred[:, :-1] * centred[:, 1:]).sum()
    assert abs(neighbours) < 4 * variance * math.sqrt(steps * (population - 1))


def test_steps_are_independent() -> None:
    table = inclusion(Poisson(), 400, 100, 3_000, seed=3).astype(np.float64)
    centred = table - 0.25
    for lag in (1, 2):
        products = (centred[lag:] * centred[:-lag]).sum()
        assert abs(products) < 4 * 0.1875 * math.sqrt(centred[lag:].size)


def test_batch_sizes_are_binomial() -> None:
    sizes = inclusion(Poisson(), 30, 3, 20_000, seed=4).sum(axis=1)
    counts = np.bincount(sizes, minlength=31)
    expected = 20_000 * stats.binom.pmf(np.arange(31), 30, 0.1)
    usual = expected >= 5
    seen = np.append(counts[usual], counts[~usual].sum())
    wanted = np.append(expected[usual], expected[~usual].sum())
    assert stats.chisquare(seen, wanted).pvalue > 1e-3


def test_everybody_takes_part_at_rate_one() -> None:
    for rows in Poisson().batches(1000, 1000, 5, SecureSource()):
        assert torch.equal(rows, torch.arange(1000))


def test_tiny_rates_give_empty_batches() -> None:
    batches = list(Poisson().batches(10**9, 0.01, 2_000, SeededSource(5)))
    assert len(batches) == 2_000
    assert all(rows.dtype == torch.int64 and rows.ndim == 1 for rows in batches)
    assert stats.binomtest(sum(len(rows) > 0 for rows in batches), 2_000, 0.01).pvalue > 1e-3


def test_one_record() -> None:
    took_part = sum(len(rows) for rows in Poisson().batches(1, 0.3, 5_000, SeededSource(6)))
    assert stats.binomtest(took_part, 5_000, 0.3).pvalue > 1e-3


def test_edge_records_of_a_large_population_appear() -> None:
    population = 10**7
    rows = torch.cat(list(Poisson().batches(population, 20_000, 50, SeededSource(7))))
    assert stats.kstest((rows.double() + 0.5).numpy() / population, "uniform").pvalue > 1e-3
    assert rows.min() >= 0
    assert rows.max() < population


class Counting(SeededSource):
    """Counts the words that are asked for."""

    drawn = 0

    def words(self, count: int) -> np.ndarray:
        self.drawn += count
        return super().words(count)


@pytest.mark.parametrize("population", [10**4, 10**6, 10**9])
def test_work_grows_with_the_batch_not_the_population(population: int) -> None:
    source = Counting(8)
    steps, batch_size = 50, 100
    participants = sum(
        len(rows) for rows in Poisson().batches(population, batch_size, steps, source)
    )
    assert participants <= source.drawn <= 1.05 * participants + 2 * steps


def test_dense_batches_need_less_than_a_word_a_record() -> None:
    for batch_size in (700, 5_000, 9_300, 10_000):
        source = Counting(9)
        next(Poisson().batches(10_000, batch_size, 1, source))
        assert source.drawn < 0.8 * 10_000


def test_realised_rate_is_the_threshold() -> None:
    for population, batch_size in ((60_000, 2048), (10**9, 1), (3, 1), (7, 7), (10**12, 0.5)):
        threshold = Poisson().threshold(population, batch_size)
        rate = Poisson().realised_rate(population, batch_size)
        assert rate * FULL == threshold, "accounted and drawn rate must be one number"
        assert rate <= batch_size / population
        assert rate == pytest.approx(batch_size / population, rel=1e-6)


def test_batches_are_drawn_one_at_a_time() -> None:
    source = Counting(10)
    batches = Poisson().batches(1000, 10, 10**9, source)
    assert source.drawn == 0
    next(batches)
    assert 0 < source.drawn < 100


def test_default_cap_is_six_standard_deviations_up() -> None:
    assert CappedPoisson().resolved_cap(60_000, 2048) == math.ceil(
        2048 + 6 * math.sqrt(2048 * (1 - 2048 / 60_000))
    )
    assert CappedPoisson().resolved_cap(100, 100) == 100
    assert CappedPoisson(cap=70).resolved_cap(60_000, 64) == 70
    assert CappedPoisson(cap=70).resolved_cap(50, 10) == 50


def test_cap_keeps_a_uniform_subset_of_the_coins() -> None:
    population, batch_size, cap, steps = 60, 12, 10, 20_000
    table = inclusion(CappedPoisson(cap), population, batch_size, steps, seed=11)
    sizes = table.sum(axis=1)
    counts = np.bincount(sizes, minlength=cap + 1)
    law = stats.binom(population, batch_size / population)
    expected = steps * np.append(law.pmf(np.arange(cap)), law.sf(cap - 1))
    kept = expected >= 5
    seen = np.append(counts[kept], counts[~kept].sum())
    wanted = np.append(expected[kept], expected[~kept].sum())
    assert len(counts) == cap + 1
    assert stats.chisquare(seen, wanted).pvalue > 1e-3
    # Among the full batches, every record is equally likely to be kept.
    full = table[sizes == cap]
    shares = full.sum(axis=0)
    scores = (shares - len(full) * cap / population) / math.sqrt(
        len(full) * cap / population * (1 - cap / population)
    )
    assert np.abs(scores).max() < 4.5


def test_default_cap_is_never_felt() -> None:
    plain = inclusion(Poisson(), 500, 50, 300, seed=12)
    capped = inclusion(CappedPoisson(), 500, 50, 300, seed=12)
    assert (plain == capped).all()


@pytest.mark.parametrize(
    ("population", "batch_size", "message"),
    [
        (10, 11, "batch_size=11.0: must not exceed population=10; use the population for full"),
        (10, 0, "batch_size=0: must be finite and above 0"),
        (10, math.nan, "batch_size=nan: must not be NaN"),
        (0, 1, "population=0: must be a whole number of at least 1"),
        (10.5, 1, "population=10.5: must be a whole number"),
        (10, 1e-30, "must be at least population/2⁶⁴; give a larger expected batch"),
    ],
)
def test_bad_rates_are_refused(population: int, batch_size: float, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Poisson().realised_rate(population, batch_size)
    assert message in str(caught.value)


def test_bad_draws_are_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="must be a cryptographic source"):
        Poisson().batches(10, 1, 1, torch.Generator())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="steps=0: must be a whole number"):
        Poisson().batches(10, 1, 0, SecureSource())
    with pytest.raises(ConfigurationError, match="threshold=0: must be"):
        Poisson().draw(10, 0, SecureSource())
    with pytest.raises(ConfigurationError, match="must lie in 1 … 2⁶⁴; take it from threshold"):
        CappedPoisson().draw(10, FULL + 1, SecureSource())
    with pytest.raises(ConfigurationError, match="cap=0: must be a whole number of at least 1"):
        CappedPoisson(cap=0)
    with pytest.raises(ConfigurationError, match=r"^fixed_shapes=1: must be True or False"):
        CappedPoisson(fixed_shapes=1)  # type: ignore[arg-type]


def test_shapes_do_not_touch_the_draws() -> None:
    plain = inclusion(CappedPoisson(9), 50, 8, 200, seed=13)
    fixed = inclusion(CappedPoisson(9, fixed_shapes=True), 50, 8, 200, seed=13)
    assert (plain == fixed).all()


def test_the_cost_of_fixed_shapes_is_what_the_docstring_says() -> None:
    text = CappedPoisson.__doc__ or ""
    cap = CappedPoisson().resolved_cap(60_000, 2048)
    assert (
        f"batch of 2048 the cap\n            is {cap}, which is {cap / 2048 - 1:.0%}".replace(
            "%", " %"
        )
        in text
    )


def test_cap_is_stored_as_int() -> None:
    assert type(CappedPoisson(cap=np.int64(20)).cap) is int  # type: ignore[arg-type]
    assert CappedPoisson(cap=np.int64(20)) == CappedPoisson(20)  # type: ignore[arg-type]
