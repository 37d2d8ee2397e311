"""The proof that a record's loss and gradient depend on that record alone.

A pass is followed for several numbers of records (`trace`). It is proven if every loss and every
signal that reaches a weight belongs to one record, nothing is kept beyond the pass, no value is
read and no number of records is used as a number. Then the same operations run for all values, and
what holds for one batch holds for every batch.
"""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from steppe._global_seeds import global_seeds_kept, seed_everything
from steppe.clipping.batches import each
from steppe.clipping.contact import Layouts
from steppe.clipping.layout import Layout
from steppe.errors import SteppeError
from steppe.isolation import refusals
from steppe.isolation.owners import FREE, TYPE
from steppe.isolation.trace import Meeting, Signal, Trace, trace
from steppe.isolation.watch import NotIsolated

_RECORDS = 3  # whose owners are looked at
_MORE = 5  # at least: what does not say whose it is shows its record axis by growing
_ROOM = 320 * 2**20  # bytes of activations that those may have
_OPERATIONS = 400  # in all passes of other sizes, beside those that are always made
_TOSSES = 24  # passes with other random numbers, where Python draws some


@dataclass(frozen=True)
class Proof:
    """What was proven.

    Attributes:
        layouts: where the records lie, one entry for each contact.
        bytes_per_record: activations that one record keeps alive.
        paths: the functions of torch that a pass calls on records, in order; several such paths
            where random numbers decide.
    """

    layouts: list[Layouts]
    bytes_per_record: int
    paths: frozenset[tuple[Any, ...]]


