"""The proof that a record's loss and gradient depend on that record alone.

A pass is followed for several numbers of records (`trace`). It is proven if every loss and every
signal that reaches a weight belongs to one record, nothing is kept beyond the pass, no value is
read and no number of records is used as a number. Then the same operations run for all values, and
what holds for one batch holds for every batch.
"""

from __future__ import annotations

import gc
import itertools
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from steppe.errors import IsolationError, SteppeError
from steppe.gradients import ContactLayout, Path, RecordLayout, name_of, on_records, path_of
from steppe.isolation import refusals
from steppe.isolation.findings import Asked, NotIsolated
from steppe.isolation.kept_attributes import attributes_kept
from steppe.isolation.operation_notes import OperationNote, difference
from steppe.isolation.operators import COPYING
from steppe.isolation.owners import FREE, TYPE
from steppe.isolation.random_owners import RandomOwners, compare_draws
from steppe.isolation.sizes import code_seen, likely_sizes
from steppe.isolation.trace import FollowedContact, Signal, Trace, trace
from steppe.randomness import global_generators_kept, seed_global_generators
from steppe.utils.batches import each

_RECORDS = 3  # whose owners are looked at
_MORE = 5  # at least: what does not say whose it is shows its record axis by growing
_OPERATIONS = 400  # in all passes of other sizes
_TRIED = 8  # of them at least, where code names so many
_TOSSES = 48  # other random numbers at the most, where Python draws some
_IDLE = 16  # of them in a row that lead to no new path, and it is enough


@dataclass(frozen=True)
class Proof:
    """What was proven.

    Attributes:
        layouts: where the records lie, one entry for each contact.
        bytes_per_record: activations that one record keeps alive.
        paths: the functions of torch that a pass calls on records, in order; several such paths
            where random numbers decide.
        records: the largest number that was followed.
    """

    layouts: list[ContactLayout]
    bytes_per_record: int
    paths: frozenset[Path]
    records: int


