"""Per-record weight gradients of a convolution: norms and weighted sums, four ways.

With T output positions and K = (inputs per group) × (kernel size), a record's gradient is a
Cout × K matrix that takes T·K·Cout multiplications. Large images with few channels are best written
out, by one convolution backward that treats every record as a group of its own. Small images with
many channels are best left implicit: the norm is ⟨S, gᵀg⟩, where S holds the inner products of the
input patches, and one ordinary weight gradient of scaled tensors gives the sum. S itself need not be
built from patches: it is a sum of shifted copies of the Gram matrix of the pixels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from steppe.clipping.kernels import Candidate
from steppe.clipping.slots import Kept, Slot, blank, paired_, squared_rows, wide

# Records that go through one grouped convolution: more of them fall out of cache.
_GROUPED = 16
# Numbers in the patches or Gram matrices of one chunk, 8 MB in float32.
_CHUNK = 2**21


@dataclass(frozen=True)
class Geometry:
    """What a convolution does, apart from the numbers.

    Args:
        kernel, stride, padding, dilation: one entry for each image axis.
        groups: into how many independent convolutions the channels fall.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def apply(self, x: Tensor, weight: Tensor) -> Tensor:
        """The convolution itself, without bias."""
        none = [0] * len(self.kernel)
        return torch.convolution(
            x, weight, None, self.stride, self.padding, self.dilation, False, none, self.groups
        )

    def input_gradient(self, x: Tensor, g: Tensor, weight: Tensor) -> Tensor:
        """The gradient of the input."""
        return self._backward(x, g, weight, self.groups, [True, False, False])[0]

    def weight_gradient(self, x: Tensor, g: Tensor, records: int = 1) -> Tensor:
        """The gradient of the weight, summed over the rows of `x` and `g`.

        Where records are folded into the channels, it is one gradient after the other.
        """
        groups = self.groups * records
        shape = (g.shape[1], x.shape[1] // groups, *self.kernel)
        # Only its shape is read.
        return self._backward(x, g, x.new_empty(shape), groups, [False, True, False])[1]

    def _backward(
        self, x: Tensor, g: Tensor, weight: Tensor, groups: int, mask: list[bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        none = [0] * len(self.kernel)
        found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
            g, x, weight, None, self.stride, self.padding, self.dilation, False, none, groups, mask
        )
        return found

    def patches(self, x: Tensor) -> Tensor:
        """What each output position sees, as `(N, Cin, *kernel, *positions)`; often a view."""
        if any(self.padding):
            pad = [p for p in reversed(self.padding) for _ in range(2)]
            x = torch.constant_pad_nd(x, pad)
        axes = len(self.kernel)
        for axis, (k, s, d) in enumerate(zip(self.kernel, self.stride, self.dilation, strict=True)):
            x = x.unfold(2 + axis, d * (k - 1) + 1, s)[..., ::d]
        return x.permute(0, 1, *range(2 + axes, 2 + 2 * axes), *range(2, 2 + axes))


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
    folded = [t.unflatten(0, (records, rows)).transpose(0, 1).flatten(1, 2) for t in (x, g)]
    return geometry.weight_gradient(*folded, records=records).unflatten(0, (records, -1))


def multiplied_out(x: Tensor, g: Tensor, geometry: Geometry, rows: int) -> Tensor:
    """The same gradients by one matrix product a record: patches times output gradients."""
    columns, grads = _columns(geometry.patches(x), geometry, rows), _columns(g, geometry, rows)
    product = torch.bmm(grads, columns.mT)
    records = x.shape[0] // rows
    return product.reshape(records, g.shape[1], x.shape[1] // geometry.groups, *geometry.kernel)


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
    """Gradients written out a few records at a time; norms are taken while a chunk is in cache."""

    def __init__(self, implicit: ConvolutionWeight, size: int, by_product: bool = False) -> None:
        way = multiplied_out if by_product else written_out
        self._chunks: list[Tensor] = []
        norms = []
        for x, g in implicit.chunks(size):
            self._chunks.append(way(x, g, implicit.geometry, implicit.rows))
            norms.append(squared_rows(self._chunks[-1]))
        self._norms = torch.cat(norms)

    def squared_norms(self) -> Tensor:
        return self._norms

    def add_(self, out: Tensor, factors: Tensor, bad: Tensor) -> None:
        start = 0
        for chunk in self._chunks:
            end = start + len(chunk)
            mine = bad[(bad >= start) & (bad < end)] - start if len(bad) else bad
            Kept(chunk).add_(out, factors[start:end], mine)
            start = end

    def written_out(self) -> Tensor:
        return torch.cat(self._chunks)


class PatchGram(ConvolutionWeight):
    """Norms from the inner products of all pairs of patches."""

    def squared_norms(self) -> Tensor:
        geometry, rows = self.geometry, self.rows
        found = []
        positions = math.prod(self.g.shape[2:]) * rows
        seen = positions * (self.x.shape[1] * math.prod(geometry.kernel) + positions)
        for x, g in self.chunks(_CHUNK // seen):
            columns, grads = _columns(geometry.patches(x), geometry, rows), _columns(g, geometry, rows)
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
                _shifts(geometry, axis, first, x.shape[2 + axis], positions[axis])
                for axis, first in enumerate(phase)
            ]
            if not all(shifts):
                continue
            where = tuple(slice(f, None, s) for f, s in zip(phase, geometry.stride, strict=True))
            image = x[(slice(None), slice(None), *where)]
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


def _shifts(geometry: Geometry, axis: int, phase: int, length: int, positions: int) -> list[int]:
    """How far each tap of the kernel looks along one axis, in steps of the stride.

    Only the taps that fall on this phase and on the image at some position.
    """
    stride = geometry.stride[axis]
    pixels = max(0, -(-(length - phase) // stride))
    taps = (
        tap * geometry.dilation[axis] - geometry.padding[axis] for tap in range(geometry.kernel[axis])
    )
    shifts = [(tap - phase) // stride for tap in taps if (tap - phase) % stride == 0]
    return [shift for shift in shifts if pixels and -positions < shift < pixels]


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


def candidates(
    x: Tensor, g: Tensor, geometry: Geometry, records: int, dots: Tensor | None
) -> dict[str, Candidate]:
    """The ways that are open to one layer, with what each costs."""
    implicit = (x, g, geometry, records, dots)
    rows, groups = x.shape[0] // records, geometry.groups
    inputs, outputs, taps = x.shape[1], g.shape[1], math.prod(geometry.kernel)
    positions, pixels = (math.prod(t.shape[2:]) * rows for t in (g, x))
    numel = outputs * inputs // groups * taps
    gradient = float(records * positions * numel)
    phases = math.prod(min(s, k) for s, k in zip(geometry.stride, geometry.kernel, strict=True))
    kept = 4.0 * records * numel
    pairs = records * groups * positions**2
    scaled = 4.0 * min(x.numel(), g.numel()) + 4.0 * _CHUNK
    pixel_pairs = (pixels / math.prod(geometry.stride)) ** 2 * phases
    return {
        "grouped": Candidate(
            lambda: KeptChunks(ConvolutionWeight(*implicit), _GROUPED),
            # Small images keep a grouped convolution busy with reordering weights.
            gradient * (1.0 + 32.0 / positions) + 2 * records * numel,
            kept,
        ),
        "product": Candidate(
            lambda: KeptChunks(
                ConvolutionWeight(*implicit), _CHUNK // (positions * inputs * taps), True
            ),
            gradient + 2 * records * numel + records * positions * inputs * taps,
            kept + 4.0 * _CHUNK,
        ),
        "patch gram": Candidate(
            lambda: PatchGram(*implicit),
            gradient + pairs * (inputs * taps + outputs) / groups,
            scaled,
        ),
        "pixel gram": Candidate(
            lambda: PixelGram(*implicit),
            gradient + records * pixel_pairs * inputs + pairs * (outputs / groups + taps),
            scaled,
        ),
    }
