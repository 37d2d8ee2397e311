"""Restores the attributes of objects after a pass on fake tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def attributes_kept(owners: Iterable[Any]) -> Iterator[None]:
    """A block that restores the attributes of objects at its end.

    Fake tensors that a pass stores in modules, or in the object that collates, have no values.

    Args:
        owners: the objects. Lists, mappings and sets in their attributes are restored too.
    """
    kept = [(owner, dict(vars(owner))) for owner in owners]
    inside: list[tuple[Any, Any]] = []
    for _, attributes in kept:
        for value in attributes.values():
            _containers(value, inside, 0)
    try:
        yield
    finally:
        for owner, attributes in kept:
            vars(owner).clear()
            vars(owner).update(attributes)
        for container, before in inside:
            container.clear()
            container.extend(before) if isinstance(before, list) else container.update(before)


def _containers(value: Any, found: list[tuple[Any, Any]], depth: int) -> None:
    """Lists, mappings and sets in a value, with their current contents."""
    if depth > 4 or isinstance(value, Tensor | nn.Module):
        return
    if isinstance(value, list | deque):
        found.append((value, list(value)))
        inside: Any = value
    elif isinstance(value, dict):
        found.append((value, dict(value)))
        inside = value.values()
    elif isinstance(value, set):
        found.append((value, set(value)))
        return
    else:
        return
    for item in inside:
        _containers(item, found, depth + 1)
