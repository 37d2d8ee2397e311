"""One round of the probe: replace every record in turn and look at what moves."""

from __future__ import annotations

from typing import Any

import torch

from steppe.clipping.probing.isolation import (
    Locator,
    first_mixing,
    require_isolation,
    require_repeatable,
)
from steppe.clipping.probing.shift import START, Shift, shifted
from steppe.clipping.probing.sight import Subject, look
from steppe.errors import SteppeError


def one_round(
    subject: Subject,
    batch: Any,
    others: list[Any],
    seed: int,
    locator: Locator,
    shift: Shift | None,
) -> Shift | None:
    """Replace every record in turn, on the same random numbers.

    Returns:
        Where that was possible: at the weights asked for, closer to the start, or there.
    """
    for place in (*(() if shift is None else shift.and_closer()), START):
        with shifted(subject, place):
            try:
                if _replaced_in_turn(subject, batch, others, seed, locator, place):
                    return place
            except SteppeError:
                raise
            except Exception:  # whatever the model says about weights that are not its own
                if place is START:
                    raise
    return START


def _replaced_in_turn(
    subject: Subject,
    batch: Any,
    others: list[Any],
    seed: int,
    locator: Locator,
    place: Shift | None,
) -> bool:
    """Whether the model runs here as it does at the start; refuses where records meet."""
    base = look(subject, batch, seed)
    if place is not START:
        finite = bool(torch.isfinite(base.losses).all())
        if not finite or not locator.knows(base):
            return False
    for which, other in enumerate(others):
        replaced = look(subject, other, seed)

        def culprit(other: Any = other, which: int = which) -> str | None:
            before = look(subject, batch, seed, modules=True)
            require_repeatable(base, before)
            return first_mixing(before, look(subject, other, seed, modules=True), which)

        require_isolation(base, replaced, which, culprit)
        locator.narrow(base, replaced, which)
    return True
