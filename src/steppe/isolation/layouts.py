"""The record axes at each contact, from the owners of its inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from steppe.gradients import ContactLayout, RecordLayout
from steppe.isolation import refusals
from steppe.isolation.owners import FREE, TYPE
from steppe.isolation.trace import FollowedContact, Signal


def layout_of(
    contact: FollowedContact, later: FollowedContact, *, few: int, many: int
) -> ContactLayout:
    """The layout of a contact.

    Args:
        contact: in a pass with few records.
        later: the same contact in a pass with more records.
        few, many: the numbers of records.
    """
    return ContactLayout(
        contact.operation,
        tuple(_layout(contact, *two, few, many) for two in pairs(contact.inputs, later.inputs)),
        tuple(_layout(contact, *two, few, many) for two in pairs(contact.outputs, later.outputs)),
        contact.weights,
    )


def pairs(one: Sequence[Any], other: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Pairs of corresponding items of two passes."""
    if len(one) != len(other):
        raise refusals.number_decides("which operations run")
    return zip(one, other, strict=True)


def _layout(
    contact: FollowedContact, signal: Signal, later: Signal, few: int, many: int
) -> RecordLayout:
    """The record axis of a tensor, from its owners for few records and for more."""
    found = [
        layout
        for layout in _possible(signal, few)
        if layout.fits(later.shape, many) and _agrees(later, layout, many)
    ]
    if not found:
        raise refusals.no_axis(contact.operation, signal.shape, contact.layer)
    return found[0]


def _possible(signal: Signal, records: int) -> Iterator[RecordLayout]:
    shape = signal.shape
    for axis, size in enumerate(shape):
        if not size or size % records:
            continue
        for interleaved in (False, True):
            if interleaved and size == records:
                continue
            layout = RecordLayout.of(shape, records, axis, interleaved)
            if _agrees(signal, layout, records):
                yield layout


def _agrees(signal: Signal, layout: RecordLayout, records: int) -> bool:
    """Whether every element is free or in a row of its owner."""
    if signal.owned is None:
        return True
    owners = signal.owned.owners
    rows = signal.shape[layout.axis] // records
    whose = torch.arange(records, dtype=TYPE, device="cpu")
    whose = whose.repeat(rows) if layout.interleaved else whose.repeat_interleave(rows)
    whose = whose.view([-1 if i == layout.axis else 1 for i in range(len(signal.shape))])
    return bool(((owners == whose) | (owners == FREE)).all())


def require_gradients_alike(contact: FollowedContact, layouts: ContactLayout, records: int) -> None:
    """Reject gradients that return to another record than the one whose output they belong to."""
    for gradient, layout in zip(contact.gradients, layouts.outputs, strict=False):
        if gradient is not None and not _agrees(gradient, layout, records):
            raise refusals.gradients_of_others(contact.operation, contact.layer)
