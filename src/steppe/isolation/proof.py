"""Proves that a record's loss and gradient depend on that record alone.

A pass is followed for several batch sizes (`trace`). It is proven if every loss and every signal
that reaches a weight belongs to one record, nothing is stored beyond the pass, no value is read and
no result depends on the batch size. Then the same operations run for all values, and what holds for
one batch holds for every batch.
"""

from __future__ import annotations

import gc
import itertools
import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from steppe.errors import IsolationError, SteppeError
from steppe.gradients import ContactLayout, Path, path_of
from steppe.isolation import refusals
from steppe.isolation.comparison import require_same, require_same_calls
from steppe.isolation.findings import Asked, NotIsolated
from steppe.isolation.kept_attributes import attributes_kept
from steppe.isolation.layouts import layout_of, pairs, require_gradients_alike
from steppe.isolation.owners import FREE, TYPE
from steppe.isolation.random_owners import RandomOwners, compare_draws
from steppe.isolation.sizes import code_seen, likely_sizes
from steppe.isolation.trace import Signal, Trace, trace
from steppe.randomness import global_generators_kept, seed_global_generators
from steppe.utils.batches import each

_RECORDS = 3  # records whose owners are compared
_MORE = 5  # at least; the record axis of values without owner is the axis that grows
_OPERATIONS = 400  # in all passes of other batch sizes
_TRIED = 8  # of them at least, if code contains so many constants
_TOSSES = 48  # passes with other random numbers at most, if Python draws some
_IDLE = 16  # passes without a new path after which the search ends


@dataclass(frozen=True)
class Proof:
    """What was proven.

    Attributes:
        layouts: the record axes, one entry for each contact.
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
    """Prove isolation from the operations of a pass on fake tensors.

    Args:
        model: gives names and state; the objective runs it.
        objective: maps a batch to one loss for each record.
        example: a batch whose shapes and types are copied; its values are not used.
        most: about how many records pass through the model at once.
        activation_bytes: the memory that the engine allows for the activations of a physical batch;
            None if the number of records is fixed.

    Raises:
        IsolationError: it is not proven. The error names the operation, the layer and the line.
        UnsupportedModelError: the pass cannot be followed for another reason.

    Guarantees:
        Nothing is computed from records. Attributes of modules and random state are restored.
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
            require_same_calls(few, many, error)
            raise
        _require_let_go(first)
        draws = first.reads_random or _python_generators() != before
        held = sum(s.bytes for m in first.contacts for s in (*m.inputs, *m.outputs)) // _RECORDS
        # Fake tensors take no memory; constants take as much as in a step of this size.
        fitting = most if activation_bytes is None else activation_bytes // max(1, held)
        more = max(_MORE, min(most, fitting))
        if getattr(objective, "depends_on_no_size", False):
            usual, sizes = first, [1]  # such code stores nothing, and only one record is special
        else:
            # Again with the same shapes: this pass may use what the first one stored.
            usual, sizes = follow(_RECORDS), likely_sizes(codes, model, _lengths(first), more)
        second = follow(more)
        usual = _with_random_owners(follow, usual, second)
        require_same(usual, second)
        paths = {found.path for found in (first, usual, second)}
        if not draws:
            tries = max(_TRIED, _OPERATIONS // max(1, len(first.operations)))
            for size in sizes[:tries]:
                found = follow(size, backward=False)
                require_same(usual, found)
                paths.add(path_of(found.calls, usual.backward_calls))
        else:
            paths |= _random_paths(follow, more, first, paths)
    layouts = [
        layout_of(contact, later, few=_RECORDS, many=more)
        for contact, later in pairs(first.contacts, second.contacts)
    ]
    for contact, layout in zip(first.contacts, layouts, strict=True):
        require_gradients_alike(contact, layout, _RECORDS)
    return Proof(layouts, max(1, held), frozenset(paths), more)


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
    except Exception as error:  # whatever error the model or the loss raises
        raise refusals.failed(error, records) from error


@contextmanager
def _uncollected() -> Iterator[None]:
    """A block without garbage collection, so that a search for new objects is short."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def _placed(model: nn.Module, objective: Callable[[Any], Tensor], example: Any) -> Iterator[None]:
    """Adds layer and line to an error about the number of records.

    They are found in one more pass, because looking up the line of every operation is slow.
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
    """Reject a pass that mixes records or stores something beyond its end."""
    for finding in found.findings:
        if finding.kind == "reads":  # the user's code caught the error and continued
            raise refusals.stopped(finding)
        if finding.kind in ("writes", "carries"):
            raise refusals.keeps(finding)
    _require_own(found.losses, found.records)
    for contact in found.contacts:
        for signal in (*contact.inputs, *contact.outputs):
            if signal.owned is not None and signal.owned.origin is not None:
                raise refusals.mixes(signal.owned.origin)
        for gradient in contact.gradients:
            if gradient is not None and gradient.owned is not None and gradient.owned.origin:
                raise refusals.mixes_gradients(gradient.owned.origin, contact.layer)
    for finding in found.findings:
        if finding.kind == "place":
            raise refusals.place_decides(finding)


def _require_let_go(found: Trace) -> None:
    """Reject unmarked tensors that outlive the pass, which later passes would not recognise."""
    if any(ref() is not None for ref in found.unmarked):
        gc.collect(1)  # of the pass, and not of all that the process holds
        if any(ref() is not None for ref in found.unmarked):
            gc.collect()
        if any(ref() is not None for ref in found.unmarked):
            raise refusals.kept_unseen()


def _require_own(losses: Signal, records: int) -> None:
    owned = losses.owned
    if owned is None:
        return  # constant, which the caller refuses
    if owned.origin is not None:
        raise refusals.mixes(owned.origin)
    wanted = torch.arange(records, dtype=TYPE, device="cpu")
    if not bool(((owned.owners == wanted) | (owned.owners == FREE)).all()):
        raise refusals.others_losses()


def _with_random_owners(
    follow: Callable[..., Trace], few: Trace, many: Trace, seed: int = 0
) -> Trace:
    """The pass with few records again, now that the owners of random numbers are known."""
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
    """The paths that other random numbers lead to, each followed for two batch sizes."""
    found, idle = set(known), 0
    for seed in range(1, _TOSSES):
        few, many = follow(_RECORDS, seed), follow(more, seed)
        require_same(_with_random_owners(follow, few, many, seed), many)
        _require_same_layers(first, few)
        idle = idle + 1 if few.path in found else 0
        found.add(few.path)
        if idle == _IDLE:
            return found
    if idle < _IDLE // 2:
        raise refusals.too_many_paths()
    return found


def _require_same_layers(first: Trace, other: Trace) -> None:
    """Reject a pass that uses weights at random, because the engine identifies them by order."""
    for one, two in itertools.zip_longest(first.contacts, other.contacts):
        if one is None or two is None or one.weights != two.weights:
            raise refusals.layers_by_chance((one or two).layer)


def _lengths(found: Trace) -> set[int]:
    """Axis lengths at contacts: a batch of that size could be mistaken for another axis."""
    return {size for contact in found.contacts for s in contact.inputs for size in s.shape}


def _python_generators() -> bytes:
    """The states of Python's and NumPy's generators, whose draws are not operations of torch."""
    return pickle.dumps((random.getstate(), np.random.get_state()))


@contextmanager
def _weights_apart(model: nn.Module) -> Iterator[None]:
    """A block in which no two values of a weight are equal, as after a step from zeros.

    Guarantees:
        The weights' own memory is not written; it is replaced, and restored in any case.
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
