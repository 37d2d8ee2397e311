"""The value of record against dp-accounting's accountant, closed forms and its own limits."""

import math

import dp_accounting as dpa
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants import PRVAccountant

from steppe.accounting import Segment, delta, epsilon, epsilon_curve, event, pld, rdp_epsilon
from steppe.accounting.segment import merged, relation
from steppe.errors import ConfigurationError

RATE = 2048 / 60_000


def peer(segments: list[Segment], adjacency: str, interval: float) -> float:
    accountant = PLDAccountant(relation(adjacency), interval)
    return float(accountant.compose(event(segments)).get_epsilon(1e-5))


@pytest.mark.parametrize(
    ("sigma", "steps", "expected"),
    [
        (0.6, 146, 9.8322),
        (0.8, 292, 6.2661),
        (1.0, 585, 5.3494),
        (1.5, 1171, 3.9024),
        (2.0, 1171, 2.6225),
        (4.0, 2929, 1.8719),
    ],
)
def test_known_values(sigma: float, steps: int, expected: float) -> None:
    assert epsilon([Segment(RATE, sigma, steps)], 1e-5) == pytest.approx(expected, abs=1e-3)


def test_equals_the_accountant_of_the_library() -> None:
    run = [Segment(RATE, 2.0, 1171)]
    assert epsilon(run, 1e-5) == pytest.approx(peer(run, "add-remove", 1e-4), abs=1e-3)


@pytest.mark.parametrize(
    ("rate", "sigma", "steps", "delta"),
    [
        (0.2, 0.6, 40, 1e-5),  # ε = 23
        (RATE, 0.8, 292, 1e-6),
        (0.01, 1.1, 2000, 1e-5),
        (0.001, 0.7, 5000, 1e-7),
        (0.5, 8.0, 100, 1e-5),
    ],
)
@pytest.mark.filterwarnings("ignore:Optimal order is the largest alpha:UserWarning")
def test_lies_within_what_another_accountant_allows(
    rate: float, sigma: float, steps: int, delta: float
) -> None:
    """Opacus' own discretisation, whose answer is at most twice its error above the truth."""
    accountant = PRVAccountant()
    accountant.history = [(sigma, rate, steps)]
    bound = accountant.get_epsilon(delta, eps_error=0.01)
    assert bound - 0.02 <= epsilon([Segment(rate, sigma, steps)], delta) <= bound


def test_a_schedule_equals_the_accountant_of_the_library() -> None:
    run = [Segment(RATE, 2.0 * 0.9**i, 100) for i in range(4)]
    assert epsilon(run, 1e-5) == pytest.approx(peer(run, "add-remove", 1e-3), rel=1e-3)


@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out"])
def test_without_sampling_it_is_the_exact_gaussian(adjacency: str) -> None:
    # Four full-batch steps at σ are one at σ/2, for which a closed form is known.
    exact = dpa.get_epsilon_gaussian(1.5, 1e-5)
    value = epsilon([Segment(1.0, 3.0, 4)], 1e-5, adjacency)
    assert exact <= value <= exact * 1.0005


def test_replace_one_doubles_the_sensitivity() -> None:
    exact = dpa.get_epsilon_gaussian(0.5, 1e-5)
    value = epsilon([Segment(1.0, 1.0, 1)], 1e-5, "replace-one")
    assert exact <= value <= exact * 1.0005


def test_replace_one_with_sampling_costs_about_twice() -> None:
    run = [Segment(RATE, 2.0, 1160)]
    assert epsilon(run, 1e-5, "replace-one") == pytest.approx(5.22, abs=0.01)


