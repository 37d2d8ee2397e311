"""The form of a batch: tensors in a nest, with one row for each record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from steppe.errors import DataError
from steppe.records.records import bad_data, require_real
from steppe.utils.batches import each

# Relative to each number.
_ROUNDING = {dtype: 16 * torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64)}


class Form:
    """What all batches of a data set have in common.

    Args:
        one: A batch of one record; it shows the structure, and the type and shape of each tensor.
    """

    def __init__(self, one: Any) -> None:
        self._columns: dict[str, tuple[torch.dtype, torch.Size]] = {}
        for name, tensor in leaves("data", one):
            if tensor.ndim == 0 or len(tensor) != 1:
                raise bad_data(
                    name,
                    f"tensor of shape {tuple(tensor.shape)}",
                    "must have first dimension 1 in a batch of one record",
                    "let collate_fn stack the records along the first dimension",
                )
            require_real(name, tensor)
            self._columns[name] = (tensor.dtype, tensor.shape[1:])
        # A copy: a view of no rows would keep the record in memory.
        self._no_rows = each(lambda tensor: tensor[:0].clone(), one)

    def empty(self) -> Any:
        """A batch without records."""
        return each(lambda tensor: tensor, self._no_rows)

    def checked(self, batch: Any, records: int) -> Any:
        """The batch with plain dicts for mappings, if it has this form.

        Args:
            batch: What was made from the records.
            records: How many there were.

        Guarantees:
            The message says nothing about the records: no value, no number and no length.
        """
        found = dict(leaves("data", batch))
        if found.keys() != self._columns.keys():
            raise varies("data", "structure")
        for name, tensor in found.items():
            if tensor.ndim == 0 or len(tensor) != records:
                raise bad_data(
                    name,
                    "tensor with more or fewer rows than records",
                    "must have one row for each record that was drawn, a record with k rows is "
                    "protected k times less",
                    "let collate_fn keep every record once",
                )
            if (tensor.dtype, tensor.shape[1:]) != self._columns[name]:
                raise varies(name, "shape or type")
        return each(lambda tensor: tensor, batch)


def require_separate(together: Any, alone: list[Any]) -> None:
    """Refuse a collate function that lets records touch each other.

    Args:
        together: The checked batch of a few records.
        alone: The checked batch of each of them, in the same order.
    """
    for place, single in enumerate(alone):
        if (error := difference(together, single, place)) is not None:
            raise error


def difference(together: Any, alone: Any, place: int) -> DataError | None:
    """The error for a record that is not alone as it is among others; None where it is.

    Args:
        together: A batch. One with too few rows is not compared, since `Form.checked` refuses it.
        alone: What was made of one of its records.
        place: Which one.
    """
    try:
        whole, single = dict(leaves("data", together)), dict(leaves("data", alone))
    except DataError as error:
        return error
    if whole.keys() != single.keys():
        return varies("data", "structure")
    for name, own in single.items():
        rows = whole[name]
        if rows.ndim == 0 or len(rows) <= place:
            continue
        if own.ndim == 0 or len(own) != 1:
            return different_alone(name)
        if (rows.shape[1:], rows.dtype) != (own.shape[1:], own.dtype):
            return varies(name, "shape or type")
        if not _same(rows[place], own[0]):
            return different_alone(name)
    return None


def different_alone(name: str) -> DataError:
    """The error for rows that other records have a part in."""
    return bad_data(
        name,
        "rows that differ between a record alone and among others",
        "must be made by collate_fn from one record each, in the order given",
        "do what is random or looks at several records elsewhere: in the data set, or "
        "with constants that are fixed beforehand",
    )


def leaves(name: str, batch: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a nest, with the expression that leads to it."""
    if isinstance(batch, torch.Tensor):
        yield name, batch
    elif isinstance(batch, Mapping) and batch:
        for key, value in batch.items():
            yield from leaves(f"{name}[{key!r}]", value)
    # Text that default_collate has left alone arrives as a list or tuple of str.
    elif isinstance(batch, (list, tuple)) and batch and not isinstance(batch[0], (str, bytes)):
        for place, part in enumerate(batch):
            yield from leaves(f"{name}[{place}]", part)
    else:
        kind = type(batch[0] if isinstance(batch, (list, tuple)) and batch else batch).__name__
        raise bad_data(
            name,
            kind,
            "must become a tensor in a batch",
            "encode it as numbers in the data set or in collate_fn",
        )


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if torch.equal(one, other):
        return True
    same = (one == other) | ((one != one) & (other != other))
    if one.dtype in _ROUNDING:  # sums of one row may round otherwise in a batch of one
        near = (one - other).abs() <= _ROUNDING[one.dtype] * other.abs()
        same |= near & other.isfinite()
    return bool(same.all())


def varies(name: str, what: str) -> DataError:
    """The error for batches of several forms."""
    return bad_data(
        name,
        f"{what} that is not the same in every batch",
        "must not depend on which records meet in a batch, a long one would change the others",
        "pad to a fixed length in the data set or in collate_fn",
    )
