"""Schedules against their formulas, written out step by step, and what they refuse."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from steppe.errors import ConfigurationError
from steppe.noise import (
    ExponentialSchedule,
    Gaussian,
    NoiseSchedule,
    PolynomialSchedule,
    SeededSource,
    StepSchedule,
    TimeSchedule,
)
from steppe.plan import Plan

# (schedule, its factor as a function of the level)
FORMULAS: list[tuple[NoiseSchedule, Callable[[int], float]]] = [
    (ExponentialSchedule(0.01, every=7), lambda t: math.exp(-0.01 * t)),
    (TimeSchedule(0.05, every=7), lambda t: 1 / (1 + 0.05 * t)),
    (StepSchedule(0.6, every=7), lambda t: 0.6**t),
    (PolynomialSchedule(0.25, every=7), lambda t: 0.75 * (1 - t / 6) ** 3 + 0.25),
    (
        PolynomialSchedule(0.25, period=4, power=2, every=7),
        lambda t: 0.75 * (1 - min(t, 4) / 4) ** 2 + 0.25,
    ),
]
KINDS: list[Callable[..., NoiseSchedule]] = [
    ExponentialSchedule,
    TimeSchedule,
    StepSchedule,
    PolynomialSchedule,
]


def plan(noise: Any, **constants: Any) -> Plan:
    values = {"delta": 1e-5, "batch_size": 64, "population": 4000, "steps": 40} | constants
    return Plan(**values, noise=noise)


@pytest.mark.parametrize(("schedule", "formula"), FORMULAS)
def test_every_step_has_the_noise_of_its_level(
    schedule: NoiseSchedule, formula: Callable[[int], float]
) -> None:
    run = plan(schedule, noise_multiplier=20.0)
    for step in range(40):
        assert run.noise_std_at(step) == pytest.approx(20.0 * formula(step // 7), rel=1e-12)


@pytest.mark.parametrize(("steps", "every"), [(5, 10**400), (10**17 + 1, 2 * 10**14)])
def test_levels_are_counted_in_whole_numbers(steps: int, every: int) -> None:
    """Floats make 0 of 5/10⁴⁰⁰, and forget the one step at the end."""
    levels = StepSchedule(0.999, every=every).relative(steps)
    assert sum(count for count, _ in levels) == steps


@pytest.mark.parametrize(("schedule", "formula"), FORMULAS)
def test_schedules_cover_any_number_of_steps(schedule: NoiseSchedule, formula: object) -> None:
    for steps in (1, 6, 7, 8, 40):
        levels = schedule.relative(steps)
        assert sum(count for count, _ in levels) == steps
        assert levels[0][1] == 1.0


def test_equal_levels_are_one() -> None:
    assert PolynomialSchedule(0.5, period=1, every=5).relative(50) == ((5, 1.0), (45, 0.5))


@pytest.mark.parametrize("kind", KINDS)
def test_the_grid_is_kept(kind: Callable[..., NoiseSchedule]) -> None:
    schedule = kind(0.5, every=3, grid=True)
    assert schedule.grid
    assert isinstance(schedule, Gaussian)
    buffer = torch.zeros(5, dtype=torch.float64)
    source = SeededSource(3)
    schedule.start_(buffer, 1.0, source)
    released = schedule.finish_(buffer, 1.0, 1.0, source)
    assert (released * 2.0**32 == (released * 2.0**32).round()).all()


@pytest.mark.slow
def test_the_whole_schedule_is_calibrated() -> None:
    run = Plan(
        epsilon=3.0,
        delta=1e-5,
        batch_size=2048,
        population=60_000,
        steps=1160,
        noise=StepSchedule(0.98, every=29),
    )
    begin = time.process_time()
    assert run.sigma == pytest.approx(2.887, abs=0.01)
    assert time.process_time() - begin < 20
    assert 2.99 < run.epsilon_spent() <= 3.0


def test_a_time_schedule_falls() -> None:
    """The published code multiplies where the paper divides, so that its noise grows."""
    factors = [factor for _, factor in TimeSchedule(0.05, every=1).relative(9)]
    assert factors == sorted(factors, reverse=True)


def test_the_digest_tells_schedules_apart() -> None:
    noises = [s for s, _ in FORMULAS] + [Gaussian(), StepSchedule(0.6, every=8)]
    assert len({plan(noise, noise_multiplier=20.0).digest() for noise in noises}) == len(noises)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, "fast", None])
def test_shapes_are_positive_numbers(kind: Callable[..., NoiseSchedule], value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"Schedule\.\w+=.*: must .*; .*\."):
        kind(value, every=3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("every", [0, -3, 2.5, math.nan, True, None])
def test_levels_are_whole_numbers_of_steps(kind: Callable[..., NoiseSchedule], every: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"every=.*: must be a whole number.*batch_size"):
        kind(0.5, every=every)


@pytest.mark.parametrize("kind", [StepSchedule, PolynomialSchedule])
def test_schedules_fall(kind: Callable[..., NoiseSchedule]) -> None:
    with pytest.raises(ConfigurationError, match=r"=1.0: must be below 1; use Gaussian\(\)"):
        kind(1.0, every=3)


def test_the_polynomial_is_checked_in_all_its_numbers() -> None:
    with pytest.raises(ConfigurationError, match=r"period=0: must be a whole number"):
        PolynomialSchedule(0.5, period=0, every=3)
    with pytest.raises(ConfigurationError, match=r"power=nan: must not be NaN"):
        PolynomialSchedule(0.5, power=math.nan, every=3)


@pytest.mark.parametrize(
    "schedule", [ExponentialSchedule(1.0, every=1), StepSchedule(0.1, every=2)]
)
def test_a_schedule_that_runs_out_of_noise_is_refused_with_the_plan(
    schedule: NoiseSchedule,
) -> None:
    with pytest.raises(
        ConfigurationError, match=r"falls to .* of its start in step \d+ of 40, .*nothing is priv"
    ):
        plan(schedule, epsilon=3.0)


def test_a_schedule_of_known_length_is_checked_without_a_population() -> None:
    for noise in ({"epsilon": 3.0}, {"noise_multiplier": 1.0}):
        with pytest.raises(ConfigurationError, match="falls to"):
            plan(ExponentialSchedule(1.0, every=1), population=None, **noise)


def test_a_schedule_with_too_many_levels_is_refused_with_the_plan() -> None:
    with pytest.raises(ConfigurationError, match=r"every=1: cuts 5000 steps .*use every=5 or more"):
        plan(TimeSchedule(0.01, every=1), steps=5000, epsilon=3.0)


def test_a_schedule_of_unknown_length_is_checked_when_the_population_is_known() -> None:
    waiting = plan(
        ExponentialSchedule(1.0, every=1), epsilon=3.0, steps=None, epochs=5, population=None
    )
    with pytest.raises(ConfigurationError, match="falls to"):
        waiting.for_population(4000)