def test_a_cap_costs_nothing_six_deviations_up_and_something_at_three() -> None:
    free = epsilon([Segment(RATE, 2.0, 1160)], 1e-5, "zero-out")
    high = epsilon([Segment(RATE, 2.0, 1160, cap=2300, population=60_000)], 1e-5, "zero-out")
    low = epsilon([Segment(RATE, 2.0, 1160, cap=2183, population=60_000)], 1e-5, "zero-out")
    assert high == pytest.approx(free, rel=1e-3)
    assert low == pytest.approx(2.6448, abs=2e-3)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_a_cap_needs_zero_out(adjacency: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"adjacency='{adjacency}': cannot be used with capped"
    ):
        epsilon([Segment(0.1, 1.0, 1, cap=20, population=100)], 1e-5, adjacency)


def test_limits() -> None:
    assert epsilon([], 1e-5) == 0.0
    assert epsilon([Segment(0.1, 1.0, 0)], 1e-5) == 0.0
    assert delta([], 1.0) == 0.0
    assert epsilon([Segment(0.1, 0.0, 1)], 1e-5) == math.inf
    assert epsilon([Segment(0.1, 1.0, 1), Segment(0.1, 0.0, 1)], 1e-5) == math.inf
    assert delta([Segment(0.1, 0.0, 1)], 1.0) == 1.0
    # A loss too small to matter at this δ costs nothing, and never less than nothing.
    assert epsilon([Segment(1e-4, 50.0, 1)], 0.5) == 0.0


@pytest.mark.parametrize("rate", [0.5, 1.0])
def test_noise_beyond_the_range_of_floats_has_a_bound(rate: float) -> None:
    assert epsilon([Segment(rate, 1e-200, 10)], 1e-5) == math.inf
    assert delta([Segment(rate, 1e-200, 10)], 1.0) == 1.0
    assert 0.0 <= epsilon([Segment(rate, 1e300, 10)], 1e-5) < 1e-3


@pytest.mark.parametrize(
    ("steps", "delta", "gdp"), [(10_000, 1.4e-11, 0.2), (30_000, 1.5e-11, 0.2), (10**6, 1.4e-9, 1)]
)
def test_rounding_of_the_transforms_never_lowers_epsilon(
    steps: int, delta: float, gdp: float
) -> None:
    # A rate this close to 1 goes through the grid, but its true value is the closed form's.
    value = epsilon([Segment(1 - 1e-12, math.sqrt(steps) / gdp, steps)], delta)
    exact = dpa.get_epsilon_gaussian(1 / gdp, delta)
    assert exact * (1 - 1e-9) <= value <= exact * 1.02


def test_delta_covers_the_rounding_too() -> None:
    # A million steps at σ = 1000 tell as much as one at σ = 1.
    run, budget = [Segment(1 - 1e-12, 1000.0, 10**6)], 6.3
    exact = (math.erfc((budget - 0.5) / math.sqrt(2)) / 2) - math.exp(budget) * (
        math.erfc((budget + 0.5) / math.sqrt(2)) / 2
    )
    assert exact <= delta(run, budget) <= exact + 3e-10
    assert delta(run, 60.0) >= 2.0**-52 * 10**6, "what the transforms may lose"


def test_a_delta_below_the_rounding_of_the_run_is_refused() -> None:
    run = [Segment(0.06, 35.0, 630_000)]
    message = (
        r"^delta=3\.6e-11: is below 2\.8e-10, where rounding hides the tail of the privacy loss of "
        r"630000 steps; use 2\.8e-10 or more, or fewer steps\.$"
    )
    with pytest.raises(ConfigurationError, match=message):
        epsilon(run, 3.6e-11)
    assert epsilon(run, 2.8e-10) < math.inf
    with pytest.raises(ConfigurationError, match=r"^steps=1000000000: must be at most 100,000,0"):
        epsilon([Segment(1e-6, 1.0, 10**9)], 1e-5)


def test_a_hundred_million_steps_fit_into_memory() -> None:
    run = merged([Segment(0.999, 1e4, 10**8)])
    composed = pld._composed(run, "add-remove", pld.GRID_POINTS)
    assert composed._pmf_remove.size < 2**23
    exact = dpa.get_epsilon_gaussian(1 / 0.999, 1e-6)
    assert exact * 0.999 <= epsilon(run, 1e-6) <= exact * 1.03


