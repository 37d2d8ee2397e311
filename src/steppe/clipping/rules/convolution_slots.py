"""Per-record weight gradients of a convolution: norms and weighted sums, four ways.

With T output positions and K = (inputs per group) × (kernel size), a record's gradient is a
Cout × K matrix that takes T·K·Cout multiplications. Large images with few channels are best written
out, by one convolution backward that treats every record as a group of its own. Small images with
many channels are best left implicit: the norm is ⟨S, gᵀg⟩, where S holds the inner products of the
input patches, and one ordinary weight gradient of scaled tensors gives the sum. S itself need not
be built from patches: it is a sum of shifted copies of the Gram matrix of the pixels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from steppe.clipping.kernels import Candidate
from steppe.clipping.rules.convolution_geometry import Geometry, Patches
from steppe.clipping.slots import Kept, Slot, blank, paired_, squared_rows, wide

# Records that go through one grouped convolution: more of them fall out of cache.
_GROUPED = 16
# Numbers in the patches or Gram matrices of one chunk, 4 MB in float32.
_CHUNK = 2**20


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
        return min(max(_CHUNK // numbers, 1), self.records)

    def patches(self) -> Patches:
        """Room for the patches of that many records."""
        return Patches(self.geometry, self.x, tuple(self.g.shape[2:]), self.patched * self.rows)

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
            bad = (bad[:, None] * rows + torch.arange(rows)).flatten()
        x, g = wide(blank(x, bad)), wide(blank(g, bad))
        # Scale whichever side is smaller: it is the cheaper copy.
        smaller = x if x.numel() < g.numel() else g
        scaled = smaller * factors.to(smaller.dtype).view(-1, *[1] * (x.ndim - 1))
        x, g = (scaled, g) if smaller is x else (x, scaled)
        out.view(-1).add_(self.geometry.weight_gradient(x, g).flatten())

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


def _columns(tensor: Tensor, geometry: Geometry, rows: int) -> Tensor:
    """`(B·groups, features, rows·positions)` from an image `(B·rows, C, ...)` or its patches."""
    axes, groups = len(geometry.kernel), geometry.groups
    features, positions = tensor.shape[1:-axes], math.prod(tensor.shape[-axes:])
    size = math.prod(features) // groups
    if rows == 1:
        return tensor.reshape(-1, size, positions)
    split = tensor.reshape(-1, rows, groups, size, positions)
    return split.permute(0, 2, 3, 1, 4).reshape(-1, size, rows * positions)


class KeptChunks(Slot):
    """Gradients written out a few records at a time; norms are taken while a chunk is in cache.

    The chunks are not joined: one large block is fresh memory in every step, and the page faults
    take longer than the arithmetic.
    """

    def __init__(self, chunks: Iterable[Tensor]) -> None:
        self._chunks: list[Tensor] = []
        norms = []
        for chunk in chunks:
            self._chunks.append(chunk)
            norms.append(squared_rows(chunk))
        self._norms = torch.cat(norms)

    def squared_norms(self) -> Tensor:
        return self._norms

    def add_(self, out: Tensor, factors: Tensor, bad: Tensor) -> None:
        start = 0
        for chunk in self._chunks:
            end = start + len(chunk)
            mine = bad[(bad >= start) & (bad < end)] - start
            Kept(chunk).add_(out, factors[start:end], mine)
            start = end

    def written_out(self) -> Tensor:
        return torch.cat(self._chunks)


def grouped(implicit: ConvolutionWeight) -> Iterator[Tensor]:
    """Gradients of a few records at a time by one convolution with records as groups."""
    for x, g in implicit.chunks(_GROUPED):
        yield written_out(x, g, implicit.geometry, implicit.rows)


def products(implicit: ConvolutionWeight) -> Iterator[Tensor]:
    """The same by a matrix product for each record: output gradients times patches."""
    geometry, rows = implicit.geometry, implicit.rows
    patches = implicit.patches()
    for x, g in implicit.chunks(implicit.patched):
        columns = _columns(patches.of(x), geometry, rows)
        product = torch.bmm(_columns(g, geometry, rows), columns.mT)
        shape = (g.shape[1], x.shape[1] // geometry.groups, *geometry.kernel)
        yield product.view(-1, *shape)


class PatchGram(ConvolutionWeight):
    """Norms from the inner products of all pairs of patches."""

    def squared_norms(self) -> Tensor:
        geometry, rows, patches = self.geometry, self.rows, self.patches()
        found = []
        for x, g in self.chunks(self.patched):
            columns, grads = (_columns(t, geometry, rows) for t in (patches.of(x), g))
            found.append(paired_(columns.mT @ columns, grads.mT @ grads))
        return torch.cat(found).view(self.records, -1).sum(1)


class PixelGram(ConvolutionWeight):
    """Norms from the inner products of all pairs of pixels.

    Patches overlap, so their inner products are sums of few distinct numbers. With stride s, the
    pixels that ever meet lie s apart: each of the sᵃ phases of the image has a Gram matrix of its
    own, and S is the sum of its copies shifted along both positions at once.
    """

    def squared_norms(self) -> Tensor:
        geometry, rows = self.geometry, self.rows
        pairs = (math.prod(self.g.shape[2:]) * rows) ** 2 * geometry.groups
        found = []
        for x, g in self.chunks(_CHUNK // (3 * pairs)):
            grads = _columns(g, geometry, rows)
            found.append(paired_(self._patch_gram(x, g.shape[2:]), grads.mT @ grads))
        return torch.cat(found).view(self.records, -1).sum(1)

    def _patch_gram(self, x: Tensor, positions: torch.Size) -> Tensor:
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
            columns = _columns(image, geometry, rows)
            size = (rows, *image.shape[2:])
            gram = (columns.mT @ columns).view(-1, *size, *size)
            for axis, moves in enumerate(shifts):
                gram = _shifted_sum(gram, 2 + axis, len(size), moves, positions[axis])
            total = gram if total is None else total.add_(gram)
        count = rows * math.prod(positions)
        if total is None:  # every patch lies in the padding
            return x.new_zeros(x.shape[0] // rows * geometry.groups, count, count)
        return total.reshape(-1, count, count)


def _shifted_sum(gram: Tensor, axis: int, distance: int, shifts: list[int], length: int) -> Tensor:
    """Σ over shifts of `gram` moved along `axis` and `axis + distance` at once; outside is zero."""
    pixels = gram.shape[axis]
    if shifts == [0] and pixels == length:
        return gram
    shape = list(gram.shape)
    shape[axis] = shape[axis + distance] = length
    total = gram.new_zeros(shape)
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


# What work that is not multiplication costs, counted in multiplications that take as long: a weight
# that is written to fresh memory, read for its norm and read again for the sum; the same weight
# where a grouped convolution reorders it first; one pass over an entry of a Gram matrix.
_KEPT, _REORDERED, _PASS = 64.0, 128.0, 16.0


def candidates(
    x: Tensor, g: Tensor, geometry: Geometry, records: int, dots: Tensor | None
) -> dict[str, Candidate]:
    """The ways that are open to one layer, with what each costs.

    Args:
        x: input `(B·rows, Cin, ...)`, the rows of a record next to each other.
        g: output gradient `(B·rows, Cout, ...)`.
        geometry: the convolution.
        records: B.
        dots: ⟨Gᵢ, W⟩ where they are known already.
    """
    implicit = ConvolutionWeight(x, g, geometry, records, dots)
    inputs, outputs = x.shape[1] // geometry.groups, g.shape[1] // geometry.groups
    positions, pixels = (math.prod(t.shape[2:]) * implicit.rows for t in (g, x))
    copies = float(records * geometry.groups)
    weights = copies * outputs * inputs * geometry.taps
    gradient, seen = positions * weights, copies * positions * inputs * geometry.taps
    pairs = copies * positions**2
    phases = math.prod(map(min, geometry.stride, geometry.kernel))
    pixel_pairs = copies * phases * (pixels / math.prod(geometry.stride)) ** 2
    passes = _PASS * (sum(geometry.kernel) + 2)
    scaled = 4.0 * (min(x.numel(), g.numel()) + _CHUNK)
    return {
        "grouped": Candidate(
            lambda: KeptChunks(grouped(implicit)), gradient + _REORDERED * weights, 4.0 * weights
        ),
        "product": Candidate(
            lambda: KeptChunks(products(implicit)),
            gradient + _KEPT * weights + _PASS * seen,
            4.0 * (weights + _CHUNK),
        ),
        "patch gram": Candidate(
            lambda: PatchGram(x, g, geometry, records, dots),
            gradient + pairs * (inputs * geometry.taps + outputs) + _PASS * (2 * pairs + seen),
            scaled,
        ),
        "pixel gram": Candidate(
            lambda: PixelGram(x, g, geometry, records, dots),
            gradient + pixel_pairs * (inputs + passes) + pairs * outputs,
            scaled,
        ),
    }
