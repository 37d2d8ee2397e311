"""Collate functions that pad to the longest record of a batch, padded to a declared length."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from steppe.errors import DataError
from steppe.utils import validation

Lengths = int | Mapping[Any, int]
Values = float | Mapping[Any, float]


class Padded:
    """A collate function whose batches all have one length.

    Args:
        collate: the user's.
        pad_to: the length of axis 1: of all tensors that have one, or by key of the batch (or
            place in a tuple) of those that are named.
        pad_value: what to fill up with, for all or by key.

    Guarantees:
        A record's length does not affect the rows of other records. A longer record is rejected,
        and the message does not show its length.

    Examples:
        >>> import torch
        >>> padded = Padded(torch.stack, pad_to=4, pad_value=0)
        >>> padded([torch.ones(2)])
        tensor([[1., 1., 0., 0.]])
    """

    def __init__(self, collate: Callable[[Any], Any], pad_to: Lengths, pad_value: Values) -> None:
        self._collate, self._pad_to, self._pad_value = collate, pad_to, pad_value

    def __call__(self, records: Any) -> Any:
        """Collate, then pad."""
        batch = self._collate(records)
        if isinstance(batch, Mapping):
            return {key: self._filled(key, value) for key, value in batch.items()}
        if isinstance(batch, tuple) and hasattr(batch, "_fields"):
            return type(batch)(*[self._filled(i, value) for i, value in enumerate(batch)])
        if isinstance(batch, (tuple, list)):
            return type(batch)([self._filled(i, value) for i, value in enumerate(batch)])
        return self._filled(0, batch)

    def _filled(self, key: Any, value: Any) -> Any:
        length = self._pad_to.get(key) if isinstance(self._pad_to, Mapping) else self._pad_to
        if length is None or not isinstance(value, Tensor) or value.ndim < 2:
            return value
        if value.shape[1] > length:
            raise DataError(
                f"data[{key!r}]=a record longer than pad_to={length}: must fit; cut records in the "
                "data set or in collate_fn (max_length= and truncation=True of a tokenizer), or "
                "declare a larger pad_to."
            )
        fill = self._pad_value
        if isinstance(fill, Mapping):
            if key not in fill:
                raise validation.fail(
                    "pad_value",
                    sorted(map(str, fill)),
                    f"must name a value for data[{key!r}], which is padded",
                    "add it",
                )
            fill = fill[key]
        made = value.new_full((value.shape[0], length, *value.shape[2:]), fill)
        made[:, : value.shape[1]] = value
        return made


def padded(
    data_loader: DataLoader[Any], pad_to: Lengths | None, pad_value: Values | None
) -> DataLoader[Any]:
    """The loader with a collate function that pads to a declared length, if one is declared."""
    if pad_to is None and pad_value is None:
        return data_loader
    if pad_to is None or pad_value is None:
        absent = "pad_to" if pad_to is None else "pad_value"
        raise validation.missing(
            absent, "give both pad_to= and pad_value=", "is required with the other"
        )
    for length in pad_to.values() if isinstance(pad_to, Mapping) else (pad_to,):
        validation.positive_integer("pad_to", length)
    made = copy.copy(data_loader)  # the user's own stays as it is
    made.collate_fn = Padded(made.collate_fn, pad_to, pad_value)
    return made
