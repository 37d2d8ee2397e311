"""How much each update weighs in an average of T updates, in closed form.

A profile is a vector: entry i − 1 is the weight of update i, and the entries sum to one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steppe.averaging.ema import check_decay, decay_at
from steppe.utils.validation import non_negative, positive_integer


def power_profile(gamma: float, steps: int) -> NDArray[np.float64]:
    """The weights of `PolynomialDecay`: proportional to Γ(i + γ)/Γ(i).

    Unrolling the recursion gives update i the weight (γ+1)/(i+γ) · Π_{j>i} (j−1)/(j+γ), whose
    factors telescope. Neighbours have the ratio 1 + γ/i, which is summed in logarithms.

    Examples:
        >>> power_profile(1, 4)
        array([0.1, 0.2, 0.3, 0.4])
    """
    gamma = non_negative("gamma", gamma)
    ratios = np.log1p(gamma / np.arange(1, positive_integer("steps", steps)))
    logarithms = np.concatenate([[0.0], np.cumsum(ratios)])
    weights = np.exp(logarithms - logarithms[-1])
    return np.asarray(weights / weights.sum())


def ema_profile(decay: float, steps: int, warmup: bool = True) -> NDArray[np.float64]:
    """The weights of `EMA`: (1 − μᵢ) Π_{j>i} μⱼ, and for the first update the product alone.

    Examples:
        >>> ema_profile(0.5, 3, warmup=False)
        array([0.25, 0.25, 0.5 ])
    """
    decay = check_decay(decay)
    steps = positive_integer("steps", steps)
    past = np.array([0.0, *(decay_at(decay, warmup, before) for before in range(1, steps))])
    later = np.concatenate([np.cumprod(past[:0:-1])[::-1], [1.0]])
    return np.asarray((1 - past) * later)
