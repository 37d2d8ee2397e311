"""The form of a batch: nested tensors with one row for each record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from steppe.errors import DataError
from steppe.records.records import bad_data, require_real
from steppe.utils.batches import each

# The rounding difference that is allowed, relative to each number.
_ROUNDING = {dtype: 16 * torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64)}


class Form:
    """The structure, types and shapes that all batches of a data set have.

    Args:
        one: A batch of one record, which defines them.
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
        # A copy, because an empty view would keep the record in memory.
        self._no_rows = each(lambda tensor: tensor[:0].clone(), one)

    def empty(self) -> Any:
        """A batch without records."""
        return each(lambda tensor: tensor, self._no_rows)

    def checked(self, batch: Any, records: int) -> Any:
        """Check a batch; mappings in it become plain dicts.

        Args:
            batch: What was made from the records.
            records: The number of records.

        Guarantees:
            The message contains no value, no number and no length of the records.
        """
        found = dict(leaves("data", batch))
        if found.keys() != self._columns.keys():
            raise varies("data", "structure")
        for name, tensor in found.items():
            if tensor.ndim == 0 or len(tensor) != records:
                raise bad_data(
                    name,
                    "tensor with more or fewer rows than records",
                    "must have one row for each record that was drawn, because a record with k "
                    "rows is protected k times less",
                    "let collate_fn return every record once",
                )
            if (tensor.dtype, tensor.shape[1:]) != self._columns[name]:
                raise varies(name, "shape or type")
        return each(lambda tensor: tensor, batch)


def require_separate(together: Any, alone: list[Any]) -> None:
    """Reject a collate function that mixes records.

    Args:
        together: The checked batch of a few records.
        alone: The checked batch of each of them, in the same order.
    """
    for place, single in enumerate(alone):
        if (error := difference(together, single, place)) is not None:
            raise error


def difference(together: Any, alone: Any, place: int) -> DataError | None:
    """The error for a record whose row differs from the same record collated alone, or None.

    Args:
        together: A batch. One with too few rows is not compared, since `Form.checked` rejects it.
        alone: One of its records, collated alone.
        place: The index of that record in the batch.
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
    """The error for rows that depend on other records."""
    return bad_data(
        name,
        "rows that differ between a record alone and among others",
        "must be made by collate_fn from one record each, in the order given",
        "move random operations into the data set, and replace statistics of several records by "
        "constants",
    )


def leaves(name: str, batch: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a nest, with the expression that selects it."""
    if isinstance(batch, torch.Tensor):
        yield name, batch
    elif isinstance(batch, Mapping) and batch:
        for key, value in batch.items():
            yield from leaves(f"{name}[{key!r}]", value)
    # default_collate leaves text as a list or tuple of str.
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
    if one.dtype in _ROUNDING:  # sums may be rounded differently in a batch of one
        near = (one - other).abs() <= _ROUNDING[one.dtype] * other.abs()
        same |= near & other.isfinite()
    return bool(same.all())


def varies(name: str, what: str) -> DataError:
    """The error for batches of several forms."""
    return bad_data(
        name,
        f"{what} that is not the same in every batch",
        "must be the same in every batch, because a long record would change all others",
        "pad to a fixed length in the data set or in collate_fn",
    )
