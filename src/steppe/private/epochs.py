"""Epochs of a plan that is made of steps."""

from __future__ import annotations

import math

# Keeps products that are whole numbers on paper from falling below them.
_ROUNDING = 1e-9


def left_in_epoch(done: int, steps: float) -> int:
    """How many steps the current epoch still has.

    Args:
        done: steps taken so far.
        steps: in an epoch, which need not be a whole number. The n-th epoch ends at the largest
            whole number of steps within n epochs, so that n epochs have all steps of a plan.

    Examples:
        >>> [left_in_epoch(done, 2.4) for done in (0, 1, 2, 4)]
        [2, 1, 2, 3]
    """
    epochs = math.floor(done / steps)
    while (end := math.floor(epochs * steps + _ROUNDING)) <= done:
        epochs += 1
    return end - done
