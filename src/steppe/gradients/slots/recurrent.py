"""Per-record gradients of recurrent weights: sums over time that share their δ."""

from __future__ import annotations

import torch
from torch import Tensor

from steppe.gradients.slots.ghost_norms import new_matrices, paired_, precision, roundings
from steppe.gradients.slots.outer import Outer
from steppe.gradients.slots.slot import zero_rows


class Gram:
    """⟨δₜ, δₛ⟩ for every record, computed once for all weights that share δ.

    Args:
        delta: `(B, T, gates)`.
    """

    def __init__(self, delta: Tensor) -> None:
        self.delta = delta
        self._made: dict[torch.dtype, Tensor] = {}

    def matrix(self, dtype: torch.dtype) -> Tensor:
        """`(B, T, T)`."""
        if dtype not in self._made:
            self._made[dtype] = new_matrices(self.delta, dtype)
        return self._made[dtype]


class InTime(Outer):
    """Σₜ δₜxₜᵀ where δ is shared with other weights and memory is time-major.

    Args:
        x: `(B, T, d)`, a view of `(T, B, d)`.
        gram: δ and its Gram matrix.
        dots: ⟨Gᵢ, W⟩ where they are known already.
    """

    def __init__(self, x: Tensor, gram: Gram, dots: Tensor | None = None) -> None:
        super().__init__(x, gram.delta, dots)
        self.gram = gram

    def squared_norms(self) -> Tensor:
        dtype = precision(self.x, self.g)
        made = new_matrices(self.x, dtype), self.gram.matrix(dtype)
        return paired_(*made, *(roundings(t.shape[2], dtype) for t in (self.x, self.g)))

    def add_(self, out: Tensor, factors: Tensor, bad: Tensor) -> None:
        x, g = zero_rows(self.x, bad), zero_rows(self.g, bad)
        x = x * factors.to(x.dtype)[:, None, None]  # the gates are always the wider side
        # Time first: that is how both lie in memory, so neither is copied.
        x, g = x.transpose(0, 1).flatten(0, 1), g.transpose(0, 1).flatten(0, 1)
        out.view(g.shape[1], x.shape[1]).addmm_(g.t().to(out.dtype), x.to(out.dtype))
