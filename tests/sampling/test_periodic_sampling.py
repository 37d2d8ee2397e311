"""Two groups that come and go: rates by closed form, draws by those rates, groups that fit."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from steppe.errors import ConfigurationError
from steppe.noise import SecureSource, SeededSource
from steppe.sampling import Periodic


def in_halves(records: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Even rows and odd rows."""
    return torch.arange(0, records, 2), torch.arange(1, records, 2)


@pytest.mark.parametrize(("period", "first"), [(2, 0.5), (7, 0.3), (32, 0.5), (9, 0.9)])
def test_rates_follow_the_triangle_wave(period: int, first: float) -> None:
    sampler, population, batch = Periodic(period, first), 1000, 80
    sizes = (round(first * population), population - round(first * population))
    for step in range(2 * period):
        ((count, rates),) = sampler.rates(population, batch, step, step + 1)
        share = abs(Fraction(2 * (step % period), period) - 1)
        assert count == 1
        for rate, part, size in zip(rates, (share, 1 - share), sizes, strict=True):
            exact = min(Fraction(1), batch * part / size)
            assert float(exact) * (1 - 1e-15) <= rate <= float(exact) * (1 + 1e-15)
            assert Fraction(rate) * 2**64 == int(rate * 2**64), "not a threshold over 2⁶⁴"


@pytest.mark.parametrize(("start", "stop"), [(0, 40), (3, 4), (5, 23), (11, 150), (7, 7)])
def test_rates_of_a_stretch_are_those_of_its_steps(start: int, stop: int) -> None:
    sampler = Periodic(11, first=0.4)
    one_by_one: dict[tuple[float, ...], int] = {}
    for step in range(start, stop):
        ((_, rates),) = sampler.rates(100, 30, step, step + 1)
        one_by_one[rates] = one_by_one.get(rates, 0) + 1
    assert {rates: count for count, rates in sampler.rates(100, 30, start, stop)} == one_by_one


def test_the_expected_batch_stays() -> None:
    sampler = Periodic(16, first=0.3)
    for _, (one, two) in sampler.rates(1000, 100, 0, 16):
        assert 300 * one + 700 * two == pytest.approx(100)


def test_a_rate_never_exceeds_one() -> None:
    rates = [max(pair) for _, pair in Periodic(4, first=0.1).rates(100, 60, 0, 4)]
    assert max(rates) == 1.0


def test_draws_have_the_rates() -> None:
    period, batch, records, steps = 6, 24, 80, 12_000
    sampler, groups = Periodic(period), in_halves(records)
    draw, source = sampler.begin(records, records, batch, groups), SeededSource(1)
    table = np.zeros((steps, records), dtype=np.int64)
    for step in range(steps):
        rows = draw(step, source)
        assert rows.dtype == torch.int64
        assert torch.equal(rows, rows.sort().values)
        table[step, rows.numpy()] = 1
    for phase in range(period):
        ((_, rates),) = sampler.rates(records, batch, phase, phase + 1)
        for group, rate in zip(groups, rates, strict=True):
            part = table[phase::period][:, group.numpy()]
            assert stats.binomtest(int(part.sum()), part.size, rate).pvalue > 1e-5
            if rate > 0:
                sizes, variance = part.sum(axis=1), len(group) * rate * (1 - rate)
                score = (sizes.var() / variance - 1) / math.sqrt(2 / len(sizes))
                assert abs(score) < 5, "records of a group do not toss their own coins"
    one, two = table[1::period, ::2].sum(axis=1), table[1::period, 1::2].sum(axis=1)
    assert abs(np.corrcoef(one, two)[0, 1]) < 5 / math.sqrt(len(one)), "groups are not independent"


def test_a_group_rests_at_rate_zero_and_is_complete_at_rate_one() -> None:
    one, two = in_halves(20)
    draw = Periodic(2).begin(20, 20, 10, (one, two))
    for step in range(20):
        assert torch.equal(draw(step, SecureSource()), two if step % 2 else one)


def test_empty_batches_are_drawn() -> None:
    draw, source = Periodic(4).begin(10, 10, 0.05, in_halves(10)), SeededSource(3)
    sizes = [len(draw(step, source)) for step in range(400)]
    assert 0.8 < sum(size == 0 for size in sizes) / 400 < 1


def test_groups_may_differ_from_their_declared_sizes() -> None:
    """A group larger than declared makes larger batches at the same rate."""
    groups = (torch.arange(90), torch.arange(90, 100))
    draw, source = Periodic(2).begin(100, 100, 10, groups), SeededSource(4)
    taken = sum(len(draw(0, source)) for _ in range(500))
    assert stats.binomtest(taken, 500 * 90, 10 / 50).pvalue > 1e-4
    assert len(Periodic(2).begin(5, 100, 10, (torch.arange(5), torch.arange(0)))(1, source)) == 0


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (None, r"groups=None: must be 2 arrays of row numbers.*by_parity"),
        (([0, 1, 2, 3],), r"groups='1 arrays': must be 2 arrays"),
        (5, r"groups=5: must be 2 arrays"),
        (([0, 1], [2]), r"groups='3 rows': must hold each of the 4 rows exactly once"),
        (([0, 1], [1, 2, 3]), r"groups='5 rows': must hold each of the 4 rows exactly once"),
        (([0, 1], [2, 4]), r"exactly once"),
        (([True, False, True, False], [1, 3]), r"groups\[0\]=torch.bool: must be a flat array"),
        (([0.0, 1.0], [2, 3]), r"groups\[0\]=torch.float32: must be a flat array of whole row"),
    ],
)
def test_groups_that_do_not_fit(groups: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Periodic(4).begin(4, 4, 1, groups)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"period": 1}, r"period=1: must be at least 2 steps"),
        ({"period": 10**400}, r"must be at least 2 steps and at most 2⁵³; a group must be able"),
        ({"period": 2.5}, r"period=2\.5: must be a whole number"),
        ({"period": 4, "first": 0.0}, r"first=0\.0: must lie strictly between 0 and 1"),
        ({"period": 4, "first": float("nan")}, r"first=nan: must not be NaN"),
    ],
)
def test_bad_constants(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Periodic(**arguments)  # type: ignore[arg-type]


def test_a_share_that_leaves_a_group_empty() -> None:
    with pytest.raises(ConfigurationError, match=r"first=0\.001: leaves one group of the 100 reco"):
        Periodic(4, first=0.001).sizes(100)
