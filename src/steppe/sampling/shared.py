"""Whether two data sets hold the same records, as far as indices and memory tell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from steppe.sampling._bases import bases

_Addresses = NDArray[np.int64]


def share_records(one: Any, other: Any) -> bool:
    """Whether a record of one data set lies where a record of the other lies.

    Args:
        one: tensors, arrays, nests of them, or data in any form that `records` takes.
        other: likewise.

    Guarantees:
        Loaders, subsets and concatenations are followed down to what holds the records, views to
        the memory that they show. Parts of one data set without a common row do not share,
        whichever way they were cut. Where the rows of two views lie in different ways, they are
        taken to fill all the memory between their ends; where they lie between each other in one
        way, as in a matrix stored by columns, they are told by their starts. Copies, and other data
        sets that read the same source, cannot be seen. No record is read.

    Examples:
        >>> x = torch.zeros(10, 2)
        >>> share_records(x, x.numpy()[::3]), share_records(x[:6], (x[6:], torch.zeros(4)))
        (True, False)
    """
    ours, theirs = list(bases(one)), list(bases(other))
    if any(a is b and _common(i, j) for a, i in ours for b, j in theirs):
        return True
    mine = [place for held in ours for place in _places(*held)]
    others = [place for held in theirs for place in _places(*held)]
    return any(_meet(a, b) for a in mine for b in others)


class _Place(NamedTuple):
    """Where records lie: one stretch of memory each, from its start to before its end."""

    device: str
    starts: _Addresses
    ends: _Addresses
    # How a row's numbers are spread over its stretch; None where they fill it.
    spread: object = None


def _common(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Whether two choices of rows of one data set, None for all, have a row in common."""
    return one is None or other is None or bool(torch.isin(one, other).any())


def _places(base: Any, rows: torch.Tensor | None) -> Iterator[_Place]:
    """One place for each array; for a list of records one for all that they hold."""
    if isinstance(base, TensorDataset):
        base = base.tensors
    if isinstance(base, (torch.Tensor, np.ndarray)):
        if (place := _place(base, rows)) is not None:
            yield place
    elif isinstance(base, list) and not all(map(_is_array, base[:1])):
        taken = base if rows is None else [base[row] for row in rows.tolist()]
        yield from _together(_arrays(taken))
    elif isinstance(base, (tuple, list, Mapping)):
        for part in base.values() if isinstance(base, Mapping) else base:
            yield from _places(part, rows)


def _place(array: Any, rows: torch.Tensor | None = None) -> _Place | None:
    """Where the rows of an array lie; None where it has no memory of its own to compare."""
    if isinstance(array, torch.Tensor):
        if array.layout != torch.strided or array.is_nested or array.is_meta:
            return None
        device, address, size = str(array.device), array.data_ptr(), array.element_size()
        strides = tuple(step * size for step in array.stride())
    else:
        device, address, size = "cpu", array.ctypes.data, array.itemsize
        strides = array.strides
    shape = tuple(array.shape)
    if math.prod(shape) == 0:
        return None
    # A single number is one row. Steps backwards put the start of a row before its first number.
    (length, *inner), (step, *steps) = shape or (1,), strides or (0,)
    low, high = _ends(inner, steps)
    numbers = np.arange(length) if rows is None else rows.numpy()
    starts = address + low + numbers.astype(np.int64) * step
    stretch = high - low + size
    filled = stretch == size * math.prod(inner)
    return _Place(
        device, starts, starts + stretch, None if filled else (size, *inner, *map(int, steps))
    )


def _ends(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """The first bytes of the lowest and of the highest number of a row, from the row's first."""
    reach = [(size - 1) * step for size, step in zip(shape, strides, strict=True)]
    return sum(min(0, far) for far in reach), sum(max(0, far) for far in reach)


def _together(arrays: Iterator[Any]) -> Iterator[_Place]:
    """One place on each device, so that lists of many small arrays are compared at once."""
    ends: dict[str, list[tuple[int, int]]] = {}
    for array in arrays:
        if (place := _place(array)) is not None:
            stretch = int(place.starts.min()), int(place.ends.max())
            ends.setdefault(place.device, []).append(stretch)
    for device, stretches in ends.items():
        starts, stops = np.array(stretches, np.int64).T
        yield _Place(device, starts, stops)


def _arrays(value: Any) -> Iterator[Any]:
    if _is_array(value):
        yield value
    elif isinstance(value, (tuple, list, Mapping)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _arrays(part)


def _is_array(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, np.ndarray))


def _meet(one: _Place, other: _Place) -> bool:
    if one.device != other.device:
        return False
    if one.spread is not None and one.spread == other.spread:
        # Every stretch reaches over the rows that lie between: only starts tell them apart.
        return bool(np.isin(one.starts, other.starts).any())
    order = np.argsort(other.starts)
    furthest = np.maximum.accumulate(other.ends[order])
    # How many of the others start before each of ours ends; one of them must reach past its start.
    before = np.searchsorted(other.starts[order], one.ends, side="left")
    return bool((furthest[np.maximum(before, 1) - 1] > one.starts)[before > 0].any())
