"""Norms of sums of outer products, from inner products of their factors.

A float32 inner product of xₛ and xₜ is off by a few units in the last place of ‖xₛ‖‖xₜ‖, however
small it is itself. So of the squared norm Σₛₜ ⟨xₛ,xₜ⟩⟨gₛ,gₜ⟩ rounding may take a few units of

    Σₛₜ ‖xₛ‖‖xₜ‖ |⟨gₛ,gₜ⟩| + |⟨xₛ,xₜ⟩| ‖gₛ‖‖gₜ‖  ≤  ‖x‖² ‖K(g)‖ + ‖K(x)‖ ‖g‖²

where K is the matrix of inner products. If the terms cancel, that is more than the norm itself: it
would come out too small and the record would be clipped too little. So units of the bound on the
right are added to the squared norm: by the compiled kernel as many as it can lose, so that it is
never below the truth, and where torch multiplies as many as were seen lost, and some more. Where
positions have little to do with each other, the entries beside the diagonals are small and so is
the bound.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

try:
    from steppe.clipping import _gram_norms
except ImportError:  # installed without a C compiler, or a processor without AVX2
    COMPILED = False
else:
    COMPILED = True

GUARD = 5.0
"""How many such units where torch multiplies: in which order it adds, and so how often it rounds,
is not known. Features that differ lost up to 0.6 of them. It is no bound: features that are all one
number, or so small that they vanish beside a larger one, round in one direction and lose more."""

_ROUNDING = 0.505  # units that an operation of the kernel takes: a half, and 1 % for second order

_LONG = 20.0  # the same of vectors so long that √length / 20 is more: 10,000 numbers and up


_LOST = 1e6  # smallest numbers, by underflow, in an entry of a Gram matrix of up to 1e6 columns


def _units(length: int) -> float:
    return max(GUARD, math.sqrt(length) / _LONG)


def paired_(gram_x: Tensor, gram_g: Tensor, length: int) -> Tensor:
    """‖Σₜ gₜxₜᵀ‖² from the two Gram matrices `(B, T, T)`; overwrites the first.

    Args:
        gram_x, gram_g: inner products of all pairs of positions.
        length: of the vectors, the longer ones.

    Guarantees:
        Not below the true value by more than rounding, however much the terms underflow, or cancel
        as far as `GUARD` goes; infinite where their sum leaves float32.
    """
    trace_x, trace_g = _trace(gram_x), _trace(gram_g)
    size_x, size_g = _size(trace_x, _squares(gram_x)), _size(trace_g, _squares(gram_g))
    rounding = trace_x * size_g + size_x * trace_g
    total = gram_x.mul_(gram_g).sum((1, 2)).double()
    return _guarded(total, rounding, trace_x + trace_g, gram_x, length)


def paired_rows(x: Tensor, g: Tensor) -> Tensor:
    """‖Σₜ gₜxₜᵀ‖² from `x` `(B, T, d)` and `g` `(B, T, p)`, by the lower halves of their Gram
    matrices.

    Guarantees:
        As for `paired_`. By the compiled kernel, not below the true value at all, whatever the
        numbers are, and a record's norm is the same to the last bit, whoever and however many the
        others are.
    """
    if _kernel_takes(x, g):
        return _in_one_pass(x, g, None)
    length = max(x.shape[2], g.shape[2])
    half = x.shape[1] // 2 // 16 * 16  # products like multiples of 16
    if not half:
        return paired_(torch.bmm(x, x.mT), torch.bmm(g, g.mT), length)
    upper_x, upper_g = (torch.bmm(t[:, :half], t[:, :half].mT) for t in (x, g))
    lower_x, lower_g = (torch.bmm(t[:, half:], t.mT) for t in (x, g))
    trace_x = _trace(upper_x) + _trace(lower_x, half)
    trace_g = _trace(upper_g) + _trace(lower_g, half)
    # Twice for all that lies below: what is left of it stands above too.
    size_x = _size(trace_x, _squares(upper_x) + 2.0 * _squares(lower_x))
    size_g = _size(trace_g, _squares(upper_g) + 2.0 * _squares(lower_g))
    rounding = trace_x * size_g + size_x * trace_g
    total = upper_x.mul_(upper_g).sum((1, 2)).double()
    lower_x.mul_(lower_g)[:, :, :half].mul_(2.0)  # for what lies right of the diagonal
    total += lower_x.sum((1, 2))
    return _guarded(total, rounding, trace_x + trace_g, x, length)


def paired_rows_and_sums(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """The same, and Σₜ gₜ of every record: one pass where the kernel reads g anyway."""
    if _kernel_takes(x, g):
        sums = g.new_empty(len(g), g.shape[2])
        return _in_one_pass(x, g, sums), sums
    return paired_rows(x, g), g.sum(1)


def _kernel_takes(*vectors: Tensor) -> bool:
    """Whether there is a compiled kernel, and for such vectors."""
    return COMPILED and all(
        some.dtype == torch.float32
        and some.device.type == "cpu"
        and some.shape[2] >= _gram_norms.SHORTEST
        for some in vectors
    )


def _in_one_pass(x: Tensor, g: Tensor, sums: Tensor | None) -> Tensor:
    """What `paired_rows` returns, by the compiled kernel; overwrites `sums` with Σₜ gₜ."""
    norms = torch.empty(len(x), dtype=torch.float64, device="cpu")
    _gram_norms.gram_norms(
        _array(x),
        _array(g),
        norms.numpy(),
        None if sums is None else sums.numpy(),
        _ROUNDING * _SINGLE.eps,
        _LOST * _SINGLE.tiny,
        torch.get_num_threads(),
    )
    return norms


_SINGLE = torch.finfo(torch.float32)


def _array(vectors: Tensor) -> NDArray[np.float32]:
    """The same numbers as the kernel wants them: those of a vector one after another."""
    if vectors.stride(2) != 1:
        vectors = vectors.contiguous()
    return vectors.detach().resolve_neg().numpy()


def _trace(gram: Tensor, first: int = 0) -> Tensor:
    """Sum of the diagonal, which begins in column `first`: a squared norm."""
    return gram.diagonal(first, dim1=1, dim2=2).sum(1, dtype=torch.float64)


def _squares(gram: Tensor) -> Tensor:
    """Sum of the squares of all entries, where float32 can hold them."""
    return torch.linalg.vector_norm(gram.flatten(1), dim=1).double().square_()


def _size(trace: Tensor, squares: Tensor) -> Tensor:
    """‖K‖ of a Gram matrix. The trace is never less, and stands for it where squares of entries
    would leave float32 or vanish in it."""
    return torch.where((trace > 1e-12) & (trace < 1e15), squares.sqrt_(), trace)


def _guarded(total: Tensor, rounding: Tensor, traces: Tensor, like: Tensor, length: int) -> Tensor:
    """A sum over all pairs of positions, with what rounding and underflow may have taken from it.

    Args:
        total: the sum, in float64.
        rounding: what it may be off by, in units of the last place.
        traces: squared norms of x and of g, added up.
        like: a `(B, T, ...)` tensor of the type in which the terms were computed.
        length: how many numbers an inner product adds up.
    """
    limits, positions = torch.finfo(like.dtype), like.shape[1]
    lost = _LOST * limits.tiny
    traces = traces + 2 * positions * lost
    found = total.clamp(min=0.0).add_(rounding, alpha=_units(length) * limits.eps)
    found.add_(traces, alpha=positions * lost)
    found.add_(positions**2 * limits.tiny)  # a product of two entries may underflow too
    # Terms of either sign may leave float32 on their way: minus infinity is no short gradient.
    return found.masked_fill_(~torch.isfinite(total), math.inf)
