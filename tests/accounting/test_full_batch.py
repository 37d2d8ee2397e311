"""Full batches: the closed form, and its agreement with the route for sampled runs."""

import math

import dp_accounting as dpa
import pytest

from steppe.accounting import Segment, calibrate, delta, epsilon
from steppe.accounting.full_batch import equivalent_noise, is_full_batch


@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out", "replace-one"])
@pytest.mark.parametrize(
    ("sigma", "steps", "budget"),
    [(300.0, 10**6, 1e-12), (1e4, 10**8, 1e-12), (1e5, 10**10, 1e-5), (0.3, 1, 1e-5)],
)
def test_equals_the_closed_form(sigma: float, steps: int, budget: float, adjacency: str) -> None:
    shift = 2 if adjacency == "replace-one" else 1
    exact = dpa.get_epsilon_gaussian(sigma / math.sqrt(steps) / shift, budget)
    value = epsilon([Segment(1.0, sigma, steps)], budget, adjacency)
    assert exact <= value <= exact * (1 + 2e-9)


def test_a_schedule_adds_up_its_information() -> None:
    run = (Segment(1.0, 3.0, 9), Segment(1.0, 4.0, 48))
    assert equivalent_noise(run, "add-remove") == 0.5
    assert epsilon(run, 1e-5) == epsilon([Segment(1.0, 0.5, 1)], 1e-5)


def test_agrees_with_the_grid_where_almost_everybody_takes_part() -> None:
    full, nearly = ([Segment(rate, 10.0, 100)] for rate in (1.0, 1 - 1e-12))
    assert epsilon(full, 1e-6) == pytest.approx(epsilon(nearly, 1e-6), rel=1e-4)
    assert delta(full, 3.0) == pytest.approx(delta(nearly, 3.0), rel=1e-3)


def test_delta_and_epsilon_are_inverse() -> None:
    run = [Segment(1.0, 50.0, 900)]
    for value in (1e-2, 1e-6, 1e-12):
        assert delta(run, epsilon(run, value)) == pytest.approx(value, rel=1e-6)


def test_limits() -> None:
    assert epsilon([Segment(1.0, 0.0, 1)], 1e-5) == math.inf
    assert epsilon([Segment(1.0, 1e-5, 1)], 1e-5) == math.inf
    assert delta([Segment(1.0, 1e-5, 1)], 1.0) == 1.0
    assert delta([Segment(1.0, 1.0, 1)], 1e4) == 0.0
    assert epsilon([Segment(1.0, 100.0, 1)], 0.5) == 0.0
    assert is_full_batch((Segment(1.0, 1.0, 1),))
    assert not is_full_batch((Segment(1.0, 1.0, 1), Segment(0.5, 1.0, 1)))
    assert not is_full_batch((Segment(1.0, 1.0, 1, cap=10, population=10),))


def test_calibrates_to_the_closed_form() -> None:
    sigma = calibrate(lambda s: [Segment(1.0, s, 100)], 1.0, 1e-5)
    assert sigma == pytest.approx(10 * dpa.get_sigma_gaussian(1.0, 1e-5), rel=5e-4)
