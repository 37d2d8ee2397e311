"""Compares passes of different batch sizes, which must treat each record in the same way."""

from __future__ import annotations

import itertools

from steppe.gradients import name_of, on_records
from steppe.isolation import refusals
from steppe.isolation.findings import Asked
from steppe.isolation.operation_notes import OperationNote, difference
from steppe.isolation.operators import COPYING
from steppe.isolation.trace import Trace


def require_same(first: Trace, other: Trace) -> None:
    """Reject paths, numbers, constants and shapes that depend on the batch size."""
    mine = first.operations if other.backward else first.operations[: first.forward_operations]
    require_same_calls(first, other)
    if [note.operation for note in mine] != [note.operation for note in other.operations]:
        # For one record torch omits copies; operations with numeric arguments must be the same.
        tells = _has_numbers if first.calls == other.calls else _computes
        mine, theirs = ([t for t in some if tells(t)] for some in (mine, other.operations))
        if other.records > 1 or [t.operation for t in mine] != [t.operation for t in theirs]:
            raise refusals.number_decides("which operations run (in hooks or backward())")
    else:
        theirs = other.operations
    for one, two in zip(mine, theirs, strict=True):
        found = difference(one, two, first.records, other.records)
        if found is not None:
            place = next(i for i, note in enumerate(first.operations) if note is one)
            raise refusals.number_decides(found, Asked("operations", place, first.records))


def require_same_calls(first: Trace, other: Trace, cause: Exception | None = None) -> None:
    """Reject other functions on records than in the first pass.

    Args:
        first, other: passes of different numbers of records.
        cause: the error that this one explains.
    """
    # Calls without records may depend on the batch size: their results are compared.
    mine, theirs = on_records(first.calls), on_records(other.calls)
    if mine != theirs or (other.backward and first.backward_calls != other.backward_calls):
        what, asked = "in hooks or backward()", None
        for number, (one, two) in enumerate(itertools.zip_longest(mine, theirs)):
            if one != two:
                longer = one is None or (two is not None and len(theirs) > len(mine))
                found = other if longer else first
                place = [i for i, call in enumerate(found.calls) if on_records([call])][number]
                what, asked = name_of(found.calls[place]), Asked("calls", place, found.records)
                break
        raise refusals.number_decides(f"which operations run ({what})", asked) from cause


def _has_numbers(note: OperationNote) -> bool:
    return any(isinstance(value, float) for _, values in note.numbers for value in values)


def _computes(note: OperationNote) -> bool:
    """What is asked where code without records did something else for another number of them."""
    return note.operation not in COPYING
