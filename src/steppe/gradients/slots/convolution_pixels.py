"""Norms of a convolution's weight gradients from inner products of pixels instead of patches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from steppe.gradients.slots.convolution import CHUNK, ConvolutionWeight, columns_of
from steppe.gradients.slots.ghost_norms import matrices, paired_, precision, roundings
from steppe.gradients.slots.slot import wide


class PixelGram(ConvolutionWeight):
    """Norms from the inner products of all pairs of pixels.

    Patches overlap, so their inner products are sums of few distinct numbers. With stride s, the
    pixels that ever meet lie s apart: each of the sᵃ phases of the image has a Gram matrix of its
    own, and S is the sum of its copies shifted along both positions at once.
    """

    def squared_norms(self) -> Tensor:
        geometry, rows = self.geometry, self.rows
        pairs = (math.prod(self.g.shape[2:]) * rows) ** 2 * geometry.groups
        one = [columns_of(wide(t[:rows]), geometry, rows).mT for t in (self.x, self.g)]
        room = _Room(one[0].to(precision(*one)))
        rounded_x, rounded_g = (roundings(t.shape[2], room.dtype) for t in one)
        # An entry is then a sum over the shifts of each axis, and over phases.
        rounded_x += sum(size - 1 for size in geometry.kernel) + math.prod(geometry.stride) - 1
        found = []
        for x, g in self.chunks(CHUNK // (3 * pairs)):
            gram_x = self._patch_gram(x.to(room.dtype), g.shape[2:], room)
            gram_g = room.gram("g", columns_of(g.to(room.dtype), geometry, rows))
            found.append(paired_(gram_x, gram_g, rounded_x, rounded_g))
        return torch.cat(found).view(self.records, -1).sum(1)

    def _patch_gram(self, x: Tensor, positions: torch.Size, room: _Room) -> Tensor:
        geometry, rows = self.geometry, self.rows
        total: Tensor | None = None
        for phase in itertools.product(*(range(s) for s in geometry.stride)):
            shifts = [
                geometry.shifts(axis, first, x.shape[2 + axis], positions[axis])
                for axis, first in enumerate(phase)
            ]
            if not all(shifts):
                continue
            image = x[geometry.strided(*phase)]
            columns = columns_of(image, geometry, rows)
            size = (rows, *image.shape[2:])
            gram = room.gram(f"{phase}", columns).view(-1, *size, *size)
            for axis, moves in enumerate(shifts):
                name = f"{phase}, axis {axis}"
                gram = _shifted_sum(gram, 2 + axis, len(size), moves, positions[axis], room, name)
            total = gram if total is None else total.add_(gram)
        count = rows * math.prod(positions)
        if total is None:  # every patch lies in the padding
            return x.new_zeros(x.shape[0] // rows * geometry.groups, count, count)
        return total.reshape(-1, count, count)


class _Room:
    """Memory for what every chunk makes anew: fresh memory would cost more than the arithmetic.

    Args:
        like: a tensor of the same type.
    """

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self.dtype = like.dtype
        self._made: dict[str, Tensor] = {}

    def of(self, name: str, shape: Sequence[int]) -> Tensor:
        """Room of this name, whatever it holds; the first chunk is the largest."""
        size = math.prod(shape)
        if name not in self._made:
            self._made[name] = self._like.new_empty(size)
        return self._made[name][:size].view(shape)

    def gram(self, name: str, columns: Tensor) -> Tensor:
        """Inner products of all pairs of columns, in the room of this name."""
        count, _, size = columns.shape
        return matrices(columns.mT, self.of(name, (count, size, size)))


def _shifted_sum(
    gram: Tensor,
    axis: int,
    distance: int,
    shifts: list[int],
    length: int,
    room: _Room,
    name: str,
) -> Tensor:
    """Σ over shifts of `gram` moved along `axis` and `axis + distance` at once; outside is zero."""
    pixels = gram.shape[axis]
    if shifts == [0] and pixels == length:
        return gram
    shape = list(gram.shape)
    shape[axis] = shape[axis + distance] = length
    total = room.of(name, shape).zero_()
    for shift in shifts:
        start, end = max(0, -shift), min(length, pixels - shift)
        if start >= end:
            continue
        inside, moved = total, gram
        for where in (axis, axis + distance):
            inside = inside.narrow(where, start, end - start)
            moved = moved.narrow(where, start + shift, end - start)
        inside.add_(moved)
    return total
