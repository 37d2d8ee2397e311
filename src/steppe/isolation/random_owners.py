"""Whose random numbers are drawn: a draw that grows with the number of records belongs to them.

A draw of one shape for all numbers of records is shared by all, and its law is the same in every
batch. A draw that grows has numbers for each record, and those are treated as the record's own. So
the rules that keep records apart keep their random numbers apart too: numbers that are sorted,
summed or shifted among records are mixed.

Which draws grow is known after two passes of different numbers of records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from steppe.isolation.owners import FREE, MIXED, TYPE, everywhere

Shape = tuple[int, ...]
_OTHERWISE = -1  # grows, and not by so many rows for each record
_aten = torch.ops.aten
# Numbers along the last axis are drawn together: without replacement, or to sum to one.
_TOGETHER = frozenset((_aten.randperm, _aten.multinomial, _aten._sample_dirichlet))


@dataclass(frozen=True)
class Draw:
    """One operation that draws random numbers.

    Attributes:
        operation: without its overload.
        shapes: of what it returned.
        given: the shapes of its arguments.
        free: whether some numbers were drawn for no record.
    """

    operation: Any
    shapes: tuple[Shape, ...]
    given: tuple[Shape, ...]
    free: bool


@dataclass(frozen=True)
class RandomOwners:
    """Whose the random numbers of a pass are, draw by draw.

    Attributes:
        rows: for each draw and each of its results, the axes that grow: how many rows a record has
            there, or `_OTHERWISE`.
        interleaved: whether records with several rows take turns, row by row.
    """

    rows: tuple[tuple[dict[int, int], ...], ...]
    interleaved: bool = False

    @property
    def in_doubt(self) -> bool:
        """Whether a record has several rows, which may lie in two ways."""
        return any(size > 1 for draw in self.rows for axes in draw for size in axes.values())

    def owners(self, draw: int, result: int, axes: int, records: int) -> Tensor | None:
        """Whose the random numbers of a result are; None where all records share them."""
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
    """Which draws grow, from two passes; None where the passes do not draw alike."""
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
    """Whether numbers of several records are drawn together; None where none ever are."""
    if one.operation not in _TOGETHER:
        return None
    # By as many weights as there are records, how few numbers may be drawn.
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
    """Owners in which random numbers that are drawn for nobody are those of `drawn`."""
    return owners if drawn is None else torch.where(owners == FREE, drawn, owners)
