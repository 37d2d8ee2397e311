"""Records held as arrays: a batch is one indexing operation for each column."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from steppe.records.records import Records, bad_data, require_real

_AT_ONCE = 64  # records


class ColumnRecords(Records):
    """A tensor or array, or a tuple or dict of them; entry i of every column is record i.

    Args:
        data: The columns. Batches have the same structure, with tensors as leaves.

    Examples:
        >>> data = ColumnRecords({"x": np.zeros((5, 2)), "y": torch.arange(5)})
        >>> data.batch(torch.tensor([4, 1]))["y"]
        tensor([4, 1])
    """

    run_users_code = False

    def __init__(self, data: Any) -> None:
        named: list[tuple[str, Any]]
        self._assemble: Callable[[Sequence[torch.Tensor]], Any]
        if isinstance(data, Mapping):
            keys = list(data)
            named = [(f"data[{key!r}]", data[key]) for key in keys]
            self._assemble = lambda columns: dict(zip(keys, columns, strict=True))
        elif isinstance(data, tuple):
            named = [(f"data[{place}]", column) for place, column in enumerate(data)]
            self._assemble = tuple
        else:
            named = [("data", data)]
            self._assemble = lambda columns: columns[0]
        if not named:
            raise bad_data("data", repr(data), "must have a column", "give at least one array")
        self._columns = [_as_tensor(name, column) for name, column in named]
        self._length = len(self._columns[0])
        for (name, _), column in zip(named, self._columns, strict=True):
            if len(column) != self._length:
                raise bad_data(
                    name,
                    f"array of shape {tuple(column.shape)}",
                    f"must have as many entries as {named[0][0]}, which has {self._length}",
                    "give one entry for each record in every column",
                )

    def __len__(self) -> int:
        return self._length

    def batch(self, rows: torch.Tensor) -> Any:
        return self._assemble(
            [column.index_select(0, rows.to(column.device)) for column in self._columns]
        )


class WidenedRecords(ColumnRecords):
    """Inputs that are held in half precision and read in float32, and their targets.

    Args:
        inputs: float16, one entry per record.
        targets: one entry per record.

    Examples:
        >>> rows = WidenedRecords(torch.ones(3, 2, dtype=torch.float16), torch.arange(3))
        >>> rows.batch(torch.tensor([2]))
        (tensor([[1., 1.]]), tensor([2]))
    """

    def __init__(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        super().__init__((inputs, targets))
        self.given = (inputs, targets)

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = self._columns
        wide = torch.empty(len(rows), *inputs.shape[1:], device=inputs.device)
        # A few at a time, so that the narrow copy stays near the processor: half the time.
        for there, chosen in zip(wide.split(_AT_ONCE), rows.split(_AT_ONCE), strict=True):
            there.copy_(inputs.index_select(0, chosen.to(inputs.device)))
        return wide, targets.index_select(0, rows.to(targets.device))


class SubsetRecords(Records):
    """Some rows of other records, each at most once.

    Args:
        base: The records to choose from.
        rows: Row numbers in `base`, from 0, int64.
    """

    def __init__(self, base: Records, rows: torch.Tensor) -> None:
        self._base, self._rows = base, rows
        self.run_users_code = base.run_users_code

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, rows: torch.Tensor) -> Any:
        return self._base.batch(self._rows[rows])


def _as_tensor(name: str, column: Any) -> torch.Tensor:
    if isinstance(column, np.ma.MaskedArray):
        raise bad_data(
            name,
            "masked array",
            "must have no mask, because the mask would be lost",
            "give array.filled(value) with a constant value",
        )
    if isinstance(column, np.ndarray):
        if column.dtype.kind not in "biufc":
            raise bad_data(
                name,
                f"array of type {column.dtype}",
                "must hold numbers",
                "encode text and objects as numbers by a constant mapping",
            )
        tensor = _from_numpy(column)
    elif isinstance(column, torch.Tensor):
        tensor = column.detach()
    else:
        raise bad_data(
            name,
            type(column).__name__,
            "must be a tensor or a numpy array",
            "convert it with torch.as_tensor, or give a torch Dataset",
        )
    if tensor.ndim == 0:
        raise bad_data(name, "a single number", "must have one entry a record", "give an array")
    if tensor.layout != torch.strided or tensor.is_nested:
        raise bad_data(
            name,
            "sparse or nested tensor",
            "must be dense, because its rows are indexed",
            "use to_dense() or to_padded_tensor(), or give a torch Dataset that makes the records",
        )
    require_real(name, tensor)
    if not _has_rows(tensor.dtype):
        raise bad_data(
            name,
            f"array of type {str(tensor.dtype).removeprefix('torch.')}",
            "must have a type that torch can index",
            "convert it first, for example to int32 or float32",
        )
    return tensor


def _has_rows(dtype: torch.dtype) -> bool:
    """Whether torch can index rows of this type. It cannot for unsigned integers above 8 bits."""
    try:
        first = torch.zeros(1, dtype=torch.long, device="cpu")
        torch.empty(1, dtype=dtype, device="cpu").index_select(0, first)
    except (RuntimeError, NotImplementedError):
        return False
    return True


def _from_numpy(column: np.ndarray[Any, Any]) -> torch.Tensor:
    if not column.dtype.isnative:
        column = column.astype(column.dtype.newbyteorder("="))
    if any(stride < 0 for stride in column.strides):
        column = np.ascontiguousarray(column)
    with warnings.catch_warnings():
        # A read-only array, such as a memory map, is fine, because records are never written.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(column)
