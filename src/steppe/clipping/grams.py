"""Norms of sums of outer products, from inner products of their factors.

A float32 inner product of xₛ and xₜ is off by a few units in the last place of ‖xₛ‖‖xₜ‖, however
small it is itself. So of the squared norm Σₛₜ ⟨xₛ,xₜ⟩⟨gₛ,gₜ⟩ rounding may take a few units of

    Σₛₜ ‖xₛ‖‖xₜ‖ |⟨gₛ,gₜ⟩| + |⟨xₛ,xₜ⟩| ‖gₛ‖‖gₜ‖

Where the terms cancel that is more than the norm itself: it would come out too small and the record
would be clipped too little. The bound is added to the squared norm, so that it is never below the
truth. Where positions have little to do with each other, the entries beside the diagonals are small
and so is the bound.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

GUARD = 6.0
"""How many such units: records made to cancel lost less than half of them."""

_LONG = 20.0  # the same of vectors so long that √length / 20 is more: 14,400 numbers and up


def paired_(gram_x: Tensor, gram_g: Tensor, length: int) -> Tensor:
    """‖Σₜ gₜxₜᵀ‖² from the two Gram matrices `(B, T, T)`; overwrites the first.

    Args:
        gram_x, gram_g: inner products of all pairs of positions.
        length: of the vectors, the longer ones.

    Guarantees:
        Not below the true value by more than rounding, however much the terms cancel or underflow;
        infinite where their sum leaves float32.
    """
    squares_x, squares_g = (gram.diagonal(dim1=1, dim2=2) for gram in (gram_x, gram_g))
    traces = _sum(squares_x) + _sum(squares_g)
    of_x, of_g = squares_x.sqrt(), squares_g.sqrt()
    sizes = _sizes(gram_g, of_x, of_x) + _sizes(gram_x, of_g, of_g)
    total = gram_x.mul_(gram_g).sum((1, 2)).double()
    return _guarded(total, sizes, traces, gram_x, length)


def paired_rows(x: Tensor, g: Tensor) -> Tensor:
    """‖Σₜ gₜxₜᵀ‖² from `x` `(B, T, d)` and `g` `(B, T, p)`, by the lower halves of their Gram
    matrices.

    Guarantees:
        As for `paired_`.
    """
    half = x.shape[1] // 2 // 16 * 16  # products like multiples of 16
    length = max(x.shape[2], g.shape[2])
    if not half:
        return paired_(torch.bmm(x, x.mT), torch.bmm(g, g.mT), length)
    upper_x, upper_g = (torch.bmm(t[:, :half], t[:, :half].mT) for t in (x, g))
    lower_x, lower_g = (torch.bmm(t[:, half:], t.mT) for t in (x, g))
    sizes = traces = torch.zeros((), dtype=torch.float64, device=x.device)
    halves = (upper_x, lower_x), (upper_g, lower_g)
    for of, others in (halves, halves[::-1]):
        first, last = of[0].diagonal(dim1=1, dim2=2), of[1].diagonal(half, dim1=1, dim2=2)
        traces = traces + _sum(first) + _sum(last)
        first, last = first.sqrt(), last.sqrt()
        sizes = sizes + _sizes(others[0], first, first)
        sizes = sizes + _sizes(others[1], last, torch.cat([2.0 * first, last], 1))
    total = upper_x.mul_(upper_g).sum((1, 2)).double()
    lower_x.mul_(lower_g)[:, :, :half].mul_(2.0)  # for what lies right of the diagonal
    total += lower_x.sum((1, 2))
    return _guarded(total, sizes, traces, x, length)


def _sum(rows: Tensor) -> Tensor:
    return rows.sum(1, dtype=torch.float64)


def _sizes(gram: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Σₛₜ leftₛ |gramₛₜ| rightₜ for every record."""
    return _sum(torch.bmm(left.unsqueeze(1), gram.abs()).squeeze(1) * right)


def _guarded(total: Tensor, sizes: Tensor, traces: Tensor, like: Tensor, length: int) -> Tensor:
    """A sum over all pairs of positions, with what rounding and underflow may have taken from it.

    Args:
        total: the sum, in float64.
        sizes: what its rounding is in proportion to.
        traces: squared norms of x and of g, added up.
        like: a `(B, T, ...)` tensor of the type in which the terms were computed.
        length: how many numbers an inner product adds up.
    """
    limits, positions = torch.finfo(like.dtype), like.shape[1]
    lost = 1e6 * limits.tiny  # by underflow, in one entry of a Gram matrix of up to 1e6 columns
    traces = traces + 2 * positions * lost
    units = max(GUARD, math.sqrt(length) / _LONG)
    found = total.clamp(min=0.0).add_(sizes, alpha=units * limits.eps)
    found.add_(traces, alpha=positions * lost)
    found.add_(positions**2 * limits.tiny)  # a product of two entries may underflow too
    # Terms of either sign may leave float32 on their way: minus infinity is no short gradient.
    return found.masked_fill_(~torch.isfinite(total), math.inf)
