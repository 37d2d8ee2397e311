"""Physical batches: their size, and how a batch is split and padded.

The number of records that a step draws is secret. Padding rows of zeros give every pass the same
number of rows, whichever records were drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from steppe.utils.batches import count, each, rows

# What one physical batch keeps alive should stay near the last-level cache: small networks run
# faster so than on the whole batch. But every part also passes over all weights once, which is
# paid for by this many times their size in activations. More than the ceiling only costs memory.
_CACHE = 32 * 2**20
_PASSES = 32
CEILING = 320 * 2**20


class PhysicalBatch(NamedTuple):
    """A physical batch: the rows that pass through the model at once.

    Attributes:
        batch: its rows.
        size: how many there are.
        padding: how many of them, the last ones, are no records.
    """

    batch: Any
    size: int
    padding: int = 0


def physical_batches(
    batch: Any, most: int | None = None, padded_to: int | None = None
) -> Iterator[PhysicalBatch]:
    """The physical batches; none for an empty batch that is not padded.

    They are of about one size: of a few records torch rounds some products otherwise than of
    many, and one record more or less must not make the last ones a few. Padded ones are of one size
    exactly, and their number and size depend on `most` and `padded_to` alone.

    Args:
        batch: the records.
        most: how many rows may go through the model at once; None for any number.
        padded_to: fill the batch up to at least so many rows; None leaves it as it is. A batch of
            more records than that keeps all of them.

    Examples:
        >>> [(part.size, part.padding) for part in physical_batches(torch.ones(7, 2), 3)]
        [(2, 0), (2, 0), (3, 0)]
        >>> padded = physical_batches(torch.ones(7, 2), 4, padded_to=10)
        >>> [(part.size, part.padding) for part in padded]
        [(4, 0), (4, 1), (4, 4)]
    """
    records = count(batch)
    if padded_to is not None:
        yield from _padded(batch, records, max(records, padded_to), most)
        return
    most = most or records
    if 0 < records <= most:
        yield PhysicalBatch(batch, records)
        return
    number = math.ceil(records / most) if records else 0
    for part in range(number):
        start, end = part * records // number, (part + 1) * records // number
        yield PhysicalBatch(rows(batch, slice(start, end)), end - start)


def _padded(batch: Any, records: int, total: int, most: int | None) -> Iterator[PhysicalBatch]:
    number = math.ceil(total / (most or total))
    size = math.ceil(total / number)
    for start in range(0, number * size, size):
        padding = size - min(max(records - start, 0), size)
        yield PhysicalBatch(
            with_zeros(rows(batch, slice(start, start + size)), padding), size, padding
        )


def with_zeros(batch: Any, padding: int) -> Any:
    """The batch with so many rows of zeros behind its own."""
    if not padding:
        return batch

    def filled(tensor: Tensor) -> Tensor:
        return torch.cat([tensor, tensor.new_zeros(padding, *tensor.shape[1:])])

    return each(filled, batch)


def fitting_physical_batch(bytes_per_record: int, bytes_of_weights: int) -> int:
    """The physical batch for a model, a power of two, from public sizes alone.

    The same for every batch of a run: layers that prepare themselves for a shape do so once.

    Args:
        bytes_per_record: activations and output gradients that one record keeps alive, and
            whatever else the clip holds for it.
        bytes_of_weights: size of the trained weights.

    Examples:
        >>> fitting_physical_batch(500_000, 900_000)  # a small convolutional network
        64
        >>> fitting_physical_batch(3_000, 30_000)  # logistic regression: any batch at once
        8192
        >>> fitting_physical_batch(10**9, 10**9)
        1
    """
    budget = min(CEILING, max(_CACHE, _PASSES * bytes_of_weights))
    records = max(1, budget // max(1, bytes_per_record))
    return 1 << (int(records).bit_length() - 1)
