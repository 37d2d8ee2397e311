"""Norms of sums of outer products, from inner products of their factors.

An inner product of xₛ and xₜ that is rounded r times on its way is off by up to r roundings of
‖xₛ‖‖xₜ‖, however small it is itself. So the squared norm Σₛₜ ⟨xₛ,xₜ⟩⟨gₛ,gₜ⟩ may lose up to r of

    Σₛₜ ‖xₛ‖‖xₜ‖ |⟨gₛ,gₜ⟩| + |⟨xₛ,xₜ⟩| ‖gₛ‖‖gₜ‖  ≤  ‖x‖² ‖K(g)‖ + ‖K(x)‖ ‖g‖²

where K is the matrix of inner products. If the terms cancel, that is more than the norm itself: it
would come out too small and the record would be clipped too little. So the bound on the right is
added to the squared norm, which is then never below the truth. Where positions have little to do
with each other, the entries beside the diagonals are small and so is the bound.

In which order a matrix product adds, and so how often it rounds, is not known. A compiled kernel
goes on in float64 after a few sums in float32 and counts its roundings; without it, everything is
in float64, where even one for each number is next to nothing.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

try:
    from steppe.gradients.native import _gram_norms
except ImportError:  # installed without a C compiler, or a processor without AVX2
    COMPILED = False
else:
    COMPILED = True

_ROUNDING = 0.505  # units in the last place that one takes: a half, and 1 % for second order
_LOST = 1e6  # smallest numbers, by underflow, in an entry of a Gram matrix of up to 1e6 columns


def paired_rows(x: Tensor, g: Tensor) -> Tensor:
    """‖Σₜ gₜxₜᵀ‖² from `x` `(B, T, d)` and `g` `(B, T, p)`, in float64.

    Guarantees:
        Not below the true value, however much the terms cancel or underflow; infinite where they
        are not finite, or their sum overflows. By the compiled kernel, a
        record's norm is the same to the last bit, whatever the other records are, unless
        denormals are flushed, which torch tells one of its threads only.
    """
    if kernel_takes(x, g):
        return _in_one_pass(x, g, None)
    gram_x, gram_g = (new_matrices(t, torch.float64) for t in (x, g))
    return paired_(gram_x, gram_g, *(roundings(t.shape[2], torch.float64) for t in (x, g)))


def paired_rows_and_sums(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """The same, and Σₜ gₜ of every record, which the kernel computes in the same pass."""
    if kernel_takes(x, g):
        sums = g.new_empty(len(g), g.shape[2])
        return _in_one_pass(x, g, sums), sums
    return paired_rows(x, g), g.sum(1)


def cost(x: Tensor, g: Tensor) -> tuple[float, float]:
    """How many multiplications `paired_rows` takes, and how many bytes it holds on its way."""
    records, positions = x.shape[:2]
    widths = records * (x.shape[2] + g.shape[2])
    if kernel_takes(x, g):
        return widths * positions * (positions + 1) / 2, 0.0
    return 2.0 * widths * positions**2, 8.0 * (widths * positions + 2 * records * positions**2)


def precision(*vectors: Tensor) -> torch.dtype:
    """What Gram matrices of such vectors are made in."""
    return torch.float32 if kernel_takes(*vectors) else torch.float64


def matrices(vectors: Tensor, out: Tensor) -> Tensor:
    """The inner products of all pairs of vectors of a record, `(B, T, T)`.

    Args:
        vectors: `(B, T, d)`.
        out: what is overwritten, one number after another, in the `precision` of these vectors or
            in float64.
    """
    vectors = vectors.to(out.dtype)
    if out.dtype == torch.float64:
        return torch.bmm(vectors, vectors.mT, out=out)
    _gram_norms.gram_matrices(_array(vectors), out.numpy(), torch.get_num_threads())
    return out


def new_matrices(vectors: Tensor, dtype: torch.dtype) -> Tensor:
    """The same in memory of their own."""
    shape = *vectors.shape[:2], vectors.shape[1]
    return matrices(vectors, vectors.new_empty(shape, dtype=dtype))


def roundings(length: int, dtype: torch.dtype) -> float:
    """How often a product is rounded at most on its way into an entry of `matrices`."""
    if dtype == torch.float64:
        return length + 1.0
    return _gram_norms.roundings(length) + 1.0  # once more where the entry is stored


def paired_(gram_x: Tensor, gram_g: Tensor, rounded_x: float, rounded_g: float) -> Tensor:
    """‖Σₜ gₜxₜᵀ‖² from two Gram matrices `(B, T, T)`; may overwrite the first.

    Args:
        gram_x, gram_g: inner products of all pairs of positions, from `matrices`.
        rounded_x, rounded_g: how often a product was rounded on its way into an entry.

    Guarantees:
        As for `paired_rows`.
    """
    limits, positions = torch.finfo(gram_x.dtype), gram_x.shape[1]
    share_x, share_g = (_ROUNDING * limits.eps * r for r in (rounded_x, rounded_g))
    lost = _LOST * limits.tiny
    if gram_x.dtype == torch.float32:
        norms = torch.empty(len(gram_x), dtype=torch.float64, device="cpu")
        arrays = gram_x.numpy(), gram_g.numpy(), norms.numpy()
        _gram_norms.matrix_norms(*arrays, share_x, share_g, lost, torch.get_num_threads())
        return norms
    trace_x, trace_g = (gram.diagonal(dim1=1, dim2=2).sum(1) for gram in (gram_x, gram_g))
    size_x, size_g = (torch.linalg.vector_norm(g, dim=(1, 2)) for g in (gram_x, gram_g))
    total = gram_x.mul_(gram_g).sum((1, 2))
    found = total.clamp(min=0.0)
    found += share_x * trace_x * size_g + share_g * size_x * trace_g
    found += positions * lost * (trace_x + trace_g + 2 * positions * lost)
    # Terms of either sign may overflow: minus infinity must not count as a short gradient.
    return found.masked_fill_(~torch.isfinite(total), math.inf)


def kernel_takes(*vectors: Tensor) -> bool:
    """Whether there is a compiled kernel, and for such vectors: the last axis is theirs."""
    return COMPILED and all(
        some.dtype == torch.float32
        and some.device.type == "cpu"
        and some.shape[-1] >= _gram_norms.SHORTEST
        for some in vectors
    )


_SINGLE = torch.finfo(torch.float32)


def _in_one_pass(x: Tensor, g: Tensor, sums: Tensor | None) -> Tensor:
    """What `paired_rows` returns, by the compiled kernel; overwrites `sums` with Σₜ gₜ."""
    norms = torch.empty(len(x), dtype=torch.float64, device="cpu")
    share = _ROUNDING * _SINGLE.eps
    _gram_norms.gram_norms(
        _array(x),
        _array(g),
        norms.numpy(),
        None if sums is None else sums.numpy(),
        share * _gram_norms.roundings(x.shape[2]),
        share * _gram_norms.roundings(g.shape[2]),
        _LOST * _SINGLE.tiny,
        torch.get_num_threads(),
    )
    return norms


def _array(vectors: Tensor) -> NDArray[np.float32]:
    """The same numbers as the kernel wants them: those of a vector one after another."""
    if vectors.stride(2) != 1:
        vectors = vectors.contiguous()
    return vectors.detach().resolve_neg().numpy()
