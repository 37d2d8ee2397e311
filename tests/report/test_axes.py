"""Every axis can be drawn, and ticks are round and inside."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from steppe.report.axes import Axis, Frame, percent_decimals
from steppe.report.numbers import bound, percent, ticks

FINITE = st.floats(-1e6, 1e6, allow_nan=False)


@given(low=FINITE, high=FINITE, about=st.integers(2, 9))
def test_ticks_are_inside_and_not_too_many(low: float, high: float, about: int) -> None:
    assume(high - low > 1e-6 * max(abs(low), abs(high), 1e-3))
    found = ticks(low, high, about)
    room = 1e-6 * (high - low)
    assert all(low - room <= tick <= high + room for tick in found)
    assert len(set(found)) == len(found)
    assert 1 <= len(found) <= 2 * about + 2


@given(values=st.lists(FINITE, min_size=1, max_size=5))
def test_an_axis_holds_its_values_and_has_a_length(values: list[float]) -> None:
    axis = Axis.around("x", values)
    assert axis.low < axis.high
    assert all(axis.holds(value) for value in values)


@pytest.mark.parametrize("values", [[0.0], [1.0], [0.0, 1.0], [0.97, 0.98], [1.0, 1.0]])
def test_an_axis_of_shares_stays_between_0_and_1_and_opens_where_it_must(
    values: list[float],
) -> None:
    axis = Axis.around("accuracy", values, within=(0.0, 1.0))
    assert 0 <= axis.low < axis.high <= 1
    assert all(axis.holds(value) for value in values)


def test_values_that_are_not_finite_do_not_move_an_axis() -> None:
    assert Axis.around("x", [1.0, math.nan, 2.0, math.inf]).high < 2.2


def test_a_frame_puts_the_ends_at_its_borders() -> None:
    frame = Frame(Axis("x", 0.0, 10.0), Axis("y", -1.0, 1.0), 760, 330, 8)
    assert (frame.across(0.0), frame.across(10.0)) == (frame.left, frame.right)
    assert (frame.up(-1.0), frame.up(1.0)) == (frame.bottom, frame.top)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.9, 0.97), (0.951, 0.957), (0.95, 0.9501)])
def test_ticks_in_percent_are_told_apart(low: float, high: float) -> None:
    words = [percent(tick, percent_decimals(low, high)) for tick in ticks(low, high, 5)]
    assert len(set(words)) == len(words)


@given(epsilon=st.floats(0, 1e6))
def test_a_printed_epsilon_is_never_below_the_true_one(epsilon: float) -> None:
    assert float(bound(epsilon)) >= epsilon - 1e-8
