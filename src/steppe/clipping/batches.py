"""A batch is tensors in nested tuples, lists or dictionaries; the first axis is the record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from steppe.errors import DataError


def each(function: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """The same nest with `function` applied to every tensor."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(each(function, item) for item in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(each(function, item) for item in batch)
    if isinstance(batch, dict):
        return {key: each(function, item) for key, item in batch.items()}
    return batch


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors of a nest, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def rows(batch: Any, which: slice) -> Any:
    """Some of the records, as views."""
    return each(lambda tensor: tensor[which], batch)


def count(batch: Any) -> int:
    """The number of records; all tensors must agree.

    >>> import torch
    >>> count((torch.zeros(3, 4), {"label": torch.zeros(3)}))
    3
    """
    sizes = {tensor.shape[0] if tensor.ndim else -1 for tensor in tensors_in(batch)}
    if len(sizes) != 1 or -1 in sizes:
        raise DataError(
            f"batch=tensors of {len(sizes)} lengths: all must have the record as their first axis, "
            "and so the same length; check the collate function."
        )
    return sizes.pop()


def version(tensor: Tensor) -> int:
    """How often a tensor was written in place.

    Inference tensors do not count, and cannot be written outside of their mode.
    """
    return 0 if tensor.is_inference() else int(tensor._version)
