"""How finely the privacy loss is discretised."""

from __future__ import annotations

import math

from steppe.accounting.segment import Segment, Segments

# Rounding up on a grid of width h adds about h²/6 to the variance s² of one step's privacy loss,
# hence a relative h²/(12 s²) to ε: at h = s/100 this is 1e-5.
_GRID_PER_SPREAD = 0.01
# Grid points of the composed distribution, near its mean and within its tails: both bound the
# memory, the first at absurd ε, the second for more than a million steps.
_COMPOSED_POINTS = 2**19
_LARGEST_GRID = 2**20
# Below this width the differences of neighbouring hockey-stick values are rounding noise.
_FINEST_GRID = 2.0**-20
# dp-accounting cuts the noise where its remaining mass is exp(-50): 9.7 standard deviations.
_TAIL = 9.7


def grid_width(run: Segments, adjacency: str, points: int) -> float:
    """A grid fine enough not to matter and coarse enough to be quick; a power of two.

    Powers of two let a run and its beginning share the cached distributions of their steps.
    """
    steps = sum(part.steps for part in run)
    total = sum(part.steps * _spread(part) ** 2 for part in run)
    span = sum(_span(part, adjacency) for part in run)
    width = max(
        _GRID_PER_SPREAD * math.sqrt(total / steps),
        span / points,
        0.5 * total / _COMPOSED_POINTS,  # the mean is half the variance, as for one Gaussian
        2 * _TAIL * math.sqrt(total) / _LARGEST_GRID,
        _FINEST_GRID,
    )
    return float(2.0 ** math.floor(math.log2(width)))


def _spread(part: Segment) -> float:
    """About the standard deviation of one step's privacy loss."""
    exponent = part.noise_multiplier**-2
    amplified = part.rate * math.sqrt(math.expm1(exponent)) if exponent < 700 else math.inf
    return min(amplified, 1 / part.noise_multiplier)


def _span(part: Segment, adjacency: str) -> float:
    """The range of one step's privacy loss that dp-accounting puts on the grid."""
    # A capped batch is analysed as if one record could change it by twice the replace-one change.
    shift = 4.0 if part.cap is not None else 2.0 if adjacency == "replace-one" else 1.0
    scale = part.noise_multiplier / shift
    largest = 0.5 / scale**2 + _TAIL / scale
    if largest > 700:
        return largest
    return math.log1p(part.rate * math.expm1(largest))
