"""Detects records that occur twice, in one data set or in two, by their indices and memory."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from steppe.records.records import bad_data, require_numbered
from steppe.records.underlying import bases

_Addresses = NDArray[np.int64]
_Part = tuple[TensorDataset, torch.Tensor | None]


def share_records(one: Any, other: Any) -> bool:
    """Whether two data sets have a record at the same place in memory.

    Args:
        one: tensors, arrays, nests of them, or data in any form that `as_records` accepts.
        other: likewise.

    Guarantees:
        Loaders, subsets and concatenations are resolved to the data sets inside, views to their
        memory. Parts of one data set share records if they have a common row. Parts of different
        data sets share records if their memory overlaps. Rows of two views with different strides
        count as filling all memory from their first to their last byte; rows with the same strides
        that interleave, as in a matrix stored by columns, are compared by their starts. Memory that
        several records have in common, such as an expanded column, is ignored. Copies, and other
        data sets that read the same source, are not detected. No record is read.

    Examples:
        >>> x = torch.zeros(10, 2)
        >>> share_records(x, x.numpy()[::3]), share_records(x[:6], (x[6:], torch.zeros(4)))
        (True, False)
    """
    theirs = list(bases(other))
    return any(
        _common(i, j) if a is b else _touch(_places(a, i), list(_places(b, j)))
        for a, i in bases(one)
        for b, j in theirs
    )


def refuse_repeats(data: Any) -> None:
    """Reject a `Subset` or `ConcatDataset` that contains a record twice.

    Args:
        data: Any data set; other types are assumed to contain every record once.

    Guarantees:
        Subsets of subsets, negative indices and repeated data sets are resolved to the data sets
        inside, and tensors to their memory. No record is read.
    """
    if not isinstance(data, (Subset, ConcatDataset)):
        return
    held: dict[int, list[torch.Tensor]] = defaultdict(list)
    of_tensors: list[_Part] = []
    for base, rows in bases(data):
        require_numbered(base)
        held[id(base)].append(torch.arange(len(base), device="cpu") if rows is None else rows)
        of_tensors += [(base, rows)] if type(base) is TensorDataset else []
    repeated = any(int(torch.cat(parts).bincount(minlength=1).max()) > 1 for parts in held.values())
    if repeated or any(itertools.starmap(_same_memory, itertools.combinations(of_tensors, 2))):
        what = "indices" if isinstance(data, Subset) else "data sets"
        raise bad_data(
            "data",
            f"{type(data).__name__} with repeated {what}",
            "must hold every record once, because a record with k copies is protected k times less",
            f"remove the repeated {what}",
        )


def _same_memory(one: _Part, other: _Part) -> bool:
    """Whether two tensor data sets share memory."""
    if one[0] is other[0]:  # its rows were compared already
        return False
    return share_records(
        *(x if rows is None else Subset(x, rows.tolist()) for x, rows in (one, other))
    )


@dataclass(frozen=True)
class _Place:
    """The memory of records, an interval for each.

    Args:
        device: of the memory.
        low, high: the ends of all intervals together.
        stretches: returns the starts and ends of the intervals; called only if [low, high) of two
            places overlap.
        spread: the layout of a row's numbers in its interval; None if they fill it.
    """

    device: str
    low: int
    high: int
    stretches: Callable[[], tuple[_Addresses, _Addresses]]
    spread: object = None


def _common(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Whether two choices of rows of one data set, None for all, have a row in common."""
    return one is None or other is None or bool(torch.isin(one, other).any())


def _places(base: Any, rows: torch.Tensor | None) -> Iterator[_Place]:
    """One place for each array; for a list of records one place for all their arrays."""
    if isinstance(base, TensorDataset):
        base = base.tensors
    if _is_array(base):
        if (place := _place(base, rows)) is not None:
            yield place
    elif isinstance(base, list) and not all(map(_is_array, base[:1])):
        taken = base if rows is None else [base[row] for row in rows.tolist()]
        yield from _together(_arrays(taken))
    elif isinstance(base, (tuple, list, dict)):
        for part in base.values() if isinstance(base, dict) else base:
            yield from _places(part, rows)


def _place(array: Any, rows: torch.Tensor | None = None) -> _Place | None:
    """The memory of an array's rows; None if it has no memory of its own."""
    if isinstance(array, torch.Tensor):
        if array.layout != torch.strided or array.is_nested or array.is_meta:
            return None
        device, address, size = str(array.device), array.data_ptr(), array.element_size()
        strides = tuple(step * size for step in array.stride())
    else:
        device, address, size = "cpu", array.ctypes.data, array.itemsize
        strides = array.strides
    shape = tuple(array.shape)
    # A single number is one row. With negative strides a row starts before its first number.
    (length, *inner), (step, *steps) = shape or (1,), strides or (0,)
    if math.prod(shape) == 0 or (step == 0 and length > 1):
        return None
    low, high = _ends(inner, steps)
    stretch = high - low + size
    first, last = (0, length - 1) if rows is None else (int(rows.min()), int(rows.max()))
    ends = [address + low + number * step for number in (first, last)]

    def stretches() -> tuple[_Addresses, _Addresses]:
        numbers = np.arange(length) if rows is None else rows.numpy()
        starts = address + low + numbers.astype(np.int64) * step
        return starts, starts + stretch

    filled = stretch == size * math.prod(inner)
    spread = None if filled else (size, *inner, *map(int, steps))
    return _Place(device, min(ends), max(ends) + stretch, stretches, spread)


def _ends(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """The offsets of the lowest and of the highest number of a row from its first."""
    reach = [(size - 1) * step for size, step in zip(shape, strides, strict=True)]
    return sum(min(0, far) for far in reach), sum(max(0, far) for far in reach)


def _together(arrays: Iterator[Any]) -> Iterator[_Place]:
    """One place on each device, so that lists of many small arrays are compared at once."""
    found: dict[str, list[tuple[int, int]]] = {}
    for array in arrays:
        if (place := _place(array)) is not None:
            found.setdefault(place.device, []).append((place.low, place.high))
    for device, stretches in found.items():
        once, times = np.unique(np.array(stretches, np.int64), axis=0, return_counts=True)
        starts, ends = once[times == 1].T
        if len(starts):
            low, high = int(starts.min()), int(ends.max())
            yield _Place(device, low, high, lambda pair=(starts, ends): pair)  # type: ignore[misc]


def _arrays(value: Any) -> Iterator[Any]:
    if _is_array(value):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            if isinstance(part, int | float | str):
                continue  # fast, because a record may be a list of thousands of these
            yield from _arrays(part)


def _is_array(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, np.ndarray))


def _touch(some: Iterator[_Place], others: Sequence[_Place]) -> bool:
    return any(_meet(one, other) for one in some for other in others)


def _meet(one: _Place, other: _Place) -> bool:
    if one.device != other.device or max(one.low, other.low) >= min(one.high, other.high):
        return False
    (starts, ends), (others, other_ends) = one.stretches(), other.stretches()
    if one.spread is not None and one.spread == other.spread:
        # Intervals of interleaved rows overlap, so only their starts are compared.
        return bool(np.isin(starts, others).any())
    order = np.argsort(others)
    furthest = np.maximum.accumulate(other_ends[order])
    # How many of the others start before each of ours ends; one of them must end after its start.
    before = np.searchsorted(others[order], ends, side="left")
    return bool((furthest[np.maximum(before, 1) - 1] > starts)[before > 0].any())
