"""The numbers of structured noises with the least mean squared error, by L-BFGS in float64.

The error is S·E: the squared sensitivity of C times the mean variance of the workload's outputs.
Its logarithm is minimised, with gradients written by hand. Sensitivity is that of non-negative
columns whose worst turns begin with the first step, which is what is found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.signal import lfilter

from steppe.accounting import Participation
from steppe.noise.factor import repeated
from steppe.noise.workload import Vector


def least(
    loss: Callable[[Vector], tuple[float, Vector]],
    start: Vector,
    bounds: Sequence[tuple[float | None, float | None]] | None = None,
) -> tuple[Vector, float]:
    """The minimum that L-BFGS reaches from a start, and its value."""
    if not len(start):  # one band, which nothing is left to say about
        return start, loss(start)[0]
    options = {"maxiter": 3000, "maxfun": 6000, "ftol": 1e-14, "gtol": 1e-9, "maxcor": 30}
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return np.asarray(found.x), float(found.fun)


def sensitivity_loss(column: Vector, turns: Participation) -> tuple[float, Vector]:
    """S of a non-negative column, and its gradient."""
    total = repeated(column, turns)
    gradient = np.zeros_like(column)
    for turn in range(turns.times):
        shift = turn * turns.separation
        if shift >= len(column):
            break
        gradient[: len(column) - shift] += 2 * total[shift:]
    return float(total @ total), gradient


def error_loss(outputs: Vector) -> tuple[float, Vector]:
    """E of the first column of the noised workload, and its gradient."""
    weights = np.arange(len(outputs), 0, -1) / len(outputs)
    return float(weights @ np.square(outputs)), 2 * weights * outputs


def banded(start: Vector, workload: Vector, turns: Participation) -> Vector:
    """The best first column of a banded Toeplitz C that begins with 1.

    Args:
        start: where the search begins; its length is the number of bands.
        workload: the first column of a Toeplitz workload.
        turns: of a record.
    """
    steps, bands = len(workload), len(start)

    def loss(free: Vector) -> tuple[float, Vector]:
        column = np.concatenate(([1.0], free))
        squared, of_column = sensitivity_loss(_padded(column, steps), turns)
        outputs = lfilter([1.0], column, workload)
        error, of_outputs = error_loss(outputs)
        # The series a/c changes by −(a/c²) δc.
        change = lfilter([1.0], column, outputs)
        gradient = of_column[:bands] / squared - _correlated(of_outputs, change, bands) / error
        return float(np.log(squared) + np.log(error)), gradient[1:]

    found, _ = least(loss, start[1:], [(0.0, None)] * (bands - 1))
    return np.concatenate(([1.0], found))


def banded_inverse(start: Vector, workload: Vector, turns: Participation) -> Vector:
    """The best first column of a banded Toeplitz C⁻¹ that begins with 1.

    Its other entries −p are those of a renewal process, Σ p < 1 and p > 0, so that no entry of C is
    negative or above 1.
    """
    steps, bands = len(workload), len(start)
    impulse = _padded(np.ones(1), steps)

    def loss(free: Vector) -> tuple[float, Vector]:
        shares = _shares(free)
        inverse = np.concatenate(([1.0], -shares))
        column = lfilter([1.0], inverse, impulse)
        squared, of_column = sensitivity_loss(column, turns)
        error, of_outputs = error_loss(lfilter(inverse, [1.0], workload))
        # The series 1/m changes by −(1/m²) δm, and a·m by a δm.
        change = lfilter([1.0], inverse, column)
        of_inverse = _correlated(of_outputs, workload, bands) / error
        of_inverse -= _correlated(of_column, change, bands) / squared
        of_shares = -of_inverse[1:]
        gradient = shares * (of_shares - float(of_shares @ shares))
        return float(np.log(squared) + np.log(error)), gradient

    shares = np.maximum(-start[1:], 1e-9)
    shares /= max(1.0, shares.sum() / (1 - 1e-6))
    found, _ = least(loss, np.log(shares) - np.log1p(-shares.sum()))
    return np.concatenate(([1.0], -_shares(found)))


def _shares(free: Vector) -> Vector:
    """exp(u) / (1 + Σ exp(u))."""
    largest = max(0.0, float(free.max(initial=0.0)))
    powers = np.exp(free - largest)
    return np.asarray(powers / (np.exp(-largest) + powers.sum()))


def buffers(count: int, workload: Vector, turns: Participation) -> tuple[Vector, Vector]:
    """The best poles and zeros of c(x) = Π (1 − θ̂ x) / Π (1 − θ x), with θ₁ > θ̂₁ > θ₂ > θ̂₂ > ….

    Interlaced, they make c a sum of decaying exponentials with positive weights.

    Args:
        count: how many buffers.
        workload: the first column of a Toeplitz workload.
        turns: of a record.

    Returns:
        The poles θ and the zeros θ̂, falling.
    """
    steps = len(workload)
    impulse = _padded(np.ones(1), steps)

    def loss(free: Vector) -> tuple[float, Vector]:
        ratios = _unit(free)
        points = np.cumprod(ratios)
        poles, zeros = points[0::2], points[1::2]
        column, outputs = impulse, workload
        for pole, zero in zip(poles, zeros, strict=True):
            column = lfilter([1.0, -zero], [1.0, -pole], column)
            outputs = lfilter([1.0, -pole], [1.0, -zero], outputs)
        squared, of_column = sensitivity_loss(column, turns)
        error, of_outputs = error_loss(outputs)
        of_points = np.empty(2 * count)
        for index, point in enumerate(points):
            # d log c = ± x/(1 − p x) dp, and a/c has the other sign.
            sign = 1.0 if index % 2 == 0 else -1.0
            of_c = of_column @ lfilter([0.0, 1.0], [1.0, -point], column) / squared
            of_e = of_outputs @ lfilter([0.0, 1.0], [1.0, -point], outputs) / error
            of_points[index] = sign * (of_c - of_e)
        # p_i = r_0 … r_i, so d/dr_j sums p_i/r_j over i ≥ j; r = 1/(1 + e^−u) has r' = r (1 − r).
        of_ratios = np.cumsum((of_points * points)[::-1])[::-1]
        gradient = of_ratios * (1 - ratios)
        return float(np.log(squared) + np.log(error)), gradient

    best, least_loss = np.zeros(2 * count), np.inf
    for slowest in (2.0, 0.5):  # the longest memory, in runs
        start = _start(count, slowest * steps)
        found, value = least(loss, start, [(-12.0, 25.0)] * (2 * count))
        if value < least_loss:
            best, least_loss = found, value
    points = np.cumprod(_unit(best))
    return np.asarray(points[0::2]), np.asarray(points[1::2])


def _start(count: int, slowest: float) -> Vector:
    """Poles and zeros whose memories fall from `slowest` steps to one in even ratios."""
    memories = np.geomspace(max(slowest, 4.0), 1.0, 2 * count)
    points = np.exp(-1.0 / memories)
    ratios = points / np.concatenate(([1.0], points[:-1]))
    return np.asarray(np.log(ratios) - np.log1p(-ratios))


def _unit(free: Vector) -> Vector:
    return np.asarray(1.0 / (1.0 + np.exp(-free)))


def _padded(column: Vector, steps: int) -> Vector:
    return np.concatenate((column, np.zeros(steps - len(column))))


def _correlated(gradient: Vector, series: Vector, count: int) -> NDArray[np.float64]:
    """Σ_j gradient[j] series[j − k], for k below count."""
    steps = len(series)
    return np.array([gradient[k:] @ series[: steps - k] for k in range(count)])
