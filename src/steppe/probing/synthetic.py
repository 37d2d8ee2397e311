"""Synthetic records in the form of real ones, so that a probe reads no private value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from steppe.utils.batches import each


@dataclass(frozen=True)
class Style:
    """The distribution of synthetic values.

    Args:
        positive: numbers from [0, 1) instead of N(0, 1).
        truth: the value of booleans; None for random ones.
        least: the smaller of the two integers.
    """

    positive: bool = False
    truth: bool | None = None
    least: int = 0


# Tried in this order until the losses are finite: some models need positive numbers, and a mask
# that removes everything gives NaN, as do lengths or counts of 0.
STYLES = tuple(
    Style(positive, truth, least)
    for least in (0, 1)
    for truth in (None, False, True)
    for positive in (False, True)
)


def synthetic(
    example: Any, records: int, generator: torch.Generator, style: Style = STYLES[0]
) -> Any:
    """A batch of `records` synthetic records.

    Only the shapes and types of `example` are used. Integers are 0 or 1, which every label set and
    every vocabulary contains, or 1 or 2 for models that do not accept 0.

    Args:
        example: a batch of any number of records.
        records: how many to make.
        generator: the source of the values. style: of numbers and booleans.

    Examples:
        >>> example = (torch.zeros(1, 2), torch.zeros(1, dtype=torch.long))
        >>> inputs, labels = synthetic(example, 3, torch.Generator().manual_seed(0))
        >>> inputs.shape, labels.shape
        (torch.Size([3, 2]), torch.Size([3]))
    """

    def make(tensor: Tensor) -> Tensor:
        shape = (records, *tensor.shape[1:])
        if tensor.is_floating_point():
            values = _numbers(shape, generator, style)
        elif tensor.dtype == torch.bool:
            values = _truths(shape, generator, style)
        else:
            values = torch.randint(2, shape, generator=generator, device="cpu").add_(style.least)
        return values.to(device=tensor.device, dtype=tensor.dtype)

    return each(make, example)


def with_both_integers(batch: Any, style: Style) -> Any:
    """The batch with one record of only the smaller integer, and one of only the larger."""

    def change(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point() or tensor.dtype == torch.bool:
            return tensor
        changed = tensor.clone()
        changed[0], changed[1] = style.least, style.least + 1
        return changed

    return each(change, batch)


def with_other_record(
    batch: Any,
    which: int,
    generator: torch.Generator,
    style: Style = STYLES[0],
    uniform: bool = False,
) -> Any:
    """The same batch with one record replaced by another.

    Args:
        batch: a synthetic batch.
        which: the record to replace.
        generator: the source of the values.
        style: as for `synthetic`.
        uniform: whether the integers of the new record are all equal. A result that depends only on
            which integers occur, such as a maximum over a bag, does not change if each 0 becomes 1
            and each 1 becomes 0.
    """

    def change(tensor: Tensor) -> Tensor:
        changed = tensor.clone()
        row = changed[which]
        if tensor.is_floating_point():
            row = _numbers(row.shape, generator, style).to(changed)
        elif tensor.dtype == torch.bool:
            row = ~row if style.truth is None else row
        elif row.numel():
            row = 2 * style.least + 1 - (row.flatten()[0].expand_as(row) if uniform else row)
        changed[which] = row
        return changed

    return each(change, batch)


def _numbers(shape: Sequence[int], generator: torch.Generator, style: Style) -> Tensor:
    draw = torch.rand if style.positive else torch.randn
    return draw(tuple(shape), generator=generator, device="cpu")


def _truths(shape: Sequence[int], generator: torch.Generator, style: Style) -> Tensor:
    if style.truth is not None:
        return torch.full(tuple(shape), style.truth, device="cpu")
    return torch.rand(tuple(shape), generator=generator, device="cpu") < 0.5
