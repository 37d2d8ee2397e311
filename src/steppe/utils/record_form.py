"""The form of a record: structure, shapes and types, without a value."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter, itemgetter
from typing import Any

import torch
from torch import Tensor

_SHAPE, _DTYPE, _REQUIRES_GRAD = map(attrgetter, ("shape", "dtype", "requires_grad"))


def form_of(record: Any) -> Any:
    """Structure, shapes and types of a record of tensors; None where it holds anything else.

    Examples:
        >>> form_of((torch.zeros(2), None))
        (<class 'tuple'>, (0, 1), ((torch.Size([2]), torch.float32), <class 'NoneType'>))
    """
    if type(record) is Tensor:
        plain = record.layout == torch.strided and not record.requires_grad
        return (record.shape, record.dtype) if plain else None
    if record is None:
        return type(None)
    if isinstance(record, Mapping):
        keys, parts = tuple(record), list(record.values())
    elif isinstance(record, (tuple, list)):
        keys, parts = tuple(range(len(record))), list(record)
    else:
        return None
    inside = tuple(map(form_of, parts))
    return None if None in inside else (type(record), keys, inside)


def all_of_form(found: list[Any], form: Any) -> bool:
    """Whether all records have a form, as `form_of` gives it."""
    if len(form) == 3 and set(map(type, found)) == {form[0]}:
        kind, keys, inside = form
        if not all(isinstance(part, tuple) and len(part) == 2 for part in inside):
            return all(form_of(record) == form for record in found)
        # Flat ones, as most are, column by column: a few times as fast.
        if issubclass(kind, Mapping):
            if any(tuple(record) != keys for record in found):
                return False
        elif set(map(len, found)) != {len(keys)}:
            return False
        columns = (list(map(itemgetter(key), found)) for key in keys)
        return all(map(_have_form, columns, inside))
    return all(form_of(record) == form for record in found)


def _have_form(column: list[Any], form: tuple[torch.Size, torch.dtype]) -> bool:
    shape, dtype = form
    return (
        set(map(type, column)) == {Tensor}
        and all(map(shape.__eq__, map(_SHAPE, column)))
        and set(map(_DTYPE, column)) == {dtype}
        and not any(map(_REQUIRES_GRAD, column))
    )
