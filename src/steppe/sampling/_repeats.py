"""Find records that a data set of torch's own kinds holds twice."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from steppe.sampling._records import bad_data, require_numbered


def refuse_repeats(data: Any) -> None:
    """Refuse a `Subset` or `ConcatDataset` through which one record has two numbers.

    Args:
        data: Any data set; other kinds are taken to hold every record once.

    Guarantees:
        Subsets of subsets, negative indices and the same data set given twice are followed down
        to the data sets that hold the records. Only indices are looked at, no record is read.
    """
    if not isinstance(data, (Subset, ConcatDataset)):
        return
    numbering = _Numbering()
    held = numbering.of(data)
    seen = torch.zeros(numbering.total, dtype=torch.bool)
    seen[held] = True
    if int(seen.sum()) != len(held):
        what = "indices" if isinstance(data, Subset) else "data sets"
        raise bad_data(
            "data",
            f"{type(data).__name__} with repeated {what}",
            "must hold every record once, a record with k copies is protected k times less",
            f"remove the repeated {what}",
        )


def subset_rows(data: Subset[Any]) -> torch.Tensor:
    """The indices of a subset as int64 row numbers from 0, in their order.

    Args:
        data: Its indices may be a list, a range, an array or a tensor; −1 is the last record.
    """
    require_numbered(data.dataset)
    size = len(data.dataset)  # type: ignore[arg-type]
    if len(data.indices) == 0:
        return torch.empty(0, dtype=torch.int64)
    try:
        given = torch.as_tensor(data.indices, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        given = torch.empty(())
    if given.ndim != 1 or given.is_floating_point() or given.is_complex():
        raise bad_data(
            "data", "Subset", "must have whole numbers as its indices", "give a list of int"
        )
    rows = given.long()
    if bool(((rows < -size) | (rows >= size)).any()):
        raise bad_data(
            "data",
            "Subset",
            f"must have indices that its data set of {size} records has",
            "remove the others",
        )
    return rows % size


class _Numbering:
    """One number for every record of every data set underneath."""

    def __init__(self) -> None:
        self._starts: dict[object, int] = {}
        self.total = 0

    def of(self, data: Any) -> torch.Tensor:
        """The numbers of the records that `data` gives, in its order."""
        if isinstance(data, Subset):
            return self.of(data.dataset)[subset_rows(data)]
        if isinstance(data, ConcatDataset):
            return torch.cat([self.of(part) for part in data.datasets])
        require_numbered(data)
        # Two TensorDatasets around the same tensors are one.
        key = tuple(map(id, data.tensors)) if type(data) is TensorDataset else id(data)
        if key not in self._starts:
            self._starts[key] = self.total
            self.total += len(data)
        return torch.arange(len(data)) + self._starts[key]
