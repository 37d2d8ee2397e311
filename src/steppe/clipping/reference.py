"""The slow reference: one record at a time.

Every fast path is tested equal to this one. It needs only autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from steppe.clipping.clip import Clip
from steppe.gradients import Strengths, strengths, wide_dtype
from steppe.utils.batches import count, each, rows


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
        # A copy: the model may change its input in place.
        loss = objective(each(torch.clone, rows(batch, slice(i, i + 1)))).sum()
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        gradients.append(
            torch.cat(
                [
                    (torch.zeros_like(p) if g is None else g).flatten().to(wide_dtype(p))
                    for p, g in zip(parameters, found, strict=True)
                ]
            )
        )
    width = sum(p.numel() for p in parameters)
    return torch.stack(gradients) if gradients else torch.zeros(0, width)


def clipped_sum(
    objective: Callable[[Any], Tensor],
    parameters: Mapping[str, Tensor] | Sequence[Tensor],
    batch: Any,
    clip: Clip,
    l2: float | Strengths = 0.0,
) -> Tensor:
    """Σᵢ clip(gᵢ + λθ), one record at a time, as a clip's first query sees it.

    Args:
        objective: as for `record_gradients`.
        parameters: by name; a sequence where no name matters.
        batch: as for `record_gradients`.
        clip: bounds each record's part.
        l2: one λ, or λ by name prefix.

    Guarantees:
        A record whose gradient is not finite contributes zero.
    """
    if not isinstance(parameters, Mapping):
        parameters = {str(index): parameter for index, parameter in enumerate(parameters)}
    gradients = record_gradients(objective, list(parameters.values()), batch)
    pulls = [
        strength * parameters[name].detach().flatten().to(wide_dtype(parameters[name]))
        for name, strength in strengths(l2, parameters).items()
    ]
    return clip.begin(parameters).encode(gradients + torch.cat(pulls)).sum(0)
