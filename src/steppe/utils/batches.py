"""A batch is tensors in nested tuples, lists or mappings; the first axis is the record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

from steppe.errors import DataError


def each(function: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """The same nest with `function` applied to every tensor; any mapping becomes a dict."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(each(function, item) for item in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(each(function, item) for item in batch)
    if isinstance(batch, Mapping):
        return {key: each(function, item) for key, item in batch.items()}
    return batch


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors of a nest, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)


def require_tensors(batch: Any) -> None:
    """Refuse a batch in which something is no tensor.

    A number that the loop put there may have been made from several records. No probe could tell,
    since a synthetic batch would hold the same one, and it would not be cut with the records.
    """
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (tuple, list)):
        for item in batch:
            require_tensors(item)
    elif batch is not None and not isinstance(batch, Tensor):
        raise DataError(
            f"The batch contains {type(batch).__name__}; it must contain only tensors with a row "
            "for every record, because a number made from several records would not be clipped. "
            "Make it a tensor, or a constant of the objective."
        )


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
        found = "no tensors" if not sizes else "tensors of different lengths"
        found = "a tensor without axes" if -1 in sizes else found
        raise DataError(
            f"The batch holds {found}; all tensors must have the records on their first axis. "
            "Check the collate function."
        )
    return sizes.pop()


def version(tensor: Tensor) -> int:
    """How often a tensor was written in place.

    Inference tensors do not count, and cannot be written outside of their mode.
    """
    return 0 if tensor.is_inference() else int(tensor._version)
