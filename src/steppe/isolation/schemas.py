"""The arguments of torch's operators, by the names of their schemas."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from torch import Tensor


def by_name(func: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name."""
    return {**dict(zip(_names(func), args, strict=False)), **kwargs}


@functools.cache
def _names(func: Any) -> tuple[str, ...]:
    return tuple(a.name for a in func._schema.arguments)


@functools.cache
def written_by(func: Any) -> tuple[str, ...]:
    """The names of arguments that an operation changes in place."""
    return tuple(
        a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write
    )


def tensors_among(values: Any) -> Iterator[Tensor]:
    """The tensors among arguments, including those in lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_among(value)


def storage_of(tensor: Tensor) -> Any:
    """The memory of a tensor, which its views share."""
    return tensor.untyped_storage()
