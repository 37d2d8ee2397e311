"""The second opinion: never below the value of record, and refused where it would be wrong."""

import math

import pytest
from opacus.accountants import RDPAccountant

from steppe.accounting import Segment, epsilon, rdp_epsilon
from steppe.errors import ConfigurationError

RATE = 2048 / 60_000


@pytest.mark.parametrize(
    ("sigma", "steps", "expected"),
    [(0.6, 146, 11.4635), (1.0, 585, 5.9304), (2.0, 1171, 2.8589), (4.0, 2929, 2.0379)],
)
def test_known_values_above_the_value_of_record(sigma: float, steps: int, expected: float) -> None:
    run = [Segment(RATE, sigma, steps)]
    assert rdp_epsilon(run, 1e-5) == pytest.approx(expected, abs=1e-3)
    assert rdp_epsilon(run, 1e-5) > epsilon(run, 1e-5)


def test_agrees_with_opacus_on_a_schedule() -> None:
    run = [Segment(RATE, sigma, 200) for sigma in (2.0, 1.5, 1.0)]
    accountant = RDPAccountant()
    accountant.history = [(part.noise_multiplier, part.rate, part.steps) for part in run]
    assert rdp_epsilon(run, 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


def test_limits() -> None:
    assert rdp_epsilon([], 1e-5) == 0.0
    assert rdp_epsilon([Segment(0.1, 0.0, 1)], 1e-5) == math.inf
    assert rdp_epsilon([Segment(0.1, 1e-200, 1)], 1e-5) == math.inf
    assert 0.0 <= rdp_epsilon([Segment(0.1, 1e300, 1)], 1e-5) < 1e-3
    # dp-accounting and Opacus alike go below zero here without a clamp.
    assert rdp_epsilon([Segment(1e-4, 50.0, 1)], 0.1) == 0.0


def test_replace_one_and_caps_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"adjacency='replace-one': is not covered by the RDP accountant"
    ):
        rdp_epsilon([Segment(0.1, 1.0, 1)], 1e-5, "replace-one")
    with pytest.raises(ConfigurationError, match=r"cap=20: is not covered by the RDP accountant"):
        rdp_epsilon([Segment(0.1, 1.0, 1, cap=20, population=100)], 1e-5, "zero-out")


def test_orders_that_do_not_converge_are_left_out_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert rdp_epsilon([Segment(0.5, 21.28, 100)], 1e-5) > epsilon([Segment(0.5, 21.28, 100)], 1e-5)
    assert not caplog.records
