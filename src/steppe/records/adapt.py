"""Adapts a user's data to `Records`, or explains why they cannot be sampled privately."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)

from steppe.errors import DataError
from steppe.records.arrays import ColumnRecords, SubsetRecords
from steppe.records.map_style import FETCH_OPTIONS, MappedRecords
from steppe.records.overlap import refuse_repeats
from steppe.records.records import Records, bad_data, no_records, require_numbered
from steppe.records.underlying import subset_rows


def as_records(data: Any) -> Records:
    """Adapt a data set for sampling.

    Args:
        data: One of
            a tensor or numpy array, or a tuple or mapping of them, with one entry per record;
            a `TensorDataset`, or a `Subset` of one (indexed directly, without a Python loop);
            any map-style data set: `__len__` and `__getitem__`;
            a `DataLoader`: its data set, collate function and workers are kept, its choice of
            records is replaced.

    Returns:
        The records, numbered from 0. Batches that are mappings become plain dicts. The attribute
        `also_read` of a data set, as `steppe.data.read` sets it, is kept for the statement.

    Guarantees:
        A sampler, weights or `drop_last` that would change a record's selection probability are
        rejected, never ignored. So are a record that a `Subset` or `ConcatDataset` contains twice,
        and a collate function that is found to mix records. Arrays are not read here. Of a
        map-style data set the first record is read, and with a collate function of the user's a few
        more (`MappedRecords`). Messages describe types and shapes and show no record.

    Examples:
        >>> len(as_records((torch.zeros(7, 2), np.zeros(7))))
        7
    """
    if isinstance(data, Records):
        return data
    if isinstance(data, DataLoader):
        found = _from_loader(data)
    elif isinstance(data, (tuple, Mapping)):
        found = ColumnRecords(data)
    else:
        found = _from_dataset(data, {})
    if len(found) == 0:
        raise no_records()
    found.also_read, found.given = _also_read(data), data
    return found


def _also_read(data: Any) -> tuple[str, ...]:
    """`also_read` of a data set, also inside a loader, a `Subset` or a `ConcatDataset`."""
    if hasattr(data, "also_read"):
        return tuple(data.also_read)
    inner = [data.dataset] if hasattr(data, "dataset") else getattr(data, "datasets", ())
    said = itertools.chain.from_iterable(map(_also_read, inner))
    return tuple(dict.fromkeys(said))


def _from_dataset(data: Any, options: dict[str, Any]) -> Records:
    refuse_repeats(data)
    plain = options.get("collate_fn", default_collate) is default_collate
    if plain and (direct := _columns(data)) is not None:
        return direct
    require_numbered(data)
    if hasattr(data, "iloc"):
        raise bad_data(
            "data",
            type(data).__name__,
            "must be indexed by record",
            "give frame.to_numpy() or a tuple of columns",
        )
    if isinstance(data, list) and data and isinstance(data[0], (torch.Tensor, np.ndarray)):
        raise bad_data(
            "data",
            "list of arrays",
            "may mean columns or records",
            "give a tuple of columns, or stack the records into one array",
        )
    return MappedRecords(data, options)


def _columns(data: Any) -> Records | None:
    """Direct indexing of the same records, if possible."""
    if isinstance(data, (torch.Tensor, np.ndarray)):
        return ColumnRecords(data)
    # Exact types only: `__getitem__` of a subclass may do more than index.
    if type(data) is TensorDataset:
        return ColumnRecords(data.tensors)
    if type(data) is Subset and (base := _columns(data.dataset)) is not None:
        return SubsetRecords(base, subset_rows(data))
    return None


def _from_loader(loader: DataLoader[Any]) -> Records:
    require_numbered(loader.dataset)
    batches = loader.batch_sampler
    if type(batches) is not BatchSampler:
        raise _refused(
            f"batch_sampler={type(batches).__name__}", "give batch_size instead of batch_sampler"
        )
    # Of the batch sampler, because the loader's own flag is False if a batch sampler is given.
    if batches.drop_last:
        raise _refused("drop_last=True", "leave drop_last out, there is no last batch to drop")
    sampler = batches.sampler
    if type(sampler) not in (SequentialSampler, RandomSampler):
        raise _refused(f"sampler={type(sampler).__name__}", "leave the sampler out")
    if getattr(sampler, "replacement", False):
        raise _refused("sampler=RandomSampler(replacement=True)", "leave the sampler out")
    if len(sampler) != len(loader.dataset):  # type: ignore[arg-type]
        raise _refused(
            f"sampler={type(sampler).__name__} over {len(sampler)} records",  # type: ignore[arg-type]
            "leave the sampler out, choose records with torch.utils.data.Subset",
        )
    options = {name: getattr(loader, name) for name in FETCH_OPTIONS}
    return _from_dataset(loader.dataset, options)


def _refused(what: str, remedy: str) -> DataError:
    return DataError(
        f"{what}: records must be chosen by the plan's sampler alone, because the account assumes "
        f"its sampling probabilities; {remedy}."
    )
