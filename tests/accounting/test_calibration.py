"""Calibration: never above the budget, hardly below it, and quick."""

import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steppe.accounting import Segment, calibrate, epsilon
from steppe.accounting.calibration import _round_up
from steppe.errors import ConfigurationError

RATE = 2048 / 60_000


def constant(steps: int, rate: float = RATE) -> Callable[[float], list[Segment]]:
    return lambda sigma: [Segment(rate, sigma, steps)]


@pytest.mark.parametrize(
    ("budget", "expected"), [(1.0, 4.4608), (2.0, 2.4764), (3.0, 1.8076), (8.0, 0.9822)]
)
def test_known_values(budget: float, expected: float) -> None:
    assert calibrate(constant(1171), budget, 1e-5) == pytest.approx(expected, rel=5e-4)


@settings(max_examples=6, deadline=None)
@given(
    budget=st.floats(0.05, 30.0), rate=st.floats(0.002, 1.0), steps=st.sampled_from([1, 30, 1000])
)
def test_spends_the_budget_and_no_more(budget: float, rate: float, steps: int) -> None:
    make = constant(steps, rate)
    spent = epsilon(make(calibrate(make, budget, 1e-6)), 1e-6)
    assert 0.999 * budget <= spent <= budget


@pytest.mark.parametrize(
    ("budget", "delta"), [(1e-4, 1e-3), (0.01, 0.05), (1e-3, 0.02), (500, 1e-9)]
)
def test_spends_the_budget_where_the_curve_is_steep(budget: float, delta: float) -> None:
    # A large δ alone nearly pays for the run, so ε falls to zero within a few percent of σ.
    make = constant(10, 0.5)
    spent = epsilon(make(calibrate(make, budget, delta)), delta)
    assert 0.999 * budget <= spent <= budget


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_other_relations(adjacency: str) -> None:
    sigma = calibrate(constant(100), 2.0, 1e-5, adjacency)
    assert 0.999 * 2.0 <= epsilon(constant(100)(sigma), 1e-5, adjacency) <= 2.0


def test_a_capped_batch() -> None:
    def make(sigma: float) -> list[Segment]:
        return [Segment(0.1, sigma, 50, cap=130, population=1000)]

    sigma = calibrate(make, 2.0, 1e-5, "zero-out")
    assert 0.999 * 2.0 <= epsilon(make(sigma), 1e-5, "zero-out") <= 2.0
    with pytest.raises(ConfigurationError, match="cannot be used with capped batches"):
        calibrate(make, 2.0, 1e-5)


@pytest.mark.slow
def test_a_schedule_of_forty_levels_takes_seconds() -> None:
    def make(sigma: float) -> list[Segment]:
        return [Segment(RATE, sigma * 0.98**epoch, 29) for epoch in range(40)]

    start = time.process_time()
    sigma = calibrate(make, 3.0, 1e-5)
    assert time.process_time() - start < 10
    assert sigma == pytest.approx(2.8867, rel=1e-3)
    assert 0.999 * 3.0 <= epsilon(make(sigma), 1e-5) <= 3.0


def test_a_tiny_budget_is_kept_by_noise_that_hides_all_within_delta() -> None:
    sigma = calibrate(lambda s: [Segment(0.1, s, 600)], 1e-9, 1e-4)
    assert epsilon([Segment(0.1, sigma, 600)], 1e-4) <= 1e-9
    assert epsilon([Segment(0.1, 0.99 * sigma, 600)], 1e-4) > 1e-9


def test_unreachable_targets_say_why() -> None:
    def fixed_cost(sigma: float) -> list[Segment]:
        return [Segment(0.5, 1.0, 10), Segment(0.5, sigma, 10)]

    with pytest.raises(ConfigurationError, match=r"^epsilon=0\.1: is exceeded even with .*; use"):
        calibrate(fixed_cost, 0.1, 1e-5)
    with pytest.raises(
        ConfigurationError, match=r"^epsilon=1e\+300: is more than the run costs even .*; use"
    ):
        calibrate(constant(1), 1e300, 1e-5)


@pytest.mark.parametrize("budget", [0.0, -1.0, float("nan"), float("inf"), "2"])
def test_bad_budgets_are_refused(budget: float) -> None:
    with pytest.raises(ConfigurationError, match=r"^epsilon="):
        calibrate(constant(1), budget, 1e-5)


@given(st.floats(1e-3, 1e7))
def test_rounding_is_upwards_and_small(sigma: float) -> None:
    rounded = _round_up(sigma)
    assert sigma * (1 - 1e-9) <= rounded <= sigma * (1 + 1.001e-5)
    assert rounded == _round_up(rounded)
