"""The averages that a run keeps by rule, and the one that is published."""

from __future__ import annotations

import math

from torch import nn

from steppe.averaging import EMA, SWA, Average, PolynomialDecay, Window

PUBLISHED = EMA
BEFOREHAND = "fixed beforehand: choosing the best by private data would cost privacy"
FREE = "no privacy cost, and averaging reduces the noise"


def averages(model: nn.Module, steps: int) -> tuple[Average, ...]:
    """The averages that a run keeps: over about its last fifth, and for SWA its last two fifths.

    Args:
        model: the trained model.
        steps: how many steps the run has.

    Guarantees:
        Post-processing: no privacy cost, however many are kept.
    """
    late = max(1, steps // 5)
    # Rounded to the digits that distinguish this horizon, because the decay is part of the name.
    return (
        EMA(model, decay=round(1 - 2 / (late + 1), 1 + len(str(late)))),
        SWA(model, warmup=0.6, steps=steps),
        Window(model, k=late, block=math.gcd(late, 20)),
        PolynomialDecay(model, gamma=4.0),
    )


def published(model: nn.Module, steps: int) -> Average:
    """That one of the `averages` which is published.

    Args:
        model: what is trained.
        steps: how many steps the run has.

    Examples:
        >>> type(published(nn.Linear(2, 2), steps=200)).__name__
        'EMA'
    """
    return next(kept for kept in averages(model, steps) if isinstance(kept, PUBLISHED))
