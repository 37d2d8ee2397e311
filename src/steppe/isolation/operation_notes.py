"""Compares the numeric arguments of operations between passes of different batch sizes.

Both passes must treat each record in the same way. Sizes grow with the number of records along
record axes; everything else must be equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from steppe.isolation.owners import FREE, MIXED
from steppe.isolation.places import alike, record_axes

# Arguments that say sizes and places along axes: those may grow with the number of records.
_SIZES_TEXT = """
    size sizes shape self_sizes input_sizes input_size output_size split_size split_sizes
    repeats start end length N stride storage_offset groups
"""
_SIZES = frozenset(_SIZES_TEXT.split())
INDICES = frozenset(("index", "indices", "offsets"))
_SMALL = 4096
_TOLD = (bool, int, float, complex, str, torch.dtype)


@dataclass(frozen=True)
class Constant:
    """A tensor argument that does not depend on any record.

    Attributes:
        name: of the argument.
        number: its index among the tensors of that argument.
        shape: of the tensor.
        value: a copy; None for random numbers whose owner is not known.
        random: whether it depends on random numbers.
        by_record: whether it contains indices along a record axis.
    """

    name: str
    number: int
    shape: tuple[int, ...]
    value: Tensor | None
    random: bool
    by_record: bool


@dataclass(frozen=True)
class OperationNote:
    """One operation of a pass, with its numeric arguments and constants.

    Attributes:
        operation: its name, without overload.
        numbers: by the argument's name.
        constants: tensors that do not depend on any record.
        shapes: of the outputs, each with its record axes; None if they are not compared.
    """

    operation: Any
    numbers: tuple[tuple[str, Any], ...]
    constants: tuple[Constant, ...]
    shapes: tuple[tuple[tuple[int, ...], frozenset[int] | None], ...]

    @property
    def name(self) -> str:
        """For errors."""
        return str(self.operation.__name__)


def numbers_in(given: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Numbers, booleans, types and strings among the arguments, by name."""
    for name, value in given.items():
        values = value if isinstance(value, (list, tuple)) else (value,)
        found = tuple(v for v in values if isinstance(v, _TOLD))
        if found:
            yield name, found


def kept(value: Tensor) -> Tensor:
    """A copy of a constant, because later operations may change it."""
    value = value.detach()
    return value.clone() if value.numel() <= _SMALL else value


def shape_of(tensor: Tensor, owners: Tensor | None) -> tuple[Any, frozenset[int] | None]:
    """The shape of an output, and its record axes."""
    if owners is None:
        return tuple(tensor.shape), None
    highest = int(owners.max()) if owners.numel() else MIXED
    if highest == MIXED:
        return tuple(tensor.shape), None
    if highest == FREE:  # values without an owner are unknown, so there must not be one per record
        return tuple(tensor.shape), frozenset()
    return tuple(tensor.shape), record_axes(owners)


def difference(one: OperationNote, other: OperationNote, records: int, others: int) -> str | None:
    """How an operation depends on the number of records; None if it does not.

    Args:
        one, other: the same operation in two passes.
        records, others: the numbers of records of the two passes.
    """
    if one.name == "permute":
        return None  # products of many axes permute them by their sizes
    if [n for n, _ in one.numbers] != [n for n, _ in other.numbers]:
        return f"what {one.name} is told"
    alone = 1 in (records, others)  # with one record there is no difference between records
    for (name, mine), (_, theirs) in zip(one.numbers, other.numbers, strict=True):
        if alone and not any(isinstance(value, float) for value in mine):
            continue
        grows = name in _SIZES
        same = len(mine) == len(theirs) and all(
            _close(a, b) or (grows and a * others == b * records)
            for a, b in zip(mine, theirs, strict=True)
        )
        if not same:
            return f"a number in {one.name}"
    if not _same_constants(one, other, records, others):
        return f"a constant in {one.name}"
    for (shape, axes), (then, _) in zip(one.shapes, other.shapes, strict=False):
        if axes is None or alone:
            continue
        if len(shape) != len(then):
            return f"a shape in {one.name}"
        for axis, (a, b) in enumerate(zip(shape, then, strict=True)):
            if a != b and (axis not in axes or a * others != b * records):
                return f"a shape in {one.name}"
    return None


def _close(one: Any, other: Any) -> bool:
    """Whether two numbers are equal up to rounding, as of `1 / 49 * 49`."""
    if {type(one), type(other)} <= {bool, int, float} and float in (type(one), type(other)):
        one, other = float(one), float(other)
        if math.isnan(one) or math.isnan(other):
            return one != one and other != other
        return math.isclose(one, other, rel_tol=1e-15)
    return type(one) is type(other) and one == other


def _same_constants(one: OperationNote, other: OperationNote, records: int, others: int) -> bool:
    theirs = {(constant.name, constant.number): constant for constant in other.constants}
    for mine in one.constants:
        then = theirs.pop((mine.name, mine.number), None)
        if then is None or mine.random != then.random:
            return False
        if mine.value is None or (then.value is None and mine.shape == then.shape):
            continue  # random numbers of the same shape for all batches
        if 1 in (records, others) and mine.by_record:
            continue
        value = mine.value if then.value is None else then.value
        if then.value is None:
            if not _grows_alike(mine.value, then.shape, records, others):
                return False
        elif mine.shape == then.shape and mine.value.data_ptr() == value.data_ptr():
            continue  # a weight or a buffer
        elif not _same_constant(mine.value, value, records, others, mine.by_record):
            return False
    # Random numbers with a known owner are not constants.
    return all(constant.random for constant in theirs.values())


def _grows_alike(value: Tensor, shape: tuple[int, ...], records: int, others: int) -> bool:
    """Whether random numbers that all records share are the same for each record."""
    if value.ndim != len(shape):
        return False
    for axis, (a, b) in enumerate(zip(value.shape, shape, strict=True)):
        if a != b:
            rows = [_first_row(value, axis, records, inner, False) for inner in (False, True)]
            if a * others != b * records or all(row is None for row in rows):
                return False
    return True


def _same_constant(one: Tensor, other: Tensor, records: int, others: int, index: bool) -> bool:
    """Whether two constants have the same values for each record."""
    if one.ndim != other.ndim or one.dtype != other.dtype:
        return False
    mine, theirs = one, other
    for axis in range(one.ndim):
        a, b = mine.shape[axis], theirs.shape[axis]
        if a == b:
            continue
        if a * others != b * records:
            return False
        for inner in (False, True):
            first = _first_row(mine, axis, records, inner, index)
            second = _first_row(theirs, axis, others, inner, index)
            if first is not None and second is not None and first.shape == second.shape:
                mine, theirs = first, second
                break
        else:
            return False
    same = alike(mine, theirs)
    if index:
        same = same | (mine * others == theirs * records)
    return bool(same.all())


def _first_row(value: Tensor, axis: int, records: int, inner: bool, index: bool) -> Tensor | None:
    """The part of one record along an axis, if it is the same for all records.

    Indices must grow evenly from record to record.
    """
    rows = value.shape[axis] // records
    sizes = (rows, records) if inner else (records, rows)
    split = value.unflatten(axis, sizes).movedim(axis + int(inner), 0)
    if index and records > 1:
        step = split[1:] - split[:-1]
        if not bool((step == step[:1]).all()):
            return None
        return torch.stack([split[0], step[0]], axis)
    if not bool(alike(split, split[:1]).all()):
        return None
    return split[0].unsqueeze(axis) if not index else torch.stack([split[0]] * 2, axis)
