"""The probability of counts: exact laws of sums of independent integers."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

_NEVER = 1e-15  # values less likely than this are one value


def p_value(sums: NDArray[np.int64] | np.int64 | int, laws: NDArray[np.float64]) -> float:
    """The smallest two-sided p-value of sums, times their number.

    Args:
        sums: what was counted, each a sum of independent numbers.
        laws: the probabilities of 0, 1, 2, … of each number, one a row.
    """
    sums = np.atleast_1d(sums)
    if not sums.size:
        return 1.0
    weights = sum_law(laws)
    sums = np.minimum(sums, len(weights) - 1)
    low, high = np.cumsum(weights)[sums], np.cumsum(weights[::-1])[::-1][sums]
    return float(min(1.0, sums.size * 2 * np.minimum(low, high).min()))


def sum_law(laws: NDArray[np.float64]) -> NDArray[np.float64]:
    """The law of a sum of independent numbers.

    Counts are small where batches are: a normal law would call six coincidences impossible that
    happen once in 3,000 runs. So the law is made whole, by Fourier transforms, whose rounding is
    far below what counts as a surprise.
    """
    from scipy import fft

    distinct, times = np.unique(laws, axis=0, return_counts=True)
    longest = len(laws) * (laws.shape[1] - 1) + 1
    length = fft.next_fast_len(longest, real=True)
    transform = np.ones(length // 2 + 1, dtype=np.complex128)
    for law, power in zip(distinct, times, strict=True):
        transform *= fft.rfft(law, length) ** power
    return np.maximum(fft.irfft(transform, length)[:longest], 0)


def coins(chances: NDArray[np.float64]) -> NDArray[np.float64]:
    """The laws of coins, one a row."""
    return np.stack((1 - chances, chances), axis=1)


def of_values(values: NDArray[np.int64], laws: NDArray[np.float64]) -> NDArray[np.float64]:
    """The laws of whole numbers that are functions of others, row by row, up to the last likely."""
    likely = values[laws > _NEVER]
    found = np.zeros((len(laws), likely.max(initial=0) + 2))
    np.add.at(found, (np.arange(len(laws))[:, None], np.minimum(values, found.shape[1] - 1)), laws)
    return found


def spread_p(numbers: NDArray[np.int64], laws: NDArray[np.float64]) -> float:
    """The p-value of the squared distances of numbers from their means, rounded to integers."""
    value = np.arange(laws.shape[1])
    away = np.square(value - np.rint(laws @ value)[:, None]).astype(np.int64)
    return p_value(away[np.arange(len(laws)), numbers].sum(), of_values(away, laws))


def together_p(a: NDArray[np.bool_], b: NDArray[np.bool_], group_of: NDArray[np.int64]) -> float:
    """The p-value of how often a record is in both of two batches, given how many are in each.

    Given their sizes, batches are drawn like lots: what they share is hypergeometric, with a cap
    and without. That a batch stands in two pairs does not matter: whatever it is, its partner is
    drawn as independently.
    """
    laws, shared = [], 0
    for group in np.unique(group_of):
        left, right = a[:, group_of == group], b[:, group_of == group]
        laws.append(_overlap_law(left.shape[1])[left.sum(axis=1), right.sum(axis=1)])
        shared += int((left & right).sum())
    widest = max(law.shape[1] for law in laws)
    padded = [np.pad(law, ((0, 0), (0, widest - law.shape[1]))) for law in laws]
    return p_value(shared, np.concatenate(padded))


@functools.cache
def _overlap_law(members: int) -> NDArray[np.float64]:
    """The law of what two sets of m and n of the members share, by m and n."""
    from scipy import stats

    number = np.arange(members + 1)
    sizes = number[:, None, None], number[:, None]
    return np.asarray(stats.hypergeom.pmf(number, members, *sizes))
