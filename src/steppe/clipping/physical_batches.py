"""A batch as it goes through the model: in pieces, and filled up where shapes are to stay the same.

The number of records that a step draws is secret. With rows of zeros behind the records every pass
has as many rows as every other, whoever was drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from steppe.errors import SteppeError, UnsupportedModelError
from steppe.randomness import global_generators_kept
from steppe.utils.batches import count, each, rows
from steppe.utils.formatting import first_line


class PhysicalBatch(NamedTuple):
    """What goes through the model at once.

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
        >>> [(piece.size, piece.padding) for piece in physical_batches(torch.ones(7, 2), 3)]
        [(2, 0), (2, 0), (3, 0)]
        >>> padded = physical_batches(torch.ones(7, 2), 4, padded_to=10)
        >>> [(piece.size, piece.padding) for piece in padded]
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
    for piece in range(number):
        start, end = piece * records // number, (piece + 1) * records // number
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


def require_zeros_taken(objective: Callable[[Any], Tensor], example: Any) -> None:
    """Refuse a model or loss that stops at the zeros which batches are filled up with.

    Args:
        objective: maps a batch to one loss for each record.
        example: a batch without records.
    """
    try:
        with torch.no_grad(), global_generators_kept():
            objective(with_zeros(example, 1))
    except SteppeError:
        raise
    except Exception as error:  # whatever the model or the loss says
        raise UnsupportedModelError(
            "fixed_shapes=True: model and loss must take records of zeros, with which batches are "
            f"filled up, and said: {first_line(error).rstrip('.')}; let them take these, whatever "
            "comes out, or leave fixed_shapes out."
        ) from error
