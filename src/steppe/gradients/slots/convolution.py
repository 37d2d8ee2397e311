"""Per-record weight gradients of a convolution: norms and weighted sums, three of four ways.

With T output positions and K = (inputs per group) × (kernel size), a record's gradient is a
Cout × K matrix that takes T·K·Cout multiplications. Large images with few channels are best written
out, by one convolution backward that treats every record as a group of its own. Small images with
many channels are best left implicit: the norm is ⟨S, gᵀg⟩, where S holds the inner products of the
input patches, and one ordinary weight gradient of scaled tensors gives the sum. S itself need not
be built from patches, which is the fourth way, in `convolution_pixels`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from steppe.gradients.slots.convolution_geometry import Geometry, ImagePatches
from steppe.gradients.slots.ghost_norms import paired_rows
from steppe.gradients.slots.slot import MaterialisedWithNorms, Slot, squared_rows, wide, zero_rows

# Records that go through one grouped convolution: more of them fall out of cache.
_GROUPED = 16
# Numbers in the patches or Gram matrices of one chunk, 4 MB in float32.
CHUNK = 2**20


class ConvolutionWeight(Slot):
    """The gradient left implicit: input and output gradient, to be combined when factors are known.

    Args:
        x: input `(B·rows, Cin, ...)`, the rows of a record next to each other.
        g: output gradient `(B·rows, Cout, ...)`.
        geometry: the convolution.
        records: B.
        dots: ⟨Gᵢ, W⟩ where they are known already.
    """

    def __init__(
        self, x: Tensor, g: Tensor, geometry: Geometry, records: int, dots: Tensor | None = None
    ) -> None:
        self.x, self.g, self.geometry, self.records = x, g, geometry, records
        self._dots = dots

    @property
    def rows(self) -> int:
        """Images in one record."""
        return self.x.shape[0] // max(self.records, 1)

    @property
    def patched(self) -> int:
        """Records whose patches fit in cache."""
        numbers = self.x.shape[1] * self.geometry.taps * self.g[0, 0].numel() * self.rows
        return min(max(CHUNK // numbers, 1), self.records)

    @property
    def scaled(self) -> int:
        """Images that are scaled and summed at once: what fits in cache, in parts of one size."""
        images = max(len(self.x), 1)
        numbers = max(min(self.x.numel(), self.g.numel()) // images, 1)
        parts = -(-images // max(CHUNK // numbers, _GROUPED))
        return -(-images // parts)

    def patches(self) -> ImagePatches:
        """Room for the patches of that many records."""
        return ImagePatches(
            self.geometry, self.x, tuple(self.g.shape[2:]), self.patched * self.rows
        )

    def chunks(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and output gradients, a few records at a time, wide enough to clip by."""
        step = max(size, 1) * self.rows
        for start in range(0, len(self.x), step):
            yield wide(self.x[start : start + step]), wide(self.g[start : start + step])

    def squared_norms(self) -> Tensor:
        return squared_rows(self.written_out())

    def add_(self, out: Tensor, factors: Tensor, bad: Tensor) -> None:
        x, g, rows = self.x, self.g, self.rows
        if rows > 1:
            factors = factors.repeat_interleave(rows)
            bad = (bad[:, None] * rows + torch.arange(rows, device=bad.device)).flatten()
        x, g = zero_rows(x, bad), zero_rows(g, bad)
        each = factors.view(-1, *[1] * (x.ndim - 1))
        size = self.scaled
        # One copy of everything would be fresh memory; a part of it is still in cache when used.
        for some_x, some_g, factor in zip(
            x.split(size), g.split(size), each.split(size), strict=True
        ):
            some_x, some_g = wide(some_x), wide(some_g)
            # Scale whichever side is smaller: it is the cheaper copy.
            if some_x.numel() < some_g.numel():
                some_x = some_x * factor.to(some_x.dtype)
            else:
                some_g = some_g * factor.to(some_g.dtype)
            out.view(-1).add_(self.geometry.weight_gradient(some_x, some_g).flatten())

    def written_out(self) -> Tensor:
        parts = [written_out(x, g, self.geometry, self.rows) for x, g in self.chunks(_GROUPED)]
        return torch.cat(parts)

    def dots(self, weight: Tensor) -> Tensor:
        if self._dots is not None:
            return self._dots
        # ⟨Σ gₜxₜᵀ, W⟩ = Σ ⟨gₜ, W xₜ⟩.
        output = self.geometry.apply(wide(self.x), wide(weight))
        return output.mul_(self.g).reshape(self.records, -1).sum(1)


