"""Which ways are open to the weight of a convolution, and what each costs."""

from __future__ import annotations

import math

from torch import Tensor

from steppe.gradients.kernel_choice import Candidate
from steppe.gradients.slots.convolution import (
    CHUNK,
    ConvolutionWeight,
    KeptChunks,
    PatchGram,
    grouped,
    products,
)
from steppe.gradients.slots.convolution_geometry import Geometry
from steppe.gradients.slots.convolution_pixels import PixelGram

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
    copied = implicit.scaled * min(x.numel(), g.numel()) / max(len(x), 1)
    grams = 2.0 * implicit.patched * geometry.groups * positions**2
    return {
        "grouped": Candidate(
            lambda: KeptChunks(grouped(implicit)), gradient + _REORDERED * weights, 4.0 * weights
        ),
        "product": Candidate(
            lambda: KeptChunks(products(implicit)),
            gradient + _KEPT * weights + _PASS * seen,
            4.0 * (weights + CHUNK),
        ),
        "patch gram": Candidate(
            lambda: PatchGram(x, g, geometry, records, dots),
            gradient + pairs * (inputs * geometry.taps + outputs) + _PASS * (2 * pairs + seen),
            4.0 * (copied + CHUNK + grams),
        ),
        "pixel gram": Candidate(
            lambda: PixelGram(x, g, geometry, records, dots),
            gradient + pixel_pairs * (inputs + passes) + pairs * outputs,
            4.0 * (copied + CHUNK),
        ),
    }
