"""The slow, obvious truth: one record at a time.

Every fast path is tested equal to this one. It asks nothing of the model but autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from steppe.clipping.batches import count, rows
from steppe.clipping.clip import Clip


def record_gradients(
    objective: Callable[[Any], Tensor], parameters: Sequence[Tensor], batch: Any
) -> Tensor:
    """Every record's gradient as one row of a `(B, P)` float32 or float64 matrix.

    Args:
        objective: maps a batch to a loss for each of its records.
        parameters: what to differentiate by, in the order of the columns.
        batch: nested tensors whose first axis is the record.
    """
    gradients = []
    for i in range(count(batch)):
        loss = objective(rows(batch, slice(i, i + 1))).sum()
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        gradients.append(
            torch.cat(
                [
                    (torch.zeros_like(p) if g is None else g).flatten().to(_wide(p))
                    for p, g in zip(parameters, found, strict=True)
                ]
            )
        )
    width = sum(p.numel() for p in parameters)
    return torch.stack(gradients) if gradients else torch.zeros(0, width)


def clipped_sum(
    objective: Callable[[Any], Tensor],
    parameters: Sequence[Tensor],
    batch: Any,
    clip: Clip,
    l2: float = 0.0,
) -> Tensor:
    """Σᵢ clip(gᵢ + λθ), one record at a time.

    Guarantees:
        A record whose gradient is not finite contributes zero.
    """
    gradients = record_gradients(objective, parameters, batch)
    weights = torch.cat([p.detach().flatten().to(_wide(p)) for p in parameters])
    gradients = gradients + l2 * weights
    norms = torch.linalg.vector_norm(gradients.double(), dim=1)
    factors = clip.factors(norms).to(gradients.dtype)
    finite = torch.isfinite(norms)[:, None]
    return (torch.where(finite, gradients, 0.0) * factors[:, None]).sum(0)


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