def prove(
    model: nn.Module,
    objective: Callable[[Any], Tensor],
    example: Any,
    most: int = 64,
    *,
    activation_bytes: int | None = None,
) -> Proof:
    """Prove that records stand alone, from the operations of a pass on fake tensors.

    Args:
        model: where names and state are read; the objective runs it.
        objective: maps a batch to one loss for each record.
        example: a batch whose shapes and types are copied; its values are not used.
        most: about how many records go through the model at once.
        activation_bytes: how much memory the engine gives to the activations of those that go
            through the model at once; None where it takes that many whatever they need.

    Raises:
        IsolationError: it is not proven. The error names the operation, the layer and the line.
        UnsupportedModelError: the pass can not be followed, for another reason.

    Guarantees:
        Nothing is computed from records. Attributes of modules and random state are as they were.
    """
    with (
        global_generators_kept(),
        attributes_kept(model.modules()),
        _weights_apart(model),
        _placed(model, objective, example),
    ):

        def follow(
            records: int,
            seed: int = 0,
            backward: bool = True,
            random_owners: RandomOwners | None = None,
        ) -> Trace:
            found = _traced(model, objective, example, records, seed, backward, random_owners)
            _require_isolated(found)
            return found

        seed_global_generators(0)
        before = _python_generators()
        try:
            with code_seen() as codes:
                first = follow(_RECORDS)
        except refusals.PlaceDecides as error:  # as in a loop over records
            try:
                few, many = (
                    _traced(model, objective, example, records, backward=False)
                    for records in (_RECORDS, _MORE)
                )
            except SteppeError:
                raise error from None
            _require_same_calls(few, many, error)
            raise
        _require_let_go(first)
        draws = first.reads_random or _python_generators() != before
        held = sum(s.bytes for m in first.contacts for s in (*m.inputs, *m.outputs)) // _RECORDS
        # Fake tensors take no memory; constants take what they take in a step of so many.
        fitting = most if activation_bytes is None else activation_bytes // max(1, held)
        more = max(_MORE, min(most, fitting))
        if getattr(objective, "runs_users_code", True):
            # Once more in the same form: what the first pass has kept may be used now.
            usual, sizes = follow(_RECORDS), likely_sizes(codes, model, _lengths(first), more)
        else:  # torch's own layers keep nothing, and ask for no number of records but one
            usual, sizes = first, [1]
        second = follow(more)
        usual = _with_random_owners(follow, usual, second)
        _require_same(usual, second)
        paths = {found.path for found in (first, usual, second)}
        if not draws:
            tries = max(_TRIED, _OPERATIONS // max(1, len(first.operations)))
            for size in sizes[:tries]:
                found = follow(size, backward=False)
                _require_same(usual, found)
                paths.add(path_of(found.calls, usual.backward_calls))
        else:
            paths |= _random_paths(follow, more, first, paths)
    layouts = [
        ContactLayout(
            contact.operation,
            tuple(_layout(contact, *pair, more) for pair in _pairs(contact.inputs, later.inputs)),
            tuple(_layout(contact, *pair, more) for pair in _pairs(contact.outputs, later.outputs)),
            contact.weights,
        )
        for contact, later in _pairs(first.contacts, second.contacts)
    ]
    for contact, layout in zip(first.contacts, layouts, strict=True):
        _require_gradients_alike(contact, layout)
    return Proof(layouts, max(1, held), frozenset(paths), more)


def _pairs(one: Sequence[Any], other: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    if len(one) != len(other):
        raise refusals.number_decides("which operations run")
    return zip(one, other, strict=True)


def _traced(
    model: nn.Module,
    objective: Callable[[Any], Tensor],
    example: Any,
    records: int,
    seed: int = 0,
    backward: bool = True,
    random_owners: RandomOwners | None = None,
    asked: Asked | None = None,
) -> Trace:
    batch = each(lambda t: t.new_empty((records, *t.shape[1:])), example)
    seed_global_generators(seed)
    try:
        with _uncollected():
            return trace(model, objective, batch, records, backward, seed, random_owners, asked)
    except NotIsolated as stop:
        raise refusals.stopped(stop.finding) from None
    except SteppeError:
        raise
    except Exception as error:  # whatever the model or the loss says
        raise refusals.failed(error, records) from error


@contextmanager
def _uncollected() -> Iterator[None]:
    """What a pass makes stays young, so that no search for it goes through the whole process."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def _placed(model: nn.Module, objective: Callable[[Any], Tensor], example: Any) -> Iterator[None]:
    """Where the number of records decides something, the error says its layer and line.

    They are looked for in one more pass: to know the line of every operation takes longer than the
    rest.
    """
    try:
        yield
    except refusals.NumberDecides as error:
        if error.asked is None:
            raise
        try:
            found = _traced(model, objective, example, error.asked.records, asked=error.asked)
        except SteppeError:
            raise error from None
        if found.answer is None:
            raise
        raise error.at(found.answer) from None


def _require_isolated(found: Trace) -> None:
    """Refuse a pass in which records meet, or that leaves something behind."""
    for finding in found.findings:
        if finding.kind == "reads":  # and the user's code went on after the error
            raise refusals.stopped(finding)
        if finding.kind in ("writes", "carries"):
            raise refusals.keeps(finding)
    _require_own(found.losses, found.records, None)
    for contact in found.contacts:
        for signal in (*contact.inputs, *contact.outputs):
            if signal.owned is not None and signal.owned.origin is not None:
                raise refusals.mixes(signal.owned.origin, contact.layer)
        for gradient in contact.gradients:
            if gradient is not None and gradient.owned is not None and gradient.owned.origin:
                raise refusals.mixes_gradients(gradient.owned.origin, contact.layer)
    for finding in found.findings:
        if finding.kind == "place":
            raise refusals.place_decides(finding)


def _require_let_go(found: Trace) -> None:
    """Refuse what outlives a pass and could be used in another without being known."""
    if any(ref() is not None for ref in found.unmarked):
        gc.collect(1)  # of the pass, and not of all that the process holds
        if any(ref() is not None for ref in found.unmarked):
            gc.collect()
        if any(ref() is not None for ref in found.unmarked):
            raise refusals.kept_unseen()


def _require_own(losses: Signal, records: int, layer: str | None) -> None:
    owned = losses.owned
    if owned is None:
        return  # constant, which the caller refuses
    if owned.origin is not None:
        raise refusals.mixes(owned.origin, layer)
    wanted = torch.arange(records, dtype=TYPE, device="cpu")
    if not bool(((owned.owners == wanted) | (owned.owners == FREE)).all()):
        raise refusals.others_losses()


def _with_random_owners(
    follow: Callable[..., Trace], few: Trace, many: Trace, seed: int = 0
) -> Trace:
    """The pass of few records once more, now that it can be told whose random numbers are drawn."""
    if not any(draw.free for draw in few.draws):
        return few
    random_owners = compare_draws(few.draws, many.draws, few.records, many.records)
    if random_owners is None:
        raise refusals.number_decides("which random numbers are drawn")
    try:
        return follow(few.records, seed, random_owners=random_owners)
    except IsolationError:
        if not random_owners.in_doubt:
            raise
    return follow(few.records, seed, random_owners=replace(random_owners, interleaved=True))


def _random_paths(
    follow: Callable[..., Trace], more: int, first: Trace, known: set[Path]
) -> set[Path]:
    """The paths that other random numbers lead to, each followed for two numbers of records."""
    found, idle = set(known), 0
    for seed in range(1, _TOSSES):
        few, many = follow(_RECORDS, seed), follow(more, seed)
        _require_same(_with_random_owners(follow, few, many, seed), many)
        _require_same_layers(first, few)
        idle = idle + 1 if few.path in found else 0
        found.add(few.path)
        if idle == _IDLE:
            return found
    if idle < _IDLE // 2:
        raise refusals.too_many_paths()
    return found


def _require_same_layers(first: Trace, other: Trace) -> None:
    """Refuse a pass in which chance leaves out weights, which the engine knows by their order."""
    for one, two in itertools.zip_longest(first.contacts, other.contacts):
        if one is None or two is None or one.weights != two.weights:
            raise refusals.layers_by_chance((one or two).layer)


def _require_same(first: Trace, other: Trace) -> None:
    """Refuse what follows the number of records: paths, numbers, constants and shapes."""
    mine = first.operations if other.backward else first.operations[: first.forward_operations]
    _require_same_calls(first, other)
    if [note.operation for note in mine] != [note.operation for note in other.operations]:
        # For one record torch itself leaves copies out; what is told numbers must be the same.
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


def _require_same_calls(first: Trace, other: Trace, cause: Exception | None = None) -> None:
    # What is called without records may follow their number: what comes of it is compared.
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


def _layout(contact: FollowedContact, signal: Signal, later: Signal, more: int) -> RecordLayout:
    """Where the records lie in a tensor, from its owners for a few records and for more."""
    found = [
        layout
        for layout in _possible(signal, _RECORDS)
        if layout.fits(later.shape, more) and _agrees(later, layout, more)
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
    """Whether every element lies where its owner has its rows, or is free."""
    if signal.owned is None:
        return True
    owners = signal.owned.owners
    rows = signal.shape[layout.axis] // records
    whose = torch.arange(records, dtype=TYPE, device="cpu")
    whose = whose.repeat(rows) if layout.interleaved else whose.repeat_interleave(rows)
    whose = whose.view([-1 if i == layout.axis else 1 for i in range(len(signal.shape))])
    return bool(((owners == whose) | (owners == FREE)).all())


def _require_gradients_alike(contact: FollowedContact, layouts: ContactLayout) -> None:
    """Refuse gradients that come back to another record than their output went out from."""
    for gradient, layout in zip(contact.gradients, layouts.outputs, strict=False):
        if gradient is not None and not _agrees(gradient, layout, _RECORDS):
            raise refusals.gradients_of_others(contact.operation, contact.layer)


def _lengths(found: Trace) -> set[int]:
    """Of the axes of what meets weights: a batch of so many records may be taken for a square."""
    return {size for contact in found.contacts for s in contact.inputs for size in s.shape}


def _python_generators() -> bytes:
    """Where Python's generator and NumPy's are: no operation of torch shows what they draw."""
    return pickle.dumps((random.getstate(), np.random.get_state()))


@contextmanager
def _weights_apart(model: nn.Module) -> Iterator[None]:
    """No two numbers of a weight are the same: what starts as zeros will differ after a step.

    Guarantees:
        The weights' own memory is not written: it is put aside and back, whatever happens.
    """
    generator = torch.Generator().manual_seed(1)
    kept = [(p, p.data) for p in model.parameters() if p.requires_grad and p.is_floating_point()]
    try:
        for weight, values in kept:
            noise = torch.empty(values.shape, device="cpu").uniform_(0.5, 1.0, generator=generator)
            size = torch.where(values == 0, 1.0, values)
            weight.data = values + 0.01 * noise.to(values) * size
        yield
    finally:
        for weight, values in kept:
            weight.data = values
