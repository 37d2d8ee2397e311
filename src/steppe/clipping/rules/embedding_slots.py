"""Per-record gradients of a table of which each record touches a few rows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from steppe.clipping.slots import Slot, blank, squared_rows, wide


class Rows(Slot):
    """G of record r is Σ over its positions p of scale_p · g[source_p] in row index_p.

    An index may come up many times in a record, and its gradients then add up before the norm is
    taken. Sorting the positions by record and index makes equal ones neighbours; their sums are
    then bags of an embedding bag over g. That is linear in the number of positions and nothing
    cancels, unlike in a Gram matrix of g masked by equal indices.

    Args:
        g: gradients `(M, d)`.
        indices: the row of the table that each of the P positions goes to.
        owners: the record of each position.
        records: B.
        shape: of the table, `(V, d)`.
        sources: the row of `g` that each position takes; None: position p takes row p.
        scales: a factor for each position; None: 1.
    """

    def __init__(
        self,
        g: Tensor,
        indices: Tensor,
        owners: Tensor,
        records: int,
        shape: tuple[int, ...],
        sources: Tensor | None = None,
        scales: Tensor | None = None,
    ) -> None:
        self.g, self.indices, self.owners = wide(g), indices.long(), owners
        self.records, self.shape = records, shape
        self.sources = None if sources is None else sources.long()
        self.scales = None if scales is None else scales.to(self.g.dtype)

    def where(self, keep: Tensor) -> Rows:
        """The same without some positions."""
        return Rows(
            self.g,
            self.indices[keep],
            self.owners[keep],
            self.records,
            self.shape,
            torch.nonzero(keep).flatten() if self.sources is None else self.sources[keep],
            None if self.scales is None else self.scales[keep],
        )

    def squared_norms(self) -> Tensor:
        keys, sums = self._summed(self._pairs(), self.scales)
        norms = self.g.new_zeros(self.records, dtype=torch.float64)
        if len(keys):
            norms.index_add_(0, keys // self.shape[0], squared_rows(sums).double())
        return norms

    def add_(self, out: Tensor, factors: Tensor, bad: Tensor) -> None:
        if len(bad):
            self.where(~torch.isin(self.owners, bad)).add_(out, factors, bad[:0])
            return
        scales = factors.to(self.g.dtype)[self.owners]
        if self.scales is not None:
            scales = scales * self.scales
        if self.sources is None:
            indices, rows = self.indices, self.g * scales[:, None]
        else:  # several positions may take one row of g, so do not write out a row for each
            indices, rows = self._summed(self.indices, scales)
        out.view(self.shape).index_add_(0, indices, rows.to(out.dtype))

    def written_out(self) -> Tensor:
        keys, sums = self._summed(self._pairs(), self.scales)
        full = sums.new_zeros(self.records * self.shape[0], self.shape[1])
        return full.index_copy_(0, keys, sums).view(self.records, *self.shape)

    def dots(self, weight: Tensor) -> Tensor:
        products = (wide(F.embedding(self.indices, weight)) * self._gathered()).sum(1)
        if self.scales is not None:
            products = products * self.scales
        return products.new_zeros(self.records).index_add_(0, self.owners, products)

    def _gathered(self) -> Tensor:
        """g for every position."""
        return self.g if self.sources is None else self.g[self.sources]

    def _pairs(self) -> Tensor:
        """Record and row of each position as one number, record · V + row."""
        return self.owners * self.shape[0] + self.indices

    def _summed(self, keys: Tensor, scales: Tensor | None) -> tuple[Tensor, Tensor]:
        """The distinct keys, and for each the scaled sum of g over its positions."""
        if not len(keys):
            return keys, self.g.new_zeros(0, self.g.shape[1])
        keys, order = torch.sort(keys, stable=True)
        first = torch.ones_like(keys, dtype=torch.bool)
        torch.ne(keys[1:], keys[:-1], out=first[1:])
        begin = torch.nonzero(first).flatten()
        sums = F.embedding_bag(
            order if self.sources is None else self.sources[order],
            self.g,
            begin,
            mode="sum",
            per_sample_weights=None if scales is None else scales[order],
        )
        return keys[begin], sums


class Picks(Slot):
    """G of record i is Σₖ g[i, k, j] in row `rows[i, k, j]` and column j: the maximum over a bag.

    Args:
        g: gradients `(B, K, d)` of a record's K bags.
        rows: where each of them goes, `(B, K, d)`.
        shape: of the table, `(V, d)`.
    """

    def __init__(self, g: Tensor, rows: Tensor, shape: tuple[int, ...]) -> None:
        self.g, self.rows, self.shape = wide(g), rows.long(), shape

    def squared_norms(self) -> Tensor:
        if self.g.shape[1] == 1:
            return squared_rows(self.g)
        # Two bags of a record may have picked the same entry: sort, and add up equal neighbours.
        rows, order = torch.sort(self.rows, dim=1, stable=True)
        place = torch.zeros_like(rows)
        torch.cumsum(rows[:, 1:] != rows[:, :-1], dim=1, out=place[:, 1:])
        return squared_rows(
            torch.zeros_like(self.g).scatter_add_(1, place, self.g.gather(1, order))
        )

    def add_(self, out: Tensor, factors: Tensor, bad: Tensor) -> None:
        g = blank(self.g, bad) * factors.to(self.g.dtype)[:, None, None]
        table = out.view(self.shape)
        table.scatter_add_(0, self.rows.flatten(0, 1), g.flatten(0, 1).to(out.dtype))

    def written_out(self) -> Tensor:
        full = self.g.new_zeros(len(self.g), *self.shape)
        return full.scatter_add_(1, self.rows, self.g)

    def dots(self, weight: Tensor) -> Tensor:
        picked = wide(weight).expand(len(self.g), *self.shape).gather(1, self.rows)
        return (picked * self.g).sum((1, 2))
