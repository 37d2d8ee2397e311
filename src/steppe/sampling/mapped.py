"""Records behind `dataset[i]`: fetched and collated by torch's own DataLoader."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

from steppe.sampling._records import Records, bad_data, no_records

# What a user's DataLoader says about fetching. How it chooses records is not among them.
FETCH_OPTIONS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
)


class MappedRecords(Records):
    """A map-style data set.

    One record is read at once, to learn the structure of a batch. No later empty batch reaches
    the data set or its collate function, so neither needs to be ready for one.

    Args:
        dataset: Anything with `__len__` and `__getitem__`.
        options: Keyword arguments of `DataLoader` from `FETCH_OPTIONS`.

    Examples:
        >>> data = MappedRecords([(torch.ones(3), 0), (torch.zeros(3), 1)])
        >>> data.take(torch.tensor([1]))
        [tensor([[0., 0., 0.]]), tensor([1])]
    """

    def __init__(self, dataset: Any, options: Mapping[str, Any] | None = None) -> None:
        self._dataset = dataset
        self._length = len(dataset)
        if self._length == 0:
            raise no_records()
        self._options = {"collate_fn": default_collate, **(options or {})}
        self._empty = _no_rows("data", self._collate([0]))

    def __len__(self) -> int:
        return self._length

    def take(self, rows: torch.Tensor) -> Any:
        return self._collate(rows.tolist()) if len(rows) else copy.copy(self._empty)

    def stream(self, batches: Iterable[torch.Tensor]) -> Iterator[Any]:
        """As `Records.stream`; worker processes, if any, read ahead."""
        waiting: deque[bool] = deque()  # for each index tensor not yet answered: has it rows?

        def with_rows() -> Iterator[list[int]]:
            for rows in batches:
                waiting.append(len(rows) > 0)
                if len(rows) > 0:
                    yield rows.tolist()

        # A DataLoader that keeps its order, whatever the user's did: in_order is left at True.
        loader = DataLoader(self._dataset, batch_sampler=with_rows(), **self._options)
        for batch in loader:
            # This batch answers the first index tensor with rows; empty ones came before it.
            while not waiting.popleft():
                yield copy.copy(self._empty)
            yield batch
        for _ in waiting:
            yield copy.copy(self._empty)

    def _collate(self, rows: list[int]) -> Any:
        fetch_many = getattr(self._dataset, "__getitems__", None)
        found = fetch_many(rows) if fetch_many else [self._dataset[row] for row in rows]
        return self._options["collate_fn"](found)


def _no_rows(name: str, batch: Any) -> Any:
    """The batch of one record without that record: same structure, first dimension 0."""
    if isinstance(batch, torch.Tensor):
        if batch.ndim == 0 or len(batch) != 1:
            raise bad_data(
                name,
                f"tensor of shape {tuple(batch.shape)}",
                "must have first dimension 1 in a batch of one record",
                "let collate_fn stack the records along the first dimension",
            )
        return batch[:0]
    if isinstance(batch, Mapping):
        emptied = {key: _no_rows(f"{name}[{key!r}]", value) for key, value in batch.items()}
        if not isinstance(batch, MutableMapping):
            return emptied
        same_kind = copy.copy(batch)
        same_kind.update(emptied)
        return same_kind
    # Text that default_collate has left alone arrives as a list or tuple of str.
    if isinstance(batch, (list, tuple)) and batch and not isinstance(batch[0], (str, bytes)):
        parts = [_no_rows(f"{name}[{place}]", part) for place, part in enumerate(batch)]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    kind = type(batch[0] if isinstance(batch, (list, tuple)) and batch else batch).__name__
    raise bad_data(
        name,
        kind,
        "must become a tensor in a batch",
        "encode it as numbers in the data set or in collate_fn",
    )
