"""Adversarial records, whose gradients try to exceed the clipping norm."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from steppe.utils.batches import each

LOSS_SCALES = (1e-2, 1.0, 1e2, 1e4, 1e6, math.nan, math.inf, -math.inf)
INPUT_SCALES = (1e-2, 1e2, 1e4, 1e6, 1e25, math.nan, math.inf)
_LARGE = 1e6

Change = Callable[[Tensor], Tensor]


def adversarial_batches(
    batch: Any, scales: Tensor, generator: torch.Generator
) -> Iterator[tuple[str, Any]]:
    """Pairs (batch, scales) whose last record is adversarial, with a name for each kind.

    Args:
        batch: nested tensors with the record first; left as it is.
        scales: factor on the loss of each record.
        generator: where the random parts come from.
    """
    for scale in LOSS_SCALES:
        yield f"loss times {scale:g}", (batch, _last(scales, _times(scale)))
    if not _has_numbers(batch):
        return
    changes: dict[str, Change] = {f"input times {s:g}": _times(s) for s in INPUT_SCALES}
    changes["one large coordinate"] = lambda row: _one_coordinate(row, generator)
    changes["large common offset"] = lambda row: _normal(row, generator) + _LARGE
    changes["large alternating offset"] = lambda row: _normal(row, generator) + _alternating(row)
    for name, change in changes.items():
        yield name, (each(functools.partial(_last_number, change=change), batch), scales)


def _times(scale: float) -> Change:
    return lambda row: row * scale


def _last_number(tensor: Tensor, change: Change) -> Tensor:
    return _last(tensor, change) if tensor.is_floating_point() else tensor


def _last(tensor: Tensor, change: Change) -> Tensor:
    changed = tensor.clone()
    changed[-1] = change(changed[-1])
    return changed


def _has_numbers(batch: Any) -> bool:
    found: list[bool] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor.is_floating_point())
        return tensor

    each(note, batch)
    return any(found)


def _normal(row: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(row.shape, generator=generator).to(row)


def _one_coordinate(row: Tensor, generator: torch.Generator) -> Tensor:
    flat = torch.zeros(row.numel(), dtype=row.dtype)
    flat[torch.randint(row.numel(), (), generator=generator)] = _LARGE
    return flat.view_as(row)


def _alternating(row: Tensor) -> Tensor:
    """±large along the first axis of the record: its positions, where it has some."""
    signs = 1.0 - 2.0 * (torch.arange(row.shape[0] if row.ndim else 1) % 2)
    return _LARGE * signs.to(row.dtype).view(-1, *[1] * max(0, row.ndim - 1)).expand_as(row)
