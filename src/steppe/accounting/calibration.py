"""How much noise a budget needs: the root of ε(σ) = target."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from steppe import _validate
from steppe.accounting.pld import GRID_POINTS, check_delta, epsilon, epsilon_on_grid
from steppe.accounting.segment import Segment, Segments, check_cap, merged, relation

# The calibrated run spends between (1 - tolerance) times the target and the target.
_TOLERANCE = 5e-4
_SMALLEST, _LARGEST = 1e-2, 1e6
_DIGITS = 5
# The search itself runs on a rough copy of the run: few distinct σ and a coarse grid.
_ROUGH_GROUPS = 6
_ROUGH_POINTS = GRID_POINTS // 16
_ROUGH_TOLERANCE = 0.02


def calibrate(
    make_segments: Callable[[float], Iterable[Segment]],
    epsilon: float,
    delta: float,
    adjacency: str = "add-remove",
) -> float:
    """The smallest noise multiplier with which a run stays inside its budget.

    A rough copy of the run, with its noise rounded down to a few values, leads the search near
    the root; the root is then found and confirmed on the run itself, so that the roughness costs
    no budget. The result is rounded up to five digits.

    Args:
        make_segments: the run as a function of the noise multiplier σ; more σ must mean no more ε.
        epsilon: the budget.
        delta: the δ of (ε, δ)-differential privacy.
        adjacency: `add-remove`, `zero-out` or `replace-one`.

    Returns:
        σ for which the run spends at most `epsilon`, and at least 99.9 % of it.

    Guarantees:
        The PLD value of `make_segments(σ)` at δ was computed and is not above `epsilon`.

    Examples:
        >>> sigma = calibrate(lambda s: [Segment(0.01, s, 2000)], epsilon=2.0, delta=1e-5)
        >>> round(sigma, 2)
        1.16
    """
    _validate.positive("epsilon", epsilon, "a common range is 0.5 to 8")
    check_delta(delta)
    relation(adjacency)

    def exact(sigma: float) -> float:
        return _exact(make_segments(sigma), delta, adjacency)

    def rough(sigma: float) -> float:
        run = merged(make_segments(sigma))
        check_cap(run, adjacency)
        return epsilon_on_grid(
            _few_noise_levels(run, _ROUGH_GROUPS), delta, adjacency, _ROUGH_POINTS
        )

    near, slope = _solve(rough, epsilon, 1.0, -1.5, _ROUGH_TOLERANCE)
    return _solve(exact, epsilon, near, slope, _TOLERANCE)[0]


def _exact(segments: Iterable[Segment], delta: float, adjacency: str) -> float:
    return epsilon(segments, delta, adjacency)


def _solve(
    spent: Callable[[float], float], target: float, start: float, slope: float, tolerance: float
) -> tuple[float, float]:
    """A σ with spent(σ) in [(1 - tolerance)·target, target], and the log-log slope there.

    Secant steps on log ε against log σ, where the curve is almost straight, kept inside a bracket
    that grows fourfold until it holds the root and is halved when a step does not help.
    """
    aim = target * (1 - tolerance / 2)
    too_little, enough = 0.0, math.inf  # σ that overspend, σ that do not
    sigma, previous = _round_up(start), None
    while True:
        value = spent(sigma)
        if (1 - tolerance) * target <= value <= target:
            return sigma, slope
        if value > target:
            too_little = sigma
        else:
            enough = sigma
        if enough <= _round_up(too_little * (1 + 10.0**-_DIGITS)):
            # ε jumps over the interval between two neighbouring σ: take the safe one.
            return enough, slope
        measurable = 0 < value < math.inf
        if measurable and previous is not None and previous[0] != sigma:
            secant = math.log(value / previous[1]) / math.log(sigma / previous[0])
            slope = min(-0.2, max(-20.0, secant))
        if measurable:
            previous = (sigma, value)
            guess = sigma * math.exp(min(4.0, max(-4.0, math.log(aim / value) / slope)))
        else:
            guess = sigma * (4.0 if value > target else 0.25)
        sigma = _round_up(_inside(guess, too_little, enough, target))


def _inside(guess: float, too_little: float, enough: float, target: float) -> float:
    """The guess if the bracket holds it, else the bracket's middle or a step outwards."""
    if too_little >= _LARGEST:
        raise _validate.fail(
            "epsilon",
            target,
            f"is not reached with a noise multiplier of {_LARGEST:g}",
            "ask for more ε, fewer steps or a smaller batch",
        )
    if enough <= _SMALLEST:
        raise _validate.fail(
            "epsilon",
            target,
            f"is not spent even with a noise multiplier of {_SMALLEST:g}",
            "ask for less ε; a budget this large protects nothing",
        )
    low, high = max(too_little, _SMALLEST), min(enough, _LARGEST)
    if too_little == 0.0 or enough == math.inf:
        return min(high, max(low, guess))
    # A step that lands beside an end would shrink the bracket from that end only.
    margin = (high / low) ** 0.02
    return guess if low * margin < guess < high / margin else math.sqrt(low * high)


def _round_up(sigma: float) -> float:
    """The next number with five digits: short enough to print, copy and compare.

    >>> _round_up(2.4767123)
    2.4768
    """
    scale = _DIGITS - 1 - math.floor(math.log10(sigma)) if sigma > 0 else 0
    digits = math.ceil(round(sigma * 10.0**scale, 6))
    return digits / 10.0**scale if scale >= 0 else float(digits * 10**-scale)


def _few_noise_levels(run: Segments, groups: int) -> Segments:
    """The run with its noise multipliers rounded down to at most `groups` values.

    Less noise costs more, so the ε of the result bounds that of the run from above.
    """
    levels = sorted({part.noise_multiplier for part in run})
    if len(levels) <= groups:
        return run
    size = math.ceil(len(levels) / groups)
    floor = {level: levels[i - i % size] for i, level in enumerate(levels)}
    return merged(replace(part, noise_multiplier=floor[part.noise_multiplier]) for part in run)
