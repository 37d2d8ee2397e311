"""Scales inputs: columns of a table to [−1, 1], the values of all other arrays to [0, 1].

Columns of different scale cannot share one clipping norm: the largest would dominate the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steppe.errors import ConfigurationError, DataError

Bounds = tuple[float, float]
# Given instead of bounds: read them from the records.
FROM_RECORDS = "records"
# Bounds that are read lie so many standard deviations from a column's mean. Measured on tables at
# ε = 2, cutting there costs nothing and keeps one extreme value from flattening all the others.
_DEVIATIONS = 3.0
# Inputs become float32, which holds nothing larger.
LARGEST = float(np.finfo(np.float32).max)


def pair(name: str, given: Any) -> Bounds:
    """Bounds as two numbers, lowest first.

    Args:
        name: of what, for messages.
        given: from the user.
    """
    numbers = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else ()
    if len(numbers) == 2 and all(isinstance(number, Real) for number in numbers):
        low, high = map(float, numbers)
        if low < high and math.isfinite(high - low):
            return low, high
    rule = f"the bounds of {name} must be two finite numbers, ascending"
    raise DataError.about("bounds", given, rule, "give (lowest, highest)")


def from_records(bounds: Any) -> bool:
    """Whether bounds are to be read from the records."""
    return isinstance(bounds, str) and bounds == FROM_RECORDS


def no_middle() -> ConfigurationError:
    """The error where missing values are to be filled in without bounds."""
    rule = "needs bounds, because missing values become the middle between them"
    return ConfigurationError.about("missing", "middle", rule, 'set bounds, or bounds="records"')


def column_bounds(x: NDArray[np.floating[Any]]) -> list[Bounds]:
    """The mean of each column, less and plus three standard deviations; NaN does not count.

    Examples:
        >>> column_bounds(np.array([[0.0, 7.0], [2.0, 7.0], [np.nan, 7.0]]))
        [(-2.0, 4.0), (6.0, 8.0)]
    """
    x = x.astype(np.float64)
    there = ~np.isnan(x)
    count = np.maximum(there.sum(axis=0), 1)
    mean = np.where(there, x, 0.0).sum(axis=0) / count
    mean += np.where(there, x - mean, 0.0).sum(axis=0) / count  # what the first sum rounded away
    deviation = np.sqrt((np.where(there, x - mean, 0.0) ** 2).sum(axis=0) / count)
    size = np.abs(mean)
    # A constant column keeps the middle; beside a large constant, 1 would be lost to rounding.
    varies = deviation > 1e-12 * size
    reach = np.where(varies, _DEVIATIONS * deviation, np.maximum(1.0, 1e-9 * size))
    return [_rounded(low, high) for low, high in zip(mean - reach, mean + reach, strict=True)]


def common_bounds(x: NDArray[np.floating[Any]]) -> Bounds:
    """The smallest and largest of all values; NaN does not count.

    Examples:
        >>> common_bounds(np.array([[[3.0, 10.0]], [[5.0, 4.0]]]))
        (3.0, 10.0)
    """
    there = x[~np.isnan(x)]
    low, high = (float(there.min()), float(there.max())) if len(there) else (0.0, 1.0)
    return _rounded(low, high if high > low else low + max(1.0, 1e-6 * abs(low)))


def read_off(bounds: Any) -> tuple[str, ...]:
    """What was read to find bounds, for the privacy statement.

    Args:
        bounds: those of `column_bounds`, by name or by place, or those of `common_bounds`.

    Examples:
        >>> read_off((0.0, 1.0))
        ('the smallest and the largest of all values were read once, to scale them',)
    """
    if not bounds or from_records(bounds):
        return ()
    if isinstance(bounds, Mapping) or isinstance(bounds[0], list | tuple):
        return ("the mean and the standard deviation of each column were read once, to scale it",)
    return ("the smallest and the largest of all values were read once, to scale them",)


def scaled_columns(
    x: NDArray[np.floating[Any]], bounds: Sequence[Bounds]
) -> NDArray[np.floating[Any]]:
    """Each column cut to its bounds and scaled to [−1, 1]; NaN becomes 0, the middle.

    Examples:
        >>> scaled_columns(np.array([[5.0, -9.0], [np.nan, 1.0]]), [(0, 10), (0, 2)]).tolist()
        [[0.0, -1.0], [0.0, 0.0]]
    """
    low, high = np.array(bounds, np.float64).reshape(-1, 2).T
    return 2.0 * _unit(x, low, high) - 1.0


def scaled_values(x: NDArray[np.floating[Any]], bounds: Bounds) -> NDArray[np.floating[Any]]:
    """All values cut to the same bounds and scaled to [0, 1]; NaN becomes the middle."""
    low, high = np.array(bounds, np.float64)
    return _unit(x, low, high)


def scaled_targets(y: NDArray[Any], bounds: Bounds, clamped: bool) -> NDArray[np.float32]:
    """Numbers to predict, scaled so that the bounds become −1 and 1.

    Args:
        y: the numbers.
        bounds: the lowest and highest value, declared.
        clamped: whether values beyond the bounds are cut there, as of records to train on.

    Examples:
        >>> scaled_targets(np.array([0.0, 150.0, 300.0]), (0, 200), clamped=True).tolist()
        [-1.0, 0.5, 1.0]
    """
    low, high = bounds
    values = np.asarray(y, np.float64)
    values = np.clip(values, low, high) if clamped else values
    scaled: NDArray[np.float32] = (2.0 * (values - low) / (high - low) - 1.0).astype(np.float32)
    return scaled


def _unit(x: NDArray[Any], low: NDArray[Any], high: NDArray[Any]) -> NDArray[np.floating[Any]]:
    found: NDArray[np.floating[Any]] = (np.clip(x, low, high) - low) / (high - low)
    found[np.isnan(found)] = 0.5
    return found


def _rounded(low: float, high: float) -> Bounds:
    """Rounded to six digits of the width, which is enough for a scale and reveals less."""
    digits = 5 - math.floor(math.log10(high - low))
    return round(float(low), digits), round(float(high), digits)
