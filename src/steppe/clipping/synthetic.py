"""Made-up records with the form of real ones, so that a probe reads no private value."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from steppe.clipping.batches import each


def synthetic(example: Any, records: int, generator: torch.Generator) -> Any:
    """A batch of `records` made-up records.

    Only the shapes and types of `example` are used. Numbers are standard normal. Integers are 0
    or 1, which every label set and every vocabulary contains. Truth values are False, the neutral
    choice for masks.

    Args:
        example: a batch of one or more records.
        records: how many to make.
        generator: the source of the values.

    Examples:
        >>> example = (torch.zeros(1, 2), torch.zeros(1, dtype=torch.long))
        >>> inputs, labels = synthetic(example, 3, torch.Generator().manual_seed(0))
        >>> inputs.shape, labels.shape
        (torch.Size([3, 2]), torch.Size([3]))
    """

    def make(tensor: Tensor) -> Tensor:
        shape = (records, *tensor.shape[1:])
        if tensor.is_floating_point():
            values = torch.randn(shape, generator=generator)
        elif tensor.dtype == torch.bool:
            values = torch.zeros(shape)
        else:
            values = torch.randint(0, 2, shape, generator=generator)
        return values.to(device=tensor.device, dtype=tensor.dtype)

    return each(make, example)


def with_other_record(batch: Any, which: int, generator: torch.Generator) -> Any:
    """The same batch with one record replaced by another."""

    def change(tensor: Tensor) -> Tensor:
        changed = tensor.clone()
        row = changed[which]
        if tensor.is_floating_point():
            row = torch.randn(row.shape, generator=generator).to(changed)
        elif tensor.dtype != torch.bool:
            row = 1 - row
        changed[which] = row
        return changed

    return each(change, batch)
