"""Rejects a model in which replacing one record changes another record's loss."""

from __future__ import annotations

from collections.abc import Callable

from steppe.errors import IsolationError
from steppe.gradients import same
from steppe.probing.observed_pass import ObservedPass
from steppe.probing.record_axis import RecordPlace


def require_isolation(
    base: ObservedPass, replaced: ObservedPass, which: int, culprit: Callable[[], str | None]
) -> None:
    """Reject a pass in which a record's loss changed when another record was replaced.

    Args:
        base: the pass with all original records.
        replaced: the pass with record `which` replaced, with the same random numbers.
        which: the record.
        culprit: finds the layer to name, or None for the loss. It runs the model again, so it is
            only called for an error.
    """
    rest = [i for i in range(len(base.losses)) if i != which]
    if not same(replaced.losses[rest], base.losses[rest]):
        raise _mixing(culprit())
    kept = [
        name
        for name, value in replaced.buffers.items()
        if name not in base.buffers or not same(value, base.buffers[name])
    ]
    if kept:
        raise IsolationError(
            f"buffers={kept[:3]}: must not depend on the records, because they carry one record's "
            "values to the next without noise; put these layers in eval mode, or replace batch "
            "normalisation with steppe.fix(model)."
        )


def _mixing(layer: str | None) -> IsolationError:
    from steppe.isolation import refusals

    if layer is None:
        return refusals.loss_mixes(": another record's loss moved when one was replaced")
    return refusals.layer_mixes(layer, "another record's output moved when one was replaced")


def require_repeatable(base: ObservedPass, again: ObservedPass) -> None:
    """Reject losses that differ for the same records and seeds, which cannot be compared."""
    if not same(again.losses, base.losses):
        raise IsolationError(
            "losses=not repeatable: must be the same for the same records and seeds; keep nothing "
            "from earlier records in the model, and take random numbers from the global generators "
            "of torch, NumPy or Python."
        )


def first_mixing(base: ObservedPass, replaced: ObservedPass, which: int) -> str | None:
    """The first module whose output mixes records.

    Returns:
        Its name; if its own code mixes them, also the next module inside it; None if no module's
        output mixes records.
    """
    records = len(base.losses)
    for (name, before), (_, after) in zip(base.modules, replaced.modules, strict=False):
        place = RecordPlace(before, records)
        place.narrow(before, after, which)
        if place.moved and not place.possible:
            return name
    return None
