"""Per-record gradients of a table of which each record touches a few rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from steppe.gradients.slots.slot import Slot, squared_rows, wide, zero_rows


class EmbeddingRows(Slot):
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

    @staticmethod
    def joined(slots: Sequence[EmbeddingRows]) -> EmbeddingRows:
        """Several lookups in one table as one."""
        if len(slots) == 1:
            return slots[0]
        sources, scales, before = [], [], 0
        for slot in slots:
            one_each = torch.arange(len(slot.indices), device=slot.g.device)
            sources.append(before + (one_each if slot.sources is None else slot.sources))
            ones = slot.g.new_ones(len(slot.indices))
            scales.append(ones if slot.scales is None else slot.scales)
            before += len(slot.g)
        return EmbeddingRows(
            torch.cat([slot.g for slot in slots]),
            torch.cat([slot.indices for slot in slots]),
            torch.cat([slot.owners for slot in slots]),
            slots[0].records,
            slots[0].shape,
            torch.cat(sources),
            torch.cat(scales),
        )

    def where(self, keep: Tensor) -> EmbeddingRows:
        """The same without some positions."""
        return EmbeddingRows(
            self.g,
            self.indices[keep],
            self.owners[keep],
            self.records,
            self.shape,
            torch.nonzero(keep).flatten() if self.sources is None else self.sources[keep],
            None if self.scales is None else self.scales[keep],
        )

    @cached_property
    def _gradients(self) -> tuple[Tensor, Tensor, Tensor]:
        """Record, row and summed gradient of every row that a record touches, each pair once.

        Norms and sums both start from these: adding positions to the table one by one would let
        huge terms that cancel in the norm wipe out what the table holds, noise included.
        """
        keys = self.owners * self.shape[0] + self.indices
        if not len(keys):
            return keys, keys, self.g.new_zeros(0, self.g.shape[1])
        keys, order = torch.sort(keys, stable=True)
        first = torch.ones_like(keys, dtype=torch.bool)
        torch.ne(keys[1:], keys[:-1], out=first[1:])
        begin = torch.nonzero(first).flatten()
        sums = F.embedding_bag(
            order if self.sources is None else self.sources[order],
            self.g,
            begin,
            mode="sum",
            per_sample_weights=None if self.scales is None else self.scales[order],
        )
        distinct = keys[begin]
        return distinct // self.shape[0], distinct % self.shape[0], sums

    def padded(self) -> tuple[Tensor, Tensor]:
        """The rows that each record touches `(B, L)` and their gradients `(B, L, d)`.

        L is the most that any record has; the others have gradients of zero at the end.
        """
        owners, rows, sums = self._gradients
        counts = torch.bincount(owners, minlength=self.records)
        first = counts.cumsum(0) - counts
        place = torch.arange(len(owners), device=owners.device) - first[owners]
        longest = int(counts.max()) if len(counts) else 0
        at = rows.new_zeros(self.records, longest)
        gradients = sums.new_zeros(self.records, longest, sums.shape[1])
        at[owners, place], gradients[owners, place] = rows, sums
        return at, gradients

    def squared_norms(self) -> Tensor:
        owners, _, sums = self._gradients
        norms = self.g.new_zeros(self.records, dtype=torch.float64)
        return norms.index_add_(0, owners, squared_rows(sums).double()) if len(sums) else norms

    def add_(self, out: Tensor, factors: Tensor, bad: Tensor) -> None:
        owners, rows, sums = self._gradients
        if len(bad):
            good = ~torch.isin(owners, bad)
            owners, rows, sums = owners[good], rows[good], sums[good]
        scaled = sums * factors.to(sums.dtype)[owners, None]
        out.view(self.shape).index_add_(0, rows, scaled.to(out.dtype))

    def written_out(self) -> Tensor:
        owners, rows, sums = self._gradients
        full = sums.new_zeros(self.records, *self.shape)
        full[owners, rows] = sums
        return full

    def dots(self, weight: Tensor) -> Tensor:
        # From the sums, like the norms: the rounding of terms that cancel in them would stay here.
        owners, rows, sums = self._gradients
        products = (wide(F.embedding(rows, weight)) * sums).sum(1, dtype=torch.float64)
        return products.new_zeros(self.records).index_add_(0, owners, products)


class BagMaximum(Slot):
    """G of record i is Σₖ g[i, k, j] in row `rows[i, k, j]` and column j: the maximum over a bag.

    Args:
        g: gradients `(B, K, d)` of a record's K bags.
        rows: where each of them goes, `(B, K, d)`.
        shape: of the table, `(V, d)`.
    """

    def __init__(self, g: Tensor, rows: Tensor, shape: tuple[int, ...]) -> None:
        self.g, self.rows, self.shape = wide(g), rows.long(), shape
        if self.g.shape[1] > 1:
            self._add_up()

    def _add_up(self) -> None:
        """Two bags of a record may have picked the same entry: sort, and add up equal neighbours.

        Norms and sums both start from the sums, for the same reason as in `EmbeddingRows`.
        """
        rows, order = torch.sort(self.rows, dim=1, stable=True)
        place = torch.zeros_like(rows)
        torch.cumsum(rows[:, 1:] != rows[:, :-1], dim=1, out=place[:, 1:])
        self.g = torch.zeros_like(self.g).scatter_add_(1, place, self.g.gather(1, order))
        self.rows = torch.zeros_like(rows).scatter_(1, place, rows)

    def squared_norms(self) -> Tensor:
        return squared_rows(self.g)

    def add_(self, out: Tensor, factors: Tensor, bad: Tensor) -> None:
        g = zero_rows(self.g, bad) * factors.to(self.g.dtype)[:, None, None]
        table = out.view(self.shape)
        table.scatter_add_(0, self.rows.flatten(0, 1), g.flatten(0, 1).to(out.dtype))

    def written_out(self) -> Tensor:
        full = self.g.new_zeros(len(self.g), *self.shape)
        return full.scatter_add_(1, self.rows, self.g)

    def dots(self, weight: Tensor) -> Tensor:
        picked = wide(weight).expand(len(self.g), *self.shape).gather(1, self.rows)
        return (picked * self.g).sum((1, 2))