def prove(
    model: nn.Module, objective: Callable[[Any], Tensor], example: Any, most: int = 64
) -> Proof:
    """Prove that records stand alone, from the operations of a pass on fake tensors.

    Args:
        model: where names and state are read; the objective runs it.
        objective: maps a batch to one loss for each record.
        example: a batch whose shapes and types are copied; its values are not used.
        most: about how many records go through the model at once.

    Raises:
        IsolationError: it is not proven. The error names the operation, the layer and the line.
        UnsupportedModelError: the pass can not be followed, for another reason.

    Guarantees:
        Nothing is computed from records. Attributes of modules and random state are as they were.
    """
    with global_seeds_kept(), _attributes_kept(model):

        def follow(records: int, seed: int = 0, back: bool = True) -> Trace:
            found = _traced(model, objective, example, records, seed, back)
            _require_isolated(found)
            return found

        seed_everything(0)
        before = _python_generators()
        first = follow(_RECORDS)
        draws = first.coins or _python_generators() != before
        held = sum(s.bytes for m in first.meetings for s in (*m.inputs, *m.outputs)) // _RECORDS
        more = max(_MORE, min(most, _ROOM // max(1, held)))
        # Once more in the same form: what the first pass has kept may be used now.
        passes = [follow(_RECORDS), second := follow(more)]
        passes += [follow(size, back=False) for size in _sizes(first)]
        if draws:
            passes += [follow(_RECORDS, seed) for seed in range(1, _TOSSES)]
        else:
            for other in passes[1:]:  # a first pass may make what later ones find
                _require_same_numbers(passes[0], other)
        paths = frozenset(tuple(found.calls) for found in (first, *passes))
    layouts = [
        Layouts(
            meeting.operation,
            tuple(_layout(meeting, *pair, more) for pair in _pairs(meeting.inputs, later.inputs)),
            tuple(_layout(meeting, *pair, more) for pair in _pairs(meeting.outputs, later.outputs)),
            meeting.weights,
        )
        for meeting, later in _pairs(first.meetings, second.meetings)
    ]
    for meeting, layout in zip(first.meetings, layouts, strict=True):
        _require_gradients_alike(meeting, layout)
    return Proof(layouts, max(1, held), paths)


def _pairs(one: Sequence[Any], other: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    if len(one) != len(other):
        raise refusals.number_decides("which operations run")
    return zip(one, other, strict=True)


def _traced(
    model: nn.Module,
    objective: Callable[[Any], Tensor],
    example: Any,
    records: int,
    seed: int,
    back: bool,
) -> Trace:
    batch = each(lambda t: t.new_empty((records, *t.shape[1:])), example)
    seed_everything(seed)
    try:
        return trace(model, objective, batch, records, back)
    except NotIsolated as stop:
        raise refusals.stopped(stop.finding) from None
    except SteppeError:
        raise
    except Exception as error:  # whatever the model or the loss says
        raise refusals.failed(error, records) from error


def _require_isolated(found: Trace) -> None:
    """Refuse a pass in which records meet, or that leaves something behind."""
    for finding in found.findings:
        if finding.kind == "reads":  # and the user's code went on after the error
            raise refusals.stopped(finding)
        if finding.kind in ("writes", "carries"):
            raise refusals.keeps(finding)
    _require_own(found.losses, found.records, None)
    for meeting in found.meetings:
        for signal in (*meeting.inputs, *meeting.outputs):
            if signal.owned is not None and signal.owned.origin is not None:
                raise refusals.mixes(signal.owned.origin, meeting.layer)
        for gradient in meeting.gradients:
            if gradient is not None and gradient.owned is not None and gradient.owned.origin:
                raise refusals.mixes_gradients(gradient.owned.origin, meeting.layer)
    for finding in found.findings:
        if finding.kind == "place":
            raise refusals.place_decides(finding)


def _require_own(losses: Signal, records: int, layer: str | None) -> None:
    owned = losses.owned
    if owned is None:
        return  # constant, which the caller refuses
    if owned.origin is not None:
        raise refusals.mixes(owned.origin, layer)
    wanted = torch.arange(records, dtype=TYPE, device="cpu")
    if not bool(((owned.owners == wanted) | (owned.owners == FREE)).all()):
        raise refusals.others_losses()


def _require_same_numbers(first: Trace, other: Trace) -> None:
    """Refuse numbers that follow the number of records, and paths that do."""
    one_way = first.numbers[: first.there]
    numbers = first.numbers if other.back else one_way
    if first.calls != other.calls or len(numbers) != len(other.numbers):
        raise refusals.number_decides(f"which operations run ({_difference(first, other)})")
    for one, two in zip(numbers, other.numbers, strict=True):
        if len(one) != len(two) or not all(map(_close, one[1:], two[1:])):
            raise refusals.number_decides(f"a number in {one[0].__name__}")


def _difference(first: Trace, other: Trace) -> str:
    """How two passes differ, for an error."""
    for one, two in itertools.zip_longest(first.calls, other.calls):
        if one is not two:
            found = one or two
            return getattr(found, "__name__", str(found))
    return "in hooks or backward()"


def _close(one: float, other: float) -> bool:
    """Up to the rounding of constants that were computed for another number of rows."""
    return math.isclose(one, other, rel_tol=1e-4, abs_tol=1e-12) or one != one


def _layout(meeting: Meeting, signal: Signal, later: Signal, more: int) -> Layout:
    """Where the records lie in a tensor, from its owners for a few records and for more."""
    found = [
        layout
        for layout in _possible(signal, _RECORDS)
        if layout.fits(later.shape, more) and _agrees(later, layout, more)
    ]
    if not found:
        raise refusals.no_axis(meeting.operation, signal.shape, meeting.layer)
    return found[0]


def _possible(signal: Signal, records: int) -> Iterator[Layout]:
    shape = signal.shape
    for axis, size in enumerate(shape):
        if not size or size % records:
            continue
        for interleaved in (False, True):
            if interleaved and size == records:
                continue
            layout = Layout.of(shape, records, axis, interleaved)
            if _agrees(signal, layout, records):
                yield layout


def _agrees(signal: Signal, layout: Layout, records: int) -> bool:
    """Whether every element lies where its owner has its rows, or is free."""
    if signal.owned is None:
        return True
    owners = signal.owned.owners
    rows = signal.shape[layout.axis] // records
    whose = torch.arange(records, dtype=TYPE, device="cpu")
    whose = whose.repeat(rows) if layout.interleaved else whose.repeat_interleave(rows)
    whose = whose.view([-1 if i == layout.axis else 1 for i in range(len(signal.shape))])
    return bool(((owners == whose) | (owners == FREE)).all())


def _require_gradients_alike(meeting: Meeting, layouts: Layouts) -> None:
    """Refuse gradients that come back to another record than their output went out from."""
    for gradient, layout in zip(meeting.gradients, layouts.outputs, strict=False):
        if gradient is not None and not _agrees(gradient, layout, _RECORDS):
            raise refusals.gradients_of_others(meeting.operation, meeting.layer)


def _sizes(first: Trace) -> list[int]:
    """Other numbers of records to try: one, and where passes are short those at which code likes
    to do something else."""
    likely = [size for meeting in first.meetings for s in meeting.inputs for size in s.shape]
    likely += [2, 4, 8, 10, 16, 20, 32, 50, 64, 100, 128]
    room = _OPERATIONS // max(1, first.operations)
    others = [size for size in dict.fromkeys(likely) if 1 < size <= 256]
    return [1, *others[:room]]


def _python_generators() -> bytes:
    """Where Python's generator and NumPy's are: no operation of torch shows what they draw."""
    return pickle.dumps((random.getstate(), np.random.get_state()))


@contextmanager
def _attributes_kept(model: nn.Module) -> Iterator[None]:
    """What a pass puts into modules is taken out again: it has no numbers."""
    kept = [(module, dict(vars(module))) for module in model.modules()]
    inside = [
        (value, copy.copy(value))
        for _, attributes in kept
        for value in attributes.values()
        if type(value) in (list, dict, set)
    ]
    try:
        yield
    finally:
        for module, attributes in kept:
            vars(module).clear()
            vars(module).update(attributes)
        for value, before in inside:
            value.clear()
            value.extend(before) if isinstance(value, list) else value.update(before)
