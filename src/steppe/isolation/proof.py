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
from collections import deque
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
from steppe.isolation.chance import Chance, compared
from steppe.isolation.numbers import Told, difference
from steppe.isolation.operators import COPYING
from steppe.isolation.owners import FREE, TYPE
from steppe.isolation.sizes import code_seen, likely_sizes
from steppe.isolation.trace import Meeting, Signal, Trace, trace
from steppe.isolation.watch import Asked, NotIsolated
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
    room: int | None = None,
) -> Proof:
    """Prove that records stand alone, from the operations of a pass on fake tensors.

    Args:
        model: where names and state are read; the objective runs it.
        objective: maps a batch to one loss for each record.
        example: a batch whose shapes and types are copied; its values are not used.
        most: about how many records go through the model at once.
        room: bytes of activations that the engine gives to those that go through the model at once;
            None where it takes that many whatever they need.

    Raises:
        IsolationError: it is not proven. The error names the operation, the layer and the line.
        UnsupportedModelError: the pass can not be followed, for another reason.

    Guarantees:
        Nothing is computed from records. Attributes of modules and random state are as they were.
    """
    apart = (attributes_kept(model), _weights_apart(model), _placed(model, objective, example))
    with global_generators_kept(), apart[0], apart[1], apart[2]:

        def follow(
            records: int, seed: int = 0, back: bool = True, chance: Chance | None = None
        ) -> Trace:
            found = _traced(model, objective, example, records, seed, back, chance)
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
                    _traced(model, objective, example, records, back=False)
                    for records in (_RECORDS, _MORE)
                )
            except SteppeError:
                raise error from None
            _require_same_calls(few, many, error)
            raise
        _require_let_go(first)
        draws = first.coins or _python_generators() != before
        held = sum(s.bytes for m in first.meetings for s in (*m.inputs, *m.outputs)) // _RECORDS
        # Fake tensors take no memory; constants take what they take in a step of so many.
        more = max(_MORE, most if room is None else min(most, room // max(1, held)))
        if getattr(objective, "runs_users_code", True):
            # Once more in the same form: what the first pass has kept may be used now.
            usual, sizes = follow(_RECORDS), likely_sizes(codes, model, _lengths(first), more)
        else:  # torch's own layers keep nothing, and ask for no number of records but one
            usual, sizes = first, [1]
        second = follow(more)
        usual = _with_chance(follow, usual, second)
        _require_same(usual, second)
        paths = {found.path for found in (first, usual, second)}
        if not draws:
            room = max(_TRIED, _OPERATIONS // max(1, len(first.told)))
            for size in sizes[:room]:
                found = follow(size, back=False)
                _require_same(usual, found)
                paths.add(path_of(found.calls, usual.heard))
        else:
            paths |= _paths_by_chance(follow, more, first, paths)
    layouts = [
        ContactLayout(
            meeting.operation,
            tuple(_layout(meeting, *pair, more) for pair in _pairs(meeting.inputs, later.inputs)),
            tuple(_layout(meeting, *pair, more) for pair in _pairs(meeting.outputs, later.outputs)),
            meeting.weights,
        )
        for meeting, later in _pairs(first.meetings, second.meetings)
    ]
    for meeting, layout in zip(first.meetings, layouts, strict=True):
        _require_gradients_alike(meeting, layout)
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
    back: bool = True,
    chance: Chance | None = None,
    asked: Asked | None = None,
) -> Trace:
    batch = each(lambda t: t.new_empty((records, *t.shape[1:])), example)
    seed_global_generators(seed)
    try:
        return trace(model, objective, batch, records, back, seed, chance, asked)
    except NotIsolated as stop:
        raise refusals.stopped(stop.finding) from None
    except SteppeError:
        raise
    except Exception as error:  # whatever the model or the loss says
        raise refusals.failed(error, records) from error


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


def _with_chance(follow: Callable[..., Trace], few: Trace, many: Trace, seed: int = 0) -> Trace:
    """The pass of few records once more, now that it can be told whose random numbers are drawn."""
    if not any(draw.free for draw in few.draws):
        return few
    chance = compared(few.draws, many.draws, few.records, many.records)
    if chance is None:
        raise refusals.number_decides("which random numbers are drawn")
    try:
        return follow(few.records, seed, chance=chance)
    except IsolationError:
        if not chance.in_doubt:
            raise
    return follow(few.records, seed, chance=replace(chance, interleaved=True))


def _paths_by_chance(
    follow: Callable[..., Trace], more: int, first: Trace, known: set[Path]
) -> set[Path]:
    """The paths that other random numbers lead to, each followed for two numbers of records."""
    found, idle = set(known), 0
    for seed in range(1, _TOSSES):
        few, many = follow(_RECORDS, seed), follow(more, seed)
        _require_same(_with_chance(follow, few, many, seed), many)
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
    for one, two in itertools.zip_longest(first.meetings, other.meetings):
        if one is None or two is None or one.weights != two.weights:
            raise refusals.layers_by_chance((one or two).layer)


def _require_same(first: Trace, other: Trace) -> None:
    """Refuse what follows the number of records: paths, numbers, constants and shapes."""
    mine = first.told if other.back else first.told[: first.there]
    _require_same_calls(first, other)
    if [told.operation for told in mine] != [told.operation for told in other.told]:
        # For one record torch itself leaves copies out; what is told numbers must be the same.
        tells = _has_numbers if first.calls == other.calls else _computes
        mine, theirs = ([t for t in some if tells(t)] for some in (mine, other.told))
        if other.records > 1 or [t.operation for t in mine] != [t.operation for t in theirs]:
            raise refusals.number_decides("which operations run (in hooks or backward())")
    else:
        theirs = other.told
    for one, two in zip(mine, theirs, strict=True):
        found = difference(one, two, first.records, other.records)
        if found is not None:
            place = next(i for i, told in enumerate(first.told) if told is one)
            raise refusals.number_decides(found, Asked("told", place, first.records))


def _require_same_calls(first: Trace, other: Trace, cause: Exception | None = None) -> None:
    # What is called without records may follow their number: what comes of it is compared.
    mine, theirs = on_records(first.calls), on_records(other.calls)
    if mine != theirs or (other.back and first.heard != other.heard):
        what, asked = "in hooks or backward()", None
        for number, (one, two) in enumerate(itertools.zip_longest(mine, theirs)):
            if one != two:
                longer = one is None or (two is not None and len(theirs) > len(mine))
                found = other if longer else first
                place = [i for i, call in enumerate(found.calls) if on_records([call])][number]
                what, asked = name_of(found.calls[place]), Asked("calls", place, found.records)
                break
        raise refusals.number_decides(f"which operations run ({what})", asked) from cause


def _has_numbers(told: Told) -> bool:
    return any(isinstance(value, float) for _, values in told.numbers for value in values)


def _computes(told: Told) -> bool:
    """What is asked where code without records did something else for another number of them."""
    return told.operation not in COPYING


def _layout(meeting: Meeting, signal: Signal, later: Signal, more: int) -> RecordLayout:
    """Where the records lie in a tensor, from its owners for a few records and for more."""
    found = [
        layout
        for layout in _possible(signal, _RECORDS)
        if layout.fits(later.shape, more) and _agrees(later, layout, more)
    ]
    if not found:
        raise refusals.no_axis(meeting.operation, signal.shape, meeting.layer)
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


def _require_gradients_alike(meeting: Meeting, layouts: ContactLayout) -> None:
    """Refuse gradients that come back to another record than their output went out from."""
    for gradient, layout in zip(meeting.gradients, layouts.outputs, strict=False):
        if gradient is not None and not _agrees(gradient, layout, _RECORDS):
            raise refusals.gradients_of_others(meeting.operation, meeting.layer)


def _lengths(found: Trace) -> set[int]:
    """Of the axes of what meets weights: a batch of so many records may be taken for a square."""
    return {size for meeting in found.meetings for s in meeting.inputs for size in s.shape}


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


@contextmanager
def attributes_kept(model: nn.Module) -> Iterator[None]:
    """What a pass puts into modules is taken out again: it has no numbers."""
    kept = [(module, dict(vars(module))) for module in model.modules()]
    inside: list[tuple[Any, Any]] = []
    for _, attributes in kept:
        for value in attributes.values():
            _containers(value, inside, 0)
    try:
        yield
    finally:
        for module, attributes in kept:
            vars(module).clear()
            vars(module).update(attributes)
        for container, before in inside:
            container.clear()
            container.extend(before) if isinstance(before, list) else container.update(before)


def _containers(value: Any, found: list[tuple[Any, Any]], depth: int) -> None:
    """Lists, mappings and sets in a value, with what is in them now."""
    if depth > 4 or isinstance(value, Tensor | nn.Module):
        return
    if isinstance(value, list | deque):
        found.append((value, list(value)))
        inside: Any = value
    elif isinstance(value, dict):
        found.append((value, dict(value)))
        inside = value.values()
    elif isinstance(value, set):
        found.append((value, set(value)))
        return
    else:
        return
    for item in inside:
        _containers(item, found, depth + 1)