def written_out(x: Tensor, g: Tensor, geometry: Geometry, rows: int) -> Tensor:
    """`(B, Cout, Cin/groups, *kernel)` gradients by one convolution with records as groups."""
    records = x.shape[0] // rows
    x, g = (t.unflatten(0, (records, rows)).transpose(0, 1).flatten(1, 2) for t in (x, g))
    return geometry.weight_gradient(x, g, records).unflatten(0, (records, -1))


def columns_of(tensor: Tensor, geometry: Geometry, rows: int) -> Tensor:
    """`(B·groups, features, rows·positions)` from an image `(B·rows, C, ...)` or its patches."""
    axes, groups = len(geometry.kernel), geometry.groups
    features, positions = tensor.shape[1:-axes], math.prod(tensor.shape[-axes:])
    size = math.prod(features) // groups
    if rows == 1:
        return tensor.reshape(-1, size, positions)
    split = tensor.reshape(-1, rows, groups, size, positions)
    return split.permute(0, 2, 3, 1, 4).reshape(-1, size, rows * positions)


class KeptChunks(Slot):
    """Gradients written out and measured a few records at a time.

    The chunks are not joined: one large block is fresh memory in every step, and the page faults
    take longer than the arithmetic.
    """

    def __init__(self, chunks: Iterable[Tensor]) -> None:
        self._chunks = [MaterialisedWithNorms(chunk) for chunk in chunks]

    def squared_norms(self) -> Tensor:
        return torch.cat([chunk.squared_norms() for chunk in self._chunks])

    def add_(self, out: Tensor, factors: Tensor, bad: Tensor) -> None:
        start = 0
        for chunk in self._chunks:
            end = start + len(chunk.gradients)
            mine = bad[(bad >= start) & (bad < end)] - start
            chunk.add_(out, factors[start:end], mine)
            start = end

    def written_out(self) -> Tensor:
        return torch.cat([chunk.gradients for chunk in self._chunks])


def grouped(implicit: ConvolutionWeight) -> Iterator[Tensor]:
    """Gradients of a few records at a time by one convolution with records as groups."""
    for x, g in implicit.chunks(_GROUPED):
        yield written_out(x, g, implicit.geometry, implicit.rows)


def products(implicit: ConvolutionWeight) -> Iterator[Tensor]:
    """The same by a matrix product for each record: output gradients times patches."""
    geometry, rows = implicit.geometry, implicit.rows
    patches = implicit.patches()
    for x, g in implicit.chunks(implicit.patched):
        columns = columns_of(patches.of(x), geometry, rows)
        product = torch.bmm(columns_of(g, geometry, rows), columns.mT)
        shape = (g.shape[1], x.shape[1] // geometry.groups, *geometry.kernel)
        yield product.view(-1, *shape)


class PatchGram(ConvolutionWeight):
    """Norms from the inner products of all pairs of patches."""

    def squared_norms(self) -> Tensor:
        geometry, rows, patches = self.geometry, self.rows, self.patches()
        found = []
        for x, g in self.chunks(self.patched):
            columns, grads = (columns_of(t, geometry, rows) for t in (patches.of(x), g))
            found.append(paired_rows(columns.mT, grads.mT))
        return torch.cat(found).view(self.records, -1).sum(1)
