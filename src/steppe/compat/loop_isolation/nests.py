"""What lies in a nest of tuples, lists, mappings and plain objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from steppe.compat.loop_isolation.totals import Path


def leaves(batch: Any, path: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    """The tensors of a batch, with the way to each."""
    if isinstance(batch, Tensor):
        yield path, batch
    elif isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from leaves(value, (*path, key))
    elif isinstance(batch, (tuple, list)):
        for place, value in enumerate(batch):
            yield from leaves(value, (*path, place))


def objects_in(value: Any, inside: tuple[int, ...] = ()) -> Iterator[Tensor]:
    """All tensors of a nest, those that are attributes of plain objects included."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from objects_in(item, (*inside, id(value)))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from objects_in(item, (*inside, id(value)))
    elif (hasattr(value, "__dict__") and not isinstance(value, (type, nn.Module))) and id(
        value
    ) not in inside:
        for item in vars(value).values():
            yield from objects_in(item, (*inside, id(value)))


def numbers_in(nest: Any) -> Iterator[float]:
    """All Python numbers of a nest."""
    if isinstance(nest, (int, float)) and not isinstance(nest, bool):
        yield float(nest)
    elif isinstance(nest, (tuple, list)):
        for item in nest:
            yield from numbers_in(item)
    elif isinstance(nest, Mapping):
        yield from numbers_in(list(nest.values()))