class Counted:
    """In place of a distribution: how many steps it stands for."""

    def __init__(self, steps: int = 1) -> None:
        self.steps = steps

    def self_compose(self, times: int) -> "Counted":
        return Counted(self.steps * times)

    def compose(self, other: "Counted") -> "Counted":
        return Counted(self.steps + other.steps)


@pytest.mark.parametrize("steps", [1, 2**16, 2**16 + 1, 2**16 + 255, 100_000, 10**6 + 7, 10**8 - 1])
def test_no_step_of_a_long_run_is_left_out(steps: int) -> None:
    """The few that are left after a square of them change ε too little for the other tests."""
    assert pld._repeated(Counted(), steps).steps == steps


def test_very_many_rare_steps_are_not_drowned_by_the_grid() -> None:
    run = [Segment(1e-3, 1.0, 10**7)]
    assert 0.9 * rdp_epsilon(run, 1e-7) <= epsilon(run, 1e-7) <= rdp_epsilon(run, 1e-7)


@pytest.mark.parametrize("sigma", [1e-4, 1e-2, 0.1])
def test_hopeless_noise_is_answered_quickly_and_without_warnings(sigma: float) -> None:
    assert epsilon([Segment(0.5, sigma, 10_000)], 1e-5) > 1e4


def test_many_quiet_steps_are_not_drowned_by_the_grid() -> None:
    # The library's default grid says 0.165 and a grid of 1e-3 says 0.349; 1e-5 says 0.15697.
    value = epsilon([Segment(1e-4, 1.0, 100_000)], 1e-6)
    assert 0.1566 < value < 0.1576


def test_delta_and_epsilon_are_inverse() -> None:
    run = [Segment(RATE, 2.0, 500)]
    assert delta(run, epsilon(run, 1e-6)) == pytest.approx(1e-6, rel=1e-4)


def test_curve_rises_as_delta_falls() -> None:
    run = [Segment(RATE, 2.0, 500)]
    curve = epsilon_curve(run, (1e-4, 1e-6, 1e-8))
    assert list(curve) == sorted(curve)
    assert curve[1] == epsilon(run, 1e-6)


@pytest.mark.parametrize(
    ("value", "rule"),
    [(0.0, "strictly between"), (1.0, "strictly between"), (math.nan, "NaN"), (1e-14, "rounding")],
)
def test_bad_delta_is_refused(value: float, rule: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^delta={value!r}: .*{rule}"):
        epsilon([Segment(0.1, 1.0, 1)], value)


def test_bad_adjacency_and_epsilon_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="adjacency='add': must be one of 'add-remove'"):
        epsilon([Segment(0.1, 1.0, 1)], 1e-5, "add")
    with pytest.raises(ConfigurationError, match="epsilon=-1: must be finite and not negative"):
        delta([Segment(0.1, 1.0, 1)], -1)


@settings(max_examples=5, deadline=None)
@given(
    rate=st.floats(0.005, 0.5),
    sigma=st.floats(1.0, 10.0),
    steps=st.integers(1, 2000),
    growth=st.floats(1.05, 2.0),
)
def test_monotone_in_noise_steps_and_rate(
    rate: float, sigma: float, steps: int, growth: float
) -> None:
    base = epsilon([Segment(rate, sigma, steps)], 1e-6)
    slack = 1e-4 * base + 1e-9
    assert epsilon([Segment(rate, sigma * growth, steps)], 1e-6) <= base + slack
    assert epsilon([Segment(rate, sigma, 2 * steps)], 1e-6) >= base - slack
    assert epsilon([Segment(min(1.0, rate * growth), sigma, steps)], 1e-6) >= base - slack


@pytest.mark.slow
def test_very_long_schedules_are_rounded_to_the_safe_side() -> None:
    run = [Segment(0.01, 4.0 - i / 100, 1) for i in range(100)]
    value = epsilon(run, 1e-5)
    exact = peer(run, "add-remove", 1e-3)
    assert exact * 0.99 <= value <= exact * 1.02
