"""Per-example gradients of anything linear: weights, from sums of outer products, and biases."""

from __future__ import annotations

import torch
from torch import Tensor

from steppe.gradients.slots.ghost_norms import paired_rows, paired_rows_and_sums
from steppe.gradients.slots.slot import SHORT, Slot, squared_rows, wide, wide_dtype, zero_rows


class Outer(Slot):
    """Σₜ gₜ xₜᵀ: the weight of anything linear. `x` is `(B, T, d)`, `g` is `(B, T, p)`.

    Two Gram matrices give the norm without writing the gradient out.
    """

    def __init__(self, x: Tensor, g: Tensor, dots: Tensor | None = None) -> None:
        self.x, self.g, self._dots = x, g, dots
        self.summed_g: Tensor | None = None  # Σₜ gₜ of every record, where it is known already
        self._norms: Tensor | None = None
        self._seen = (-1, -1)

    def measured(self) -> Outer:
        """The same, with its norms and the sums of `g` taken now, while it is in cache.

        Guarantees:
            They are taken again where `x` or `g` was changed in place since: the sum is clipped by
            the norms of what it adds.
        """
        self._norms, self.summed_g = paired_rows_and_sums(wide(self.x), wide(self.g))
        self._seen = self._versions
        return self

    @property
    def _versions(self) -> tuple[int, int]:
        return self.x._version, self.g._version

    def squared_norms(self) -> Tensor:
        if self._norms is not None and self._seen == self._versions:
            return self._norms
        return paired_rows(wide(self.x), wide(self.g))

    def add_(self, out: Tensor, factors: Tensor, bad: Tensor) -> None:
        # Convert first: a factor rounded to bfloat16 could make a record's part 0.4 % too long.
        x, g = wide(zero_rows(self.x, bad)), wide(zero_rows(self.g, bad))
        each = factors.view(-1, 1, 1)
        # Scale whichever side is narrower: it is the cheaper copy.
        if g.shape[2] <= x.shape[2]:
            g = g * each
        else:
            x = x * each
        x, g = x.reshape(-1, x.shape[2]), g.reshape(-1, g.shape[2])
        out.view(g.shape[1], x.shape[1]).addmm_(g.t(), x)

    def written_out(self) -> Tensor:
        return torch.bmm(wide(self.g).mT, wide(self.x))

    def dots(self, weight: Tensor) -> Tensor:
        if self._dots is not None:
            return self._dots
        matrix = wide(weight.reshape(self.g.shape[2], self.x.shape[2]))
        # Not by a product over all positions at once, which would round far more than a sum does.
        return (wide(self.x) @ matrix.t()).mul_(wide(self.g)).sum((1, 2))

    def transposed(self) -> Outer:
        turned = Outer(self.g, self.x, self._dots)
        turned._norms, turned._seen = self._norms, self._seen[::-1]
        return turned


class Single(Slot):
    """g xᵀ: the weight of anything linear that a record meets once. `x` is `(B, d)`, `g` `(B, p)`.

    The norm is a product of two norms. Small models consist of little else, so this says in few
    calls what `Outer` would say of one position.
    """

    def __init__(self, x: Tensor, g: Tensor, dots: Tensor | None = None) -> None:
        self.x, self.g, self._dots = x, g, dots
        self._squared_g: Tensor | None = None

    def squared_g(self) -> Tensor:
        """Squared norms of g, which a bias at the same place needs too."""
        if self._squared_g is None:
            self._squared_g = squared_rows(self.g)
        return self._squared_g

    def squared_norms(self) -> Tensor:
        return squared_rows(self.x).mul_(self.squared_g())

    def add_(self, out: Tensor, factors: Tensor, bad: Tensor) -> None:
        x, g = (
            wide(zero_rows(self.x, bad)),
            wide(zero_rows(self.g, bad)),
        )
        outputs, inputs = g.shape[1], x.shape[1]
        total = out.view(outputs, inputs)
        if outputs <= SHORT and inputs <= SHORT:
            # Norms of rows so short do not overflow, so one side may hold the largest numbers there
            # are. In float32 the other, times its factor, would then be left with few digits.
            total += (g.t() * factors.double()) @ x.double()
        elif outputs <= inputs:
            total.addmm_(g.t() * factors, x)
        else:
            total.addmm_(g.t(), x * factors.unsqueeze(1))

    def written_out(self) -> Tensor:
        return wide(self.g).unsqueeze(2) * wide(self.x).unsqueeze(1)

    def dots(self, weight: Tensor) -> Tensor:
        if self._dots is not None:
            return self._dots
        matrix = wide(weight.reshape(self.g.shape[1], self.x.shape[1]))
        return (wide(self.g) * (wide(self.x) @ matrix.t())).sum(1)

    def transposed(self) -> Single:
        return Single(self.g, self.x, self._dots)


class Summed(Slot):
    """Σₜ gₜ: a bias. `g` is `(B, T, p)`, or `(B, p)` where there is one position.

    Args:
        g: output gradients.
        beside: the weight's slot at the same place; it may know the sums already, or, with one
            position, the norms.
    """

    def __init__(self, g: Tensor, beside: Slot | None = None) -> None:
        self._beside: Single | None = None
        if g.ndim == 2:
            self.gradients = wide(g)
            self._beside = beside if type(beside) is Single else None
        elif type(beside) is Outer and beside.summed_g is not None:
            self.gradients = beside.summed_g
        else:
            self.gradients = g.sum(1, dtype=wide_dtype(g))

    def squared_norms(self) -> Tensor:
        return squared_rows(self.gradients) if self._beside is None else self._beside.squared_g()

    def add_(self, out: Tensor, factors: Tensor, bad: Tensor) -> None:
        out.addmv_(zero_rows(self.gradients, bad).t(), factors)

    def written_out(self) -> Tensor:
        return self.gradients
