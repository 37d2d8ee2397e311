"""Runs in which every record takes part in every step. Their ε is known exactly.

Gaussian answers compose to one Gaussian answer, and for that Balle and Wang (arXiv 1805.06530)
give δ as a function of ε in closed form. No grid, no transform, no limit on the number of steps.
"""

from __future__ import annotations

import math

import numpy as np

from steppe.accounting.segment import Segments

# Below this noise ε exceeds 5e5, and the terms of the closed form cancel.
_HOPELESS = 1e-3


def is_full_batch(run: Segments) -> bool:
    """Whether every record takes part in every step."""
    return all(part.rate == 1.0 and part.cap is None for part in run)


def equivalent_noise(run: Segments, adjacency: str) -> float:
    """The noise multiplier of the one Gaussian answer that reveals as much as the whole run.

    Examples:
        >>> from steppe.accounting import Segment
        >>> equivalent_noise((Segment(1.0, 3.0, 4),), "add-remove")
        1.5
    """
    if any(part.noise_multiplier == 0 for part in run):
        return 0.0
    # A record that is replaced takes its part away and brings another.
    shift = 2.0 if adjacency == "replace-one" else 1.0
    information = sum(part.steps / part.noise_multiplier**2 for part in run)
    return 1.0 / (shift * math.sqrt(information))


def epsilon(run: Segments, delta: float, adjacency: str) -> float:
    """The exact ε at δ, rounded up by the tolerance of the root finder."""
    from dp_accounting import get_epsilon_gaussian

    sigma = equivalent_noise(run, adjacency)
    if sigma < _HOPELESS:
        return math.inf
    with np.errstate(divide="ignore"):  # a logarithm of 0 on the way, for the largest of noises
        value = float(get_epsilon_gaussian(sigma, delta))
    return value * (1 + 1e-9) + 1e-11 if value > 0 else 0.0


def delta(run: Segments, epsilon: float, adjacency: str) -> float:
    """The exact δ at ε."""
    from scipy.special import log_ndtr

    sigma = equivalent_noise(run, adjacency)
    if sigma < _HOPELESS:
        return 1.0
    present = float(log_ndtr(0.5 / sigma - epsilon * sigma))
    absent = epsilon + float(log_ndtr(-0.5 / sigma - epsilon * sigma))
    return math.exp(present) * -math.expm1(absent - present) if absent < present else 0.0
