"""The owner of every element of a tensor: the record from which it was computed.

An element is *free* (computed from no record), belongs to record i, or is *mixed* (computed from
several). The owners of an operation's output follow from those of its inputs: they are joined if
values are combined, and moved if values are moved.

Along most axes of most tensors all owners are equal, so they are stored with size 1 there: the
owners of a `(3, 128, 768)` activation are three numbers of shape `(3, 1, 1)`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

FREE = -1
MIXED = 1 << 30
TYPE = torch.int32

Shape = tuple[int, ...]


@functools.lru_cache(maxsize=4096)
def on_axis(axes: int, axis: int, records: int) -> Tensor:
    """The owners of a tensor with one entry for each record on an axis.

    Examples:
        >>> on_axis(2, 0, 3)
        tensor([[0],
                [1],
                [2]], dtype=torch.int32)
    """
    shape = [1] * axes
    shape[axis] = records
    return torch.arange(records, dtype=TYPE, device="cpu").view(shape)


@functools.lru_cache(maxsize=64)
def everywhere(axes: int, owner: int) -> Tensor:
    """One owner for all elements."""
    return torch.full((1,) * axes, owner, dtype=TYPE, device="cpu")


def join(several: Iterable[Tensor]) -> Tensor:
    """The owners of results computed from elements at the same position, by broadcasting.

    Examples:
        >>> join([torch.tensor([FREE, 0, 1]), torch.tensor([0, 0, 0])]).tolist() == [0, 0, MIXED]
        True
    """
    found: Tensor | None = None
    for owners in several:
        if found is None or found is owners:
            found = owners
            continue
        met = torch.where(owners == FREE, found, MIXED)
        met = torch.where(found == FREE, owners, met)
        found = torch.where(found == owners, found, met)
    if found is None:
        raise ValueError("owners=none: nothing to join")
    return found


def joined_over(owners: Tensor, axes: Sequence[int]) -> Tensor:
    """The owners of results computed from all elements along some axes, which keep size 1."""
    axes = [axis for axis in axes if owners.shape[axis] != 1]
    if not axes:
        return owners
    if 0 in (owners.shape[axis] for axis in axes):
        shape = [1 if i in axes else size for i, size in enumerate(owners.shape)]
        return torch.full(shape, FREE, dtype=TYPE, device="cpu")
    highest = owners.amax(axes, keepdim=True)
    lowest = torch.where(owners == FREE, MIXED, owners).amin(axes, keepdim=True)
    # Only free ones: the highest is FREE. One record: both are its number. Otherwise mixed.
    return torch.where((highest == FREE) | (highest == lowest), highest, MIXED)


def joined(owners: Tensor) -> Tensor:
    """The owner of a result computed from all elements, without axes."""
    return joined_over(owners, range(owners.ndim)).reshape(())


def squeezed(owners: Tensor) -> Tensor:
    """The same owners with size 1 on every axis along which they are all equal.

    Examples:
        >>> squeezed(torch.tensor([[0, 0], [1, 1]])).shape
        torch.Size([2, 1])
    """
    for axis, size in enumerate(owners.shape):
        if size > 1:
            first = owners.narrow(axis, 0, 1)
            if owners.stride(axis) == 0 or bool((owners == first).all()):
                owners = first
    return owners


def narrowed(owners: Tensor) -> Tensor:
    """The same owners with size 1 on axes that were only broadcast; reads no value."""
    for axis, size in enumerate(owners.shape):
        if size > 1 and owners.stride(axis) == 0:
            owners = owners.narrow(axis, 0, 1)
    return owners


def viewed(owners: Tensor, old: Shape, new: Shape) -> Tensor:
    """The owners of a tensor of shape `old` that is viewed in shape `new`.

    Axes are grouped as far as their products agree, so that axes of equal owners keep size 1.

    Examples:
        >>> viewed(on_axis(3, 0, 2), (2, 3, 8), (6, 8)).flatten().tolist()
        [0, 0, 0, 1, 1, 1]
    """
    if owners.numel() == 1:
        return owners.reshape((1,) * len(new))
    if 0 in old:
        return torch.full(new, FREE, dtype=TYPE, device="cpu")
    sizes: list[int] = []  # of the owners, after the view
    blocks: list[int] = []  # of the owners, before it: one axis a block
    i = j = 0
    while i < len(old) or j < len(new):
        start_i, start_j = i, j
        left = right = 1
        if i < len(old):
            left, i = old[i], i + 1
        if j < len(new):
            right, j = new[j], j + 1
        while left != right:
            if left < right:
                left, i = left * old[i], i + 1
            else:
                right, j = right * new[j], j + 1
        while i < len(old) and old[i] == 1 and j >= len(new):
            i += 1
        while j < len(new) and new[j] == 1 and i >= len(old):
            j += 1
        part = owners.shape[start_i:i]
        if all(size == 1 for size in part):
            sizes += [1] * (j - start_j)
            blocks += [1] * (i - start_i)
        elif i - start_i == 1:
            sizes += new[start_j:j]
            blocks += part
        else:
            sizes += new[start_j:j]
            blocks += old[start_i:i]
    return owners.expand(blocks).reshape(sizes)


def filled_rows(owners: Tensor, records: int) -> Tensor:
    """The same owners, with free elements in a record's row given to that record.

    The values of such elements are unknown in a fake tensor. As elements of the record, they must
    not be summed or compared over records.

    Examples:
        >>> filled_rows(torch.tensor([[0, FREE], [1, FREE]]), 2).tolist()
        [[0, 0], [1, 1]]
        >>> filled_rows(torch.tensor([0, 1, FREE, FREE]), 2).tolist()
        [0, 1, 0, 1]
        >>> filled_rows(torch.tensor([0, FREE]), 2).tolist() == [0, FREE]
        True
    """
    free = owners == FREE
    if owners.numel() < 2 or not bool(free.any()) or bool(free.all()):
        return owners
    if bool((owners == MIXED).any()):
        return torch.where(free, MIXED, owners)
    if int(owners.max()) == int(torch.where(free, MIXED, owners).min()):
        return owners  # with one record the order is not known
    for axis in range(owners.ndim):
        rows = joined_over(owners, [other for other in range(owners.ndim) if other != axis])
        if not bool((rows == MIXED).any()):
            if bool((rows == FREE).any()):
                rows = _in_turn(rows, axis, records)
            return torch.where(free, rows, owners)
    return owners


def _in_turn(rows: Tensor, axis: int, records: int) -> Tensor:
    """Rows of which some are free, given to records in order, if there is one possible order."""
    several, rest = divmod(rows.numel(), records)
    if rest:
        return rows
    whose = torch.arange(records, dtype=TYPE, device="cpu")
    for order in (whose.repeat_interleave(several), whose.repeat(several)):
        order = order.view_as(rows)
        if bool(((rows == order) | (rows == FREE)).all()):
            return order
    return rows


def full(owners: Tensor, shape: Shape) -> Tensor:
    """One owner for each element; axes of equal owners are still stored once."""
    return owners.expand(shape)
