"""How much noise a budget needs: the root of ε(σ) = target."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from steppe.accounting import pld
from steppe.accounting.segment import (
    LARGEST_NOISE,
    Segment,
    Segments,
    with_few_levels,
    with_few_rates,
)
from steppe.errors import ConfigurationError
from steppe.utils import validation

# The calibrated run spends between (1 - tolerance) times the target and the target.
_TOLERANCE = 5e-4
_SMALLEST, _LARGEST = 1e-2, LARGEST_NOISE
_DIGITS = 6
_LESS = 1 - 2 * 10.0 ** (1 - _DIGITS)
_STRIDE = math.log(8.0)
_SECANT_TRIES = 8
# The search itself runs on a rough copy of the run: few distinct σ and rates, a coarse grid.
_ROUGH_LEVELS = 6
_ROUGH_POINTS = pld.GRID_POINTS // 16
_ROUGH_TOLERANCE = 4e-3


def calibrate(
    make_segments: Callable[[float], Iterable[Segment]],
    epsilon: float,
    delta: float,
    adjacency: str = "add-remove",
) -> float:
    """The smallest noise multiplier with which a run stays inside its budget.

    See `calibrate_worst`, which does the same where several groups of records are run side by side.

    Args:
        make_segments: the run as a function of the noise multiplier σ; more σ must mean no more ε.
        epsilon: the budget.
        delta: the δ of (ε, δ)-differential privacy.
        adjacency: `add-remove`, `zero-out` or `replace-one`.

    Returns:
        σ for which the run spends at most `epsilon`, and at least 99.9 % of it as far as six
        digits of σ can tell.

    Guarantees:
        The PLD value of `make_segments(σ)` at δ was computed and is not above `epsilon`.

    Examples:
        >>> sigma = calibrate(lambda s: [Segment(0.01, s, 2000)], epsilon=2.0, delta=1e-5)
        >>> round(sigma, 2)
        1.15
    """
    return calibrate_worst(lambda sigma: (make_segments(sigma),), epsilon, delta, adjacency)


def calibrate_worst(
    make_runs: Callable[[float], Iterable[Iterable[Segment]]],
    epsilon: float,
    delta: float,
    adjacency: str = "add-remove",
) -> float:
    """The smallest noise multiplier with which each of several runs stays inside one budget.

    A rough copy of the runs, with few distinct mechanisms and on a coarse grid, leads the search
    near the root; the root is then found and confirmed on the runs themselves, so that the
    roughness costs time but no budget. The result is rounded up to six digits.

    Args:
        make_runs: the run of each group of records as a function of σ; more σ must mean no more ε.
        epsilon: the budget.
        delta: the δ of (ε, δ)-differential privacy.
        adjacency: `add-remove`, `zero-out` or `replace-one`.

    Returns:
        σ for which no run spends more than `epsilon`, and one of them at least 99.9 % of it as far
        as six digits of σ can tell.

    Guarantees:
        The PLD value of every run at σ was computed and is not above `epsilon`.

    Examples:
        >>> runs = lambda s: ([Segment(0.01, s, 2000)], [Segment(0.002, s, 2000)])
        >>> round(calibrate_worst(runs, epsilon=2.0, delta=1e-5), 2)
        1.15
    """
    validation.positive("epsilon", epsilon, "a common range is 0.5 to 8")

    def runs(sigma: float) -> list[Segments]:
        # Groups that meet the same mechanisms, in whatever order, need to be looked at once.
        return list(dict.fromkeys(pld.checked(run, adjacency) for run in make_runs(sigma)))

    for run in runs(1.0):
        pld.check_delta(delta, run)

    def exact(sigma: float) -> float:
        return max(pld.epsilon(run, delta, adjacency) for run in runs(sigma))

    def rough(sigma: float) -> float:
        few = (
            with_few_rates(
                with_few_levels(run, _ROUGH_LEVELS, _equivalent_noise), _ROUGH_LEVELS, _mean
            )
            for run in runs(sigma)
        )
        return max(pld.epsilon_on_grid(run, delta, adjacency, _ROUGH_POINTS) for run in few)

    near, slope = _solve(rough, epsilon, 1.0, -1.5, _ROUGH_TOLERANCE)
    return _solve(exact, epsilon, near, slope, _TOLERANCE)[0]


def _solve(
    spent: Callable[[float], float], target: float, start: float, slope: float, tolerance: float
) -> tuple[float, float]:
    """A σ with spent(σ) in [(1 - tolerance)·target, target], and the log-log slope there.

    Secant steps on log ε against log σ, where the curve is almost straight, kept inside the
    bracket of what is known; if a few of them do not arrive, the bracket is halved instead.
    """
    too_little, enough = 0.0, math.inf  # the largest σ that overspends, the smallest that does not
    overspent, reached = math.inf, 0.0  # what they spend
    sigma, previous, tries = _round_up(start), None, 0
    while True:
        value = spent(sigma)
        if (1 - tolerance) * target <= value <= target:
            return sigma, slope
        if value > target:
            too_little, overspent = sigma, value
        else:
            enough, reached = sigma, value
        if enough <= _next(too_little):
            # No number with six digits lies between: ε jumps here, so take the safe side. A
            # change of grid makes it jump by a hair, noise that hides a record within δ makes it
            # jump to 0, and overflow near ε = 700 makes it jump to ∞.
            if reached < target / 2 and overspent == math.inf:
                raise _not_spent(target, enough)
            return enough, slope
        if 0 < value < math.inf:
            if previous is not None:
                secant = math.log(value / previous[1]) / math.log(sigma / previous[0])
                slope = min(-0.2, max(-20.0, secant))
            previous = (sigma, value)
            shift = math.log(target * (1 - tolerance / 2) / value) / slope
            guess = sigma * math.exp(min(_STRIDE, max(-_STRIDE, shift)))
        else:
            guess = sigma * math.exp(_STRIDE if value > target else -_STRIDE)
        if too_little == 0.0 or enough == math.inf:
            # Rounding must not lead back to where we are.
            guess = max(guess, _next(sigma)) if value > target else min(guess, sigma * _LESS)
            sigma = _round_up(_within_range(guess, too_little, enough, target))
        else:
            tries += 1
            helps = too_little < guess < enough and tries <= _SECANT_TRIES
            sigma = _round_up(guess if helps else math.sqrt(too_little * enough))
            if not too_little < sigma < enough:
                sigma = _next(too_little)


def _within_range(guess: float, too_little: float, enough: float, target: float) -> float:
    """The guess within the range of σ that make sense, or why the target is out of reach."""
    if too_little >= _LARGEST:
        raise validation.fail(
            "epsilon",
            target,
            f"is exceeded even with a noise multiplier of {_LARGEST:g}",
            "use a larger epsilon, fewer steps or a smaller batch",
        )
    if enough <= _SMALLEST:
        raise _not_spent(target, enough)
    return min(_LARGEST, max(_SMALLEST, guess))


def _not_spent(target: float, sigma: float) -> ConfigurationError:
    return validation.fail(
        "epsilon",
        target,
        f"is more than the run costs even with a noise multiplier of {sigma:g}",
        "use a smaller epsilon or a smaller delta",
    )


def _round_up(sigma: float) -> float:
    """The next number with six digits: short enough to print, copy and compare.

    >>> _round_up(2.47671234)
    2.47672
    """
    scale = _DIGITS - 1 - math.floor(math.log10(sigma)) if sigma > 0 else 0
    digits = math.ceil(round(sigma * 10.0**scale, 6))
    return digits / 10.0**scale if scale >= 0 else float(digits * 10**-scale)


def _next(sigma: float) -> float:
    """The number with six digits that follows one."""
    return _round_up(sigma * (1 + 10.0**-_DIGITS))


def _equivalent_noise(levels: Sequence[float]) -> float:
    """The noise multiplier that costs about as much as these do in turn."""
    return math.sqrt(len(levels) / sum(level**-2 for level in levels))


def _mean(rates: Sequence[float]) -> float:
    """The rate that costs about as much as these do in turn."""
    return math.sqrt(sum(rate**2 for rate in rates) / len(rates))
