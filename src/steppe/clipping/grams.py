"""Norms of sums of outer products, from inner products of their factors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# A float32 sum of products carries an error of a few units in the last place *of its terms*.
# Where the terms cancel, the norm would come out too small and the record would be clipped too
# little; adding the error bound to the squared norm keeps the bound on the safe side.
GUARD = 4.0


def paired_(gram_x: Tensor, gram_g: Tensor) -> Tensor:
    """‖Σₜ gₜxₜᵀ‖² from the two Gram matrices `(B, T, T)`; overwrites the first.

    Guarantees:
        Not below the true value by more than rounding, however much the terms cancel or underflow;
        infinite where their sum leaves float32.
    """
    trace_x, trace_g = (_trace(gram) for gram in (gram_x, gram_g))
    total = gram_x.mul_(gram_g).sum((1, 2)).double()
    return _guarded(total, trace_x, trace_g, gram_x)


def paired_rows(x: Tensor, g: Tensor) -> Tensor:
    """‖Σₜ gₜxₜᵀ‖² from `x` `(B, T, d)` and `g` `(B, T, p)`, by the lower halves of their Gram
    matrices.

    Guarantees:
        As for `paired_`.
    """
    positions = x.shape[1]
    half = positions // 2 // 16 * 16  # products like multiples of 16
    if not half:
        return paired_(torch.bmm(x, x.mT), torch.bmm(g, g.mT))
    upper_x, upper_g = (torch.bmm(t[:, :half], t[:, :half].mT) for t in (x, g))
    lower_x, lower_g = (torch.bmm(t[:, half:], t.mT) for t in (x, g))
    trace_x = _trace(upper_x) + _trace(lower_x, half)
    trace_g = _trace(upper_g) + _trace(lower_g, half)
    total = upper_x.mul_(upper_g).sum((1, 2)).double()
    lower_x.mul_(lower_g)[:, :, :half].mul_(2.0)  # for what lies right of the diagonal
    total += lower_x.sum((1, 2))
    return _guarded(total, trace_x, trace_g, x)


def _trace(gram: Tensor, first: int = 0) -> Tensor:
    """Sum of the diagonal, which begins in column `first`: a squared norm."""
    return gram.diagonal(first, dim1=1, dim2=2).sum(1, dtype=torch.float64)


def _guarded(total: Tensor, trace_x: Tensor, trace_g: Tensor, like: Tensor) -> Tensor:
    """A sum over all pairs of positions, with what rounding and underflow may have taken from it.

    Args:
        total: the sum, in float64; overwritten.
        trace_x, trace_g: squared norms of x and g. Their product bounds the sum of all terms.
        like: a `(B, T, ...)` tensor of the type in which the terms were computed.
    """
    limits, positions = torch.finfo(like.dtype), like.shape[1]
    lost = 1e6 * limits.tiny  # by underflow, in one entry of a Gram matrix of up to 1e6 columns
    trace_x, trace_g = trace_x + positions * lost, trace_g + positions * lost
    # Terms of either sign may leave float32 on their way: minus infinity is no short gradient.
    total.masked_fill_(~torch.isfinite(total), math.inf)
    total.clamp_(min=0.0).add_(trace_x * trace_g, alpha=GUARD * limits.eps)
    total.add_(trace_x.add_(trace_g), alpha=positions * lost)
    return total.add_(positions**2 * limits.tiny)  # a product of two entries may underflow too
