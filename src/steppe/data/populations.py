"""Two populations of one data set, as row numbers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from steppe.utils import validation


def by_parity(labels: ArrayLike | Tensor) -> tuple[Tensor, Tensor]:
    """Records with even labels and records with odd ones.

    Args:
        labels: one whole number a record.

    Returns:
        Row numbers of the two populations, ascending.

    Examples:
        >>> by_parity([4, 1, 3, 2])
        (tensor([0, 3]), tensor([1, 2]))
    """
    values = _flat("labels", labels)
    if not np.issubdtype(values.dtype, np.integer):
        raise validation.fail(
            "labels", str(values.dtype), "must be whole numbers", "give the class of each record"
        )
    return _inside_and_outside(values % 2 == 0)


def by_attribute(
    values: ArrayLike | Tensor, members: Collection[Any] | Callable[[Any], bool]
) -> tuple[Tensor, Tensor]:
    """Records inside a group and records outside it.

    Args:
        values: one value a record, for instance a column of a table.
        members: the values that are inside, or a function of one value that says so.

    Returns:
        Row numbers of the two populations, ascending.

    Guarantees:
        Each record's group depends on its own value alone, not on other records.

    Examples:
        >>> by_attribute([15, 40, 70, 16], lambda age: age >= 18)
        (tensor([1, 2]), tensor([0, 3]))
        >>> by_attribute(["north", "east", "north"], {"north"})
        (tensor([0, 2]), tensor([1]))
    """
    found = _flat("values", values)
    if isinstance(members, str):
        rule = "must be a list or a set, not one string"
        raise validation.fail("members", members, rule, f"write {{{members!r}}}")
    inside = members if callable(members) else members.__contains__
    return _inside_and_outside(
        np.array([bool(inside(value)) for value in found.tolist()], dtype=np.bool_)
    )


def _flat(name: str, values: ArrayLike | Tensor) -> NDArray[Any]:
    found = np.asarray(values)
    if found.ndim != 1:
        raise validation.fail(name, found.shape, "must be one value a record", "give a flat array")
    return found


def _inside_and_outside(inside: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(np.flatnonzero(inside)), torch.from_numpy(np.flatnonzero(~inside))
