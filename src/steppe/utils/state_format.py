"""Nested states as JSON and tensors, so that saving an optimizer needs no pickle."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from steppe.utils.validation import fail

# A JSON object with exactly one of these keys represents a type that JSON does not have.
_TENSOR, _TUPLE, _ITEMS, _FLOAT = "$tensor", "$tuple", "$items", "$float"


def pack(name: str, value: Any, tensors: dict[str, Tensor]) -> Any:
    """Convert a state to JSON and tensors, which are not copied.

    Args:
        name: of the value, for the names of tensors and for errors.
        value: numbers, text, None, tensors, and lists, tuples and mappings of these.
        tensors: receives the tensors.

    Returns:
        What `unpack` turns back into the value.

    Examples:
        >>> import torch
        >>> tensors = {}
        >>> packed = pack("state", {0: {"step": torch.tensor(3.0), "betas": (0.9, 0.99)}}, tensors)
        >>> list(tensors)
        ['state.0.step']
        >>> unpack(packed, tensors)
        {0: {'step': tensor(3.), 'betas': (0.9, 0.99)}}
    """
    if isinstance(value, Tensor):
        if name in tensors:  # "a.b" and "b" in "a", or 0 and "0"
            raise fail(
                name,
                tuple(value.shape),
                "would be the name of two tensors of the state",
                "rename one of their keys",
            )
        tensors[name] = value.detach()
        return {_TENSOR: name}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {_FLOAT: str(value)}
    if isinstance(value, list | tuple):
        items = [pack(f"{name}.{i}", item, tensors) for i, item in enumerate(value)]
        return items if isinstance(value, list) else {_TUPLE: items}
    if isinstance(value, Mapping):
        pairs = [(key, pack(f"{name}.{key}", item, tensors)) for key, item in value.items()]
        plain = all(isinstance(key, str) and not key.startswith("$") for key, _ in pairs)
        return dict(pairs) if plain else {_ITEMS: [list(pair) for pair in pairs]}
    raise fail(
        name,
        type(value).__name__,
        "cannot be written into a checkpoint",
        "keep numbers, text, tensors and lists or dicts of them in the state",
    )


def unpack(packed: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The value that was packed."""
    if isinstance(packed, list):
        return [unpack(item, tensors) for item in packed]
    if not isinstance(packed, dict):
        return packed
    if len(packed) == 1:
        ((key, value),) = packed.items()
        if key == _TENSOR:
            return tensors[value]
        if key == _FLOAT:
            return float(value)
        if key == _TUPLE:
            return tuple(unpack(item, tensors) for item in value)
        if key == _ITEMS:
            return {k: unpack(item, tensors) for k, item in value}
    return {key: unpack(value, tensors) for key, value in packed.items()}
