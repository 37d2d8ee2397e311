"""What an operation was told, and whether the number of records has a part in it.

Two passes of different numbers of records must do the same to each record. Sizes grow with the
number of records along the axes on which records lie; everything else stays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from steppe.isolation.owners import FREE, MIXED

# Arguments that say sizes and places along axes: those may grow with the number of records.
_SIZES_TEXT = """
    size sizes shape self_sizes input_sizes input_size output_size split_size split_sizes
    repeats start end length N stride storage_offset groups
"""
_SIZES = frozenset(_SIZES_TEXT.split())
_INDICES = frozenset(("index", "indices", "offsets"))
_SMALL = 4096


@dataclass(frozen=True)
class Told:
    """One operation of a pass.

    Attributes:
        operation: without its overload.
        numbers: by the argument's name.
        constants: tensors made from no record in this pass, by the argument's name.
        shapes: of the outputs, each with the axes on which records differ; None where that is not
            to be compared.
        drawn: the shapes of its random numbers, where nothing else went in.
    """

    operation: Any
    numbers: tuple[tuple[str, Any], ...]
    constants: tuple[tuple[str, Tensor], ...]
    shapes: tuple[tuple[tuple[int, ...], frozenset[int] | None], ...]
    drawn: tuple[tuple[int, ...], ...] = ()

    @property
    def name(self) -> str:
        """For errors."""
        return str(self.operation.__name__)


def numbers_in(given: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Numbers and truth values among arguments, by name."""
    for name, value in given.items():
        values = value if isinstance(value, (list, tuple)) else (value,)
        found = tuple(v for v in values if isinstance(v, (bool, int, float)))
        if found:
            yield name, found


def kept(value: Tensor) -> Tensor:
    """A constant as it is now: later operations may write to it."""
    value = value.detach()
    return value.clone() if value.numel() <= _SMALL else value


def shape_of(tensor: Tensor, owners: Tensor | None) -> tuple[Any, frozenset[int] | None]:
    """The shape of an output, and the axes on which records differ."""
    if owners is None or bool(((owners == MIXED) | (owners == FREE)).any()):
        return tuple(tensor.shape), None
    return tuple(tensor.shape), frozenset(i for i, size in enumerate(owners.shape) if size > 1)


def difference(one: Told, other: Told, records: int, others: int) -> str | None:
    """How the number of records shows in an operation; None where it does not.

    Args:
        one, other: the same operation in two passes.
        records, others: how many there were in each.
    """
    if one.name == "permute":
        return None  # products of many axes turn them by their sizes
    if [n for n, _ in one.numbers] != [n for n, _ in other.numbers]:
        return f"what {one.name} is told"
    alone = 1 in (records, others)  # one record has no neighbour to grow evenly from
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
    if _grown(one.drawn, other.drawn) > _grown(*([s for s, _ in t.shapes] for t in (one, other))):
        return f"random numbers of several records, put together by {one.name}"
    if len(one.constants) != len(other.constants):
        return f"a constant in {one.name}"
    for (name, mine), (_, theirs) in zip(one.constants, other.constants, strict=True):
        if alone and name in _INDICES:
            continue
        if not _same_constant(mine, theirs, records, others, name in _INDICES):
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


def _grown(shapes: Any, then: Any) -> int:
    """Along how many axes a tensor grows with the number of records, at the most."""
    pairs = zip(shapes, then, strict=False)
    return max((sum(a != b for a, b in zip(*pair, strict=False)) for pair in pairs), default=0)


def _close(one: Any, other: Any) -> bool:
    """Up to the rounding of constants that were computed for another number of rows."""
    if isinstance(one, float) or isinstance(other, float):
        one, other = float(one), float(other)
        return math.isclose(one, other, rel_tol=1e-4, abs_tol=1e-12) or one != one
    return type(one) is type(other) and one == other


def _same_constant(one: Tensor, other: Tensor, records: int, others: int, index: bool) -> bool:
    """Whether two constants say the same about each record."""
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
    if mine.is_floating_point() or mine.is_complex():
        return bool(torch.isclose(mine, theirs, rtol=1e-4, atol=1e-12, equal_nan=True).all())
    same = mine == theirs
    if index:
        same = same | (mine * others == theirs * records)
    return bool(same.all())


def _first_row(value: Tensor, axis: int, records: int, inner: bool, index: bool) -> Tensor | None:
    """The part of one record along an axis, if all have the same; of numbers of rows, if they grow
    evenly from record to record."""
    rows = value.shape[axis] // records
    sizes = (rows, records) if inner else (records, rows)
    split = value.unflatten(axis, sizes).movedim(axis + int(inner), 0)
    if index and records > 1:
        step = split[1:] - split[:-1]
        if not bool((step == step[:1]).all()):
            return None
        return torch.stack([split[0], step[0]], axis)
    if not bool(((split == split[:1]) | (split != split)).all()):
        return None
    return split[0].unsqueeze(axis) if not index else torch.stack([split[0]] * 2, axis)
