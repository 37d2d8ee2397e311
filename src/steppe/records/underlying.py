"""Resolves torch's wrappers of data sets to the data sets inside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset

from steppe.records.records import Records, bad_data, require_numbered


def bases(data: Any, rows: torch.Tensor | None = None) -> Iterator[tuple[Any, torch.Tensor | None]]:
    """The data sets inside `data`, and which of their rows it contains.

    Args:
        data: Loaders, subsets, concatenations and `Records` are resolved, also if they are nested.
        rows: Row numbers in `data`, from 0; None for all.

    Returns:
        Pairs of a data set and row numbers in it, or None for all its rows. A data set may occur
        several times. Without rows there are no pairs.
    """
    if isinstance(data, Records) and data.given is not None:
        yield from bases(data.given, rows)
    elif isinstance(data, DataLoader):
        yield from bases(data.dataset, rows)
    elif isinstance(data, Subset):
        chosen = subset_rows(data)
        yield from bases(data.dataset, chosen if rows is None else chosen[rows])
    elif isinstance(data, ConcatDataset):
        start = 0
        for part, end in zip(data.datasets, data.cumulative_sizes, strict=True):
            inside = None if rows is None else rows[(rows >= start) & (rows < end)] - start
            yield from bases(part, inside)
            start = end
    elif rows is None or len(rows):
        yield data, rows


def subset_rows(data: Subset[Any]) -> torch.Tensor:
    """The indices of a subset as int64 row numbers from 0, in their order.

    Args:
        data: Its indices may be a list, a range, an array or a tensor; −1 is the last record.
    """
    require_numbered(data.dataset)
    size = len(data.dataset)  # type: ignore[arg-type]
    if len(data.indices) == 0:
        return torch.empty(0, dtype=torch.int64, device="cpu")
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
