"""Runs in the accountant's terms: validation, merging, events."""

from fractions import Fraction

import dp_accounting as dpa
import numpy as np
import pytest

from steppe.accounting import Segment, event
from steppe.accounting.segment import merged, with_few_levels
from steppe.errors import ConfigurationError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rate": -0.1}, r"rate=-0\.1: must be finite and not negative; use batch size over pop"),
        ({"rate": 1.5}, r"rate=1\.5: must be at most 1; use a smaller batch\."),
        ({"rate": float("nan")}, r"rate=nan: must not be NaN"),
        ({"noise_multiplier": -1.0}, r"noise_multiplier=-1\.0: must be finite and not negative"),
        ({"noise_multiplier": float("inf")}, r"noise_multiplier=inf"),
        ({"steps": -1}, r"steps=-1: must be a whole number"),
        ({"steps": 1.5}, r"steps=1\.5: must be a whole number"),
        ({"cap": 0, "population": 10}, r"cap=0"),
        ({"cap": 5}, r"population=None: .*; a cap needs the population\."),
    ],
)
def test_bad_segments_are_refused_by_name(arguments: dict[str, float], message: str) -> None:
    valid = {"rate": 0.1, "noise_multiplier": 1.0, "steps": 1}
    with pytest.raises(ConfigurationError, match=message):
        Segment(**{**valid, **arguments})


def test_numbers_are_stored_as_plain_ones() -> None:
    given = Segment(np.float32(0.5), Fraction(3, 2), np.int64(3), np.int64(4), np.int64(9))  # type: ignore[arg-type]
    plain = [given.rate, given.noise_multiplier, given.steps, given.cap, given.population]
    assert [type(value) for value in plain] == [float, float, int, int, int]
    assert given == Segment(0.5, 1.5, 3, 4, 9)


def test_merging_keeps_the_steps_of_every_mechanism() -> None:
    run = [Segment(0.1, 1.0, 3), Segment(0.2, 1.0, 4), Segment(0.1, 1.0, 5), Segment(0.1, 2.0, 0)]
    assert merged(run) == (Segment(0.1, 1.0, 8), Segment(0.2, 1.0, 4))


def test_few_levels_round_noise_down_and_keep_every_step() -> None:
    run = tuple(Segment(0.1, 1 + i / 100, i + 1) for i in range(30))
    few = with_few_levels(run, 7, min)
    assert len(few) <= 7
    assert sum(part.steps for part in few) == sum(part.steps for part in run)
    # Sorted step by step, no step has gained noise.
    before, after = (
        sorted(part.noise_multiplier for part in parts for _ in range(part.steps))
        for parts in (run, few)
    )
    assert all(low <= true for low, true in zip(after, before, strict=True))


def test_event_of_each_kind_of_run() -> None:
    step = dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(1.0))
    assert event([]) == dpa.NoOpDpEvent()
    assert event([Segment(0.1, 1.0, 0)]) == dpa.NoOpDpEvent()
    assert event([Segment(0.1, 1.0, 3)]) == dpa.SelfComposedDpEvent(step, 3)
    mixed = event([Segment(0.1, 1.0, 3), Segment(0.1, 1.0, 1, cap=20, population=100)])
    capped = dpa.TruncatedSubsampledGaussianDpEvent(100, 0.1, 20, 1.0)
    expected = [dpa.SelfComposedDpEvent(step, 3), dpa.SelfComposedDpEvent(capped, 1)]
    assert mixed == dpa.ComposedDpEvent(expected)
