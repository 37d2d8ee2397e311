"""Compares constants and owners between records.

A value that depends on a record's position in the batch changes if an earlier record is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from steppe.isolation.owners import FREE, MIXED


def alike(one: Tensor, other: Tensor) -> Tensor:
    """Where two constants are equal, up to the rounding of sums in another order."""
    if not (one.is_floating_point() or one.is_complex()):
        return one == other
    eps = torch.finfo(one.dtype).eps
    relative = 64 * eps if eps < 1e-4 else 4 * eps
    one, other = one.detach(), other.detach()
    size = other.abs().nan_to_num(0, 0, 0).amax() if other.numel() else 0.0
    # Rounded values may also cancel.
    absolute = float(size) * relative / (1.0 if eps > 1e-4 else 16.0)
    return torch.isclose(one, other, rtol=relative, atol=absolute, equal_nan=True)


def same_for_all(value: Tensor, owners: Tensor, records: int) -> bool:
    """Whether a constant that is broadcast to records has the same values for every record.

    Examples:
        >>> from steppe.isolation.owners import on_axis
        >>> same_for_all(torch.tensor([[1.0, 2.0]]), on_axis(2, 0, 3), 3)
        True
        >>> same_for_all(torch.tensor([[1.0], [2.0], [1.0]]), on_axis(2, 0, 3), 3)
        False
    """
    axes = max(value.ndim, owners.ndim)
    mine = value.detach().reshape((1,) * (axes - value.ndim) + tuple(value.shape))
    whose = owners.reshape((1,) * (axes - owners.ndim) + tuple(owners.shape))
    apart = [axis for axis in range(axes) if whose.shape[axis] > 1]
    if all(mine.shape[axis] == 1 for axis in apart):
        return True
    sizes = [whose.shape[i] if i in apart else mine.shape[i] for i in range(axes)]
    front = list(range(len(apart)))
    rows = mine.expand(sizes).movedim(apart, front).flatten(0, len(apart) - 1)
    of = whose.movedim(apart, front).flatten()
    parts = [rows[of == record] for record in range(records)]
    parts = [part for part in parts if len(part)]
    return all(part.shape == parts[0].shape and bool(alike(part, parts[0]).all()) for part in parts)


def even(owners: Tensor, records: int) -> bool:
    """Whether every record has its elements in the same pattern, along one axis or another.

    Mixed and free elements are ignored.

    Examples:
        >>> even(torch.tensor([0, 1, 2, FREE]), 3), even(torch.tensor([FREE, 1, 2]), 3)
        (True, False)
        >>> even(torch.tensor([[0, FREE], [FREE, 1]]), 2)
        False
    """
    line = owners.numel() == records == max(owners.shape, default=0)
    if line and sorted(owners.flatten().tolist()) == list(range(records)):
        return True
    one = torch.arange(records, dtype=owners.dtype, device="cpu")
    own = owners.unsqueeze(0) == one.view((-1,) + (1,) * owners.ndim)
    if bool((owners == MIXED).any()) or not bool(own.any()):
        return True
    for axis in range(owners.ndim):
        if owners.shape[axis] > 1:
            count = own.sum(axis + 1)
            if bool((count == count[:1]).all()):
                return True
    return False


def record_axes(owners: Tensor) -> frozenset[int]:
    """The axes along which there are elements of different records; free elements are ignored."""
    apart = [axis for axis, size in enumerate(owners.shape) if size > 1]
    if not bool((owners == FREE).any()):
        return frozenset(apart)
    low = torch.where(owners == FREE, MIXED, owners)
    return frozenset(a for a in apart if bool((owners.amax(a) > low.amin(a)).any()))


def along(tensor: Tensor, owners: Tensor | None, axis: int) -> Tensor:
    """The index within a record of each position on an axis.

    Args:
        tensor: the tensor that is indexed.
        owners: its owners; None for a constant.
        axis: of the tensor.
    """
    size = tensor.shape[axis]
    if owners is None:  # all rows of a constant may be equal
        first = tensor.narrow(axis, 0, min(1, size))
        if size and (tensor.stride(axis) == 0 or bool(alike(tensor, first).all())):
            return torch.zeros(size, dtype=torch.long, device="cpu")
    if owners is None or owners.shape[axis] == 1:
        return torch.arange(size, device="cpu")
    if any(n > 1 for i, n in enumerate(owners.shape) if i != axis):
        return torch.zeros(size, dtype=torch.long, device="cpu")
    whose = owners.flatten()
    same = (whose[:, None] == whose[None]).tril(-1)
    return same.sum(1)


def holds_records(tensor: Tensor, owners: Tensor | None, axis: int) -> bool:
    """Whether an axis is the record axis, so that a position on it only identifies the record."""
    if owners is not None:
        return owners.shape[axis] > 1
    return not bool(along(tensor, None, axis).any())


def spread(values: Tensor, axes: Sequence[int], ndim: int) -> Tensor:
    """A tensor with its axes placed at some axes of another, and size 1 along the others."""
    sizes = [1] * ndim
    for axis, size in zip(axes, values.shape, strict=True):
        sizes[axis] = size
    return values.reshape(sizes)
