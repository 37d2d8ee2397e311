"""The owners of random numbers: a draw that grows with the batch belongs to its records.

A draw of the same shape for all batch sizes is shared by all records, and its distribution is the
same in every batch. A draw that grows has numbers for each record, which belong to it. So the rules
treat random numbers like other values of a record: if they are sorted, summed or shifted among
records, the result is mixed.

Two passes of different batch sizes show which draws grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from steppe.isolation.owners import FREE, MIXED, TYPE, everywhere

Shape = tuple[int, ...]
_OTHERWISE = -1  # grows, but not by a whole number of rows per record
_aten = torch.ops.aten
# Drawn jointly along the last axis: without replacement, or with sum one.
_TOGETHER = frozenset((_aten.randperm, _aten.multinomial, _aten._sample_dirichlet))


@dataclass(frozen=True)
class Draw:
    """One operation that draws random numbers.

    Attributes:
        operation: without its overload.
        shapes: of what it returned.
        given: the shapes of its arguments.
        free: whether some numbers belong to no record.
    """

    operation: Any
    shapes: tuple[Shape, ...]
    given: tuple[Shape, ...]
    free: bool


@dataclass(frozen=True)
class RandomOwners:
    """The owners of the random numbers of a pass, draw by draw.

    Attributes:
        rows: for each draw and each of its results, the axes that grow, with the number of rows of
            a record there, or `_OTHERWISE`.
        interleaved: whether the rows of records with several rows alternate.
    """

    rows: tuple[tuple[dict[int, int], ...], ...]
    interleaved: bool = False

    @property
    def in_doubt(self) -> bool:
        """Whether a record has several rows, which may be in two orders."""
        return any(size > 1 for draw in self.rows for axes in draw for size in axes.values())

    def owners(self, draw: int, result: int, axes: int, records: int) -> Tensor | None:
        """The owners of the random numbers in a result; None if all records share them."""
        if draw >= len(self.rows) or result >= len(self.rows[draw]):
            return everywhere(axes, MIXED)
        grown = self.rows[draw][result]
        if not grown:
            return None
        if _OTHERWISE in grown.values():
            return everywhere(axes, MIXED)
        axis, rows = next(iter(grown.items()))
        whose = torch.arange(records, dtype=TYPE, device="cpu")
        whose = whose.repeat(rows) if self.interleaved else whose.repeat_interleave(rows)
        return whose.view([-1 if i == axis else 1 for i in range(axes)])


def compare_draws(
    few: Sequence[Draw], many: Sequence[Draw], records: int, others: int
) -> RandomOwners | None:
    """Which draws grow, from two passes; None if the passes draw differently."""
    if [draw.operation for draw in few] != [draw.operation for draw in many]:
        return None
    return RandomOwners(
        tuple(
            tuple(
                _grown(shape, then, records, others, _joined(one, two))
                for shape, then in zip(one.shapes, two.shapes, strict=True)
            )
            for one, two in zip(few, many, strict=True)
        )
    )


def _joined(one: Draw, other: Draw) -> bool | None:
    """Whether numbers of several records are drawn jointly; None if that is impossible."""
    if one.operation not in _TOGETHER:
        return None
    # With as many weights as records, fewer numbers may be drawn.
    return any(a[-1:] != b[-1:] for a, b in zip(one.given, other.given, strict=False))


def _grown(
    shape: Shape, then: Shape, records: int, others: int, joined: bool | None
) -> dict[int, int]:
    if joined or len(shape) != len(then):
        return {0: _OTHERWISE}
    found = {}
    for axis, (a, b) in enumerate(zip(shape, then, strict=True)):
        if a == b:
            continue
        even = a % records == 0 and a * others == b * records
        together = joined is not None and axis == len(shape) - 1
        found[axis] = a // records if even and not together else _OTHERWISE
    return found


def filled(owners: Tensor, drawn: Tensor | None) -> Tensor:
    """Owners in which free random numbers have the owners in `drawn`."""
    return owners if drawn is None else torch.where(owners == FREE, drawn, owners)
