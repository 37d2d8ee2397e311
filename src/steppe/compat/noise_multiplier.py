"""The noise multiplier for a budget, with the interface of Opacus."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from steppe import accounting
from steppe.accounting import Segment
from steppe.compat.accountant import method_of
from steppe.compat.keywords import refuse_unknown
from steppe.utils import validation

_RDP_PRECISION = 1e-3
# The plan's constants by the names that Opacus has for them, for messages.
TARGETS = {"epsilon": "target_epsilon", "delta": "target_delta"}


def get_noise_multiplier(
    *,
    target_epsilon: float,
    target_delta: float,
    sample_rate: float,
    epochs: int | None = None,
    steps: int | None = None,
    accountant: str = "prv",
    epsilon_tolerance: float = 0.01,
    **unknown: Any,
) -> float:
    """The smallest noise multiplier with which a run stays within its budget.

    Args:
        target_epsilon: the budget.
        target_delta: the δ of (ε, δ)-differential privacy.
        sample_rate: the probability that a record takes part in a step.
        epochs: passes of `ceil(1 / sample_rate)` steps; give this or `steps`.
        steps: number of steps.
        accountant: computes ε: "prv" (tight, the default), "pld" (the same) or "rdp".
        epsilon_tolerance: accepted; σ is as small as the budget allows.

    Returns:
        σ, the noise on the sum in units of the clipping norm.

    Guarantees:
        The ε of the returned σ was computed by this accountant and is at most `target_epsilon`.

    Examples:
        >>> round(
        ...     get_noise_multiplier(
        ...         target_epsilon=2.0, target_delta=1e-5, sample_rate=0.01, epochs=20
        ...     ),
        ...     2,
        ... )
        1.15
    """
    refuse_unknown(get_noise_multiplier, unknown)
    method = method_of(accountant)
    validation.positive("epsilon_tolerance", epsilon_tolerance)
    validation.exactly_one("", steps=steps, epochs=epochs)
    if validation.positive("sample_rate", sample_rate) > 1:
        raise validation.fail("sample_rate", sample_rate, "must be at most 1", "use B / N")
    if epochs is not None:
        length = validation.positive_integer("epochs", epochs) * steps_per_pass(sample_rate)
    else:
        length = validation.positive_integer("steps", steps)

    def run(sigma: float) -> list[Segment]:
        return [Segment(sample_rate, sigma, length)]

    # The RDP value is never below the PLD value, so its search starts here.
    with validation.called(TARGETS):
        sigma = accounting.calibrate(run, target_epsilon, target_delta)
    if method != "rdp":
        return sigma

    def enough(candidate: float) -> bool:
        return accounting.rdp_epsilon(run(candidate), target_delta) <= target_epsilon

    return sigma if enough(sigma) else _smallest(enough, sigma, target_epsilon)


def steps_per_pass(sample_rate: float) -> int:
    """ceil(1/q). If 1/q is a whole number up to rounding errors, that number.

    >>> [steps_per_pass(1 / n) for n in (49, 93, 98, 5000)]
    [49, 93, 98, 5000]
    """
    return math.ceil(1 / sample_rate * (1 - 1e-12))


def _smallest(enough: Callable[[float], bool], too_little: float, target: float) -> float:
    """The smallest value that passes a monotone test, to three digits and rounded up."""
    largest = 1e6
    found = 2 * too_little
    while not enough(found):
        if found > largest:
            raise validation.fail(
                "target_epsilon",
                target,
                f"is exceeded by the RDP account even with a noise multiplier of {largest:g}",
                "use accountant='prv', or ask for more ε",
            )
        too_little, found = found, 2 * found
    while found > too_little * (1 + _RDP_PRECISION):
        middle = math.sqrt(too_little * found)
        too_little, found = (too_little, middle) if enough(middle) else (middle, found)
    return found
