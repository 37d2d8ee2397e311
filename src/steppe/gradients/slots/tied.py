"""Several uses of one weight: a record's gradient is the sum over them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from steppe.gradients.slots.embedding import EmbeddingRows
from steppe.gradients.slots.outer import Outer, Single
from steppe.gradients.slots.slot import CANCELLED, Materialised, Slot, wide, wide_dtype


def sum_of_uses(slots: Sequence[Slot]) -> Slot:
    """One slot for a weight that was used several times.

    Uses of the same kind are one use with more positions: a cell that is called step by step costs
    as much as a layer that sees the whole sequence, and a table that is looked up twice as much as
    one that is looked up once. Only where kinds meet that have no inner product of their own are
    the gradients written out.
    """
    tables = [slot for slot in slots if type(slot) is EmbeddingRows]
    products = [slot for slot in slots if type(slot) is Outer or type(slot) is Single]
    if len(tables) + len(products) == len(slots):
        if not products:
            return EmbeddingRows.joined(tables)
        if (product := _joined(products)) is not None:
            return Tied(product, EmbeddingRows.joined(tables)) if tables else product
    total = slots[0].written_out()
    for slot in slots[1:]:
        total = total + slot.written_out()
    return Materialised(total)


def _joined(slots: Sequence[Outer | Single]) -> Outer | None:
    """All products as one; None where there are so many positions that writing out is cheaper."""
    x = [_positions(slot.x) for slot in slots]
    g = [_positions(slot.g) for slot in slots]
    positions, inputs, outputs = sum(part.shape[1] for part in x), x[0].shape[2], g[0].shape[2]
    if positions * (inputs + outputs) > inputs * outputs:
        return None
    if len(slots) == 1 and type(slots[0]) is Outer:
        return slots[0]  # it may know its norms already
    return Outer(torch.cat(x, dim=1), torch.cat(g, dim=1))


def _positions(tensor: Tensor) -> Tensor:
    return tensor.unsqueeze(1) if tensor.ndim == 2 else tensor


class Tied(Slot):
    """A + B: a table that records multiply by (A) and look up (B), as a language model does whose
    last layer is its word embedding.

    ‖A + B‖² = ‖A‖² + ‖B‖² + 2⟨A, B⟩. With A = Σₜ gₜxₜᵀ and rows bᵣ of B the inner product is
    Σₜᵣ gₜ[r] ⟨xₜ, bᵣ⟩: no record needs a copy of the table.

    Args:
        product: A, with `x` `(B, T, d)` and `g` `(B, T, V)`.
        table: B, of the shape `(V, d)`.
    """

    def __init__(self, product: Outer, table: EmbeddingRows) -> None:
        self.product, self.table = product, table

    def squared_norms(self) -> Tensor:
        squares = self.product.squared_norms().double() + self.table.squared_norms()
        crossed = 2.0 * self._inner_products()
        # A and B may cancel. The rounding of their own norms is then added on top.
        guard = CANCELLED * torch.finfo(wide_dtype(self.product.x)).eps
        total = (squares + crossed).clamp_(min=0.0).add_(squares, alpha=guard)
        # Minus infinity must not count as a short gradient.
        return total.masked_fill_(~torch.isfinite(crossed), math.inf)

    def _inner_products(self) -> Tensor:
        """⟨A, B⟩ for every record, in float64: float32 could overflow where the norms do not."""
        rows, gradients = self.table.padded()
        x, g = self.product.x, self.product.g
        pairs = torch.bmm(x.double(), gradients.double().mT)
        picked = g.gather(2, rows.unsqueeze(1).expand(-1, g.shape[1], -1))
        return pairs.mul_(picked).sum((1, 2))

    def add_(self, out: Tensor, factors: Tensor, bad: Tensor) -> None:
        self.product.add_(out, factors, bad)
        self.table.add_(out, factors, bad)

    def written_out(self) -> Tensor:
        return self.product.written_out() + self.table.written_out()

    def dots(self, weight: Tensor) -> Tensor:
        return self.product.dots(weight).double() + self.table.dots(wide(weight))
